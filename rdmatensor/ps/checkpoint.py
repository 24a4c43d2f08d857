"""Checkpoints on disk.

A checkpoint is a folder. checkpoint.json, which is replaced as a whole, names the files that count:
for each server one of a full checkpoint, and one of an increment. A file is a row of sections, such
as the changed rows of a partition; checkpoint.json has the place and the CRC-32 of each.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
import warnings
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from rdmatensor._native.arguments import invalid
from rdmatensor.errors import CorruptedDataError, DeviceError, VersionMismatchError
from rdmatensor.ps.values import value_of

FORMAT = "rdmatensor parameter server"
VERSION = 1
MANIFEST = "checkpoint.json"
PARTITIONS = 1024
_KEY_FLOATS = 8  # with which the record of a key ends, as large as floats

Manifest = dict[str, Any]


class Section(NamedTuple):
    """Bytes of a file that were written together, and their checksum."""

    kind: str  # "rows", "dense", "queue" or "kv"
    name: str
    number: int  # the partition; the array, where 0 has the values; 0
    first: int  # of the elements of an array
    length: int  # records, floats, chunks or bytes
    offset: int
    bytes: int
    crc: int

    def place(self) -> str:
        """Return what an error calls it."""
        if self.kind == "rows":
            return f"partition {self.number} of table {self.name!r}"
        if self.kind == "dense":
            end = self.first + self.length
            what = "values" if self.number == 0 else f"state {self.number}"
            return f"{what} {self.first} to {end} of dense model {self.name!r}"
        return f"{'queue' if self.kind == 'queue' else 'the value of'} {self.name!r}"


class PartWriter:
    """A server's file of a checkpoint that is being saved.

    Raises:
        OSError: From all methods, as of the operating system.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.sections = path, list[Section]()
        self.written = 0
        self._file = path.open("xb", buffering=0)
        self._start, self._crc = 0, 0

    def write(self, data: bytes | memoryview) -> None:
        """Append bytes to the current section."""
        self._crc = zlib.crc32(data, self._crc)
        view = memoryview(data)
        while len(view) > 0:  # a full disk may take a part
            done = self._file.write(view)
            self.written += done
            view = view[done:]

    def end(self, kind: str, name: str, number: int, first: int, length: int) -> None:
        """End the current section."""
        size = self.written - self._start
        self.sections.append(
            Section(kind, name, number, first, length, self._start, size, self._crc)
        )
        self._start, self._crc = self.written, 0

    def close(self) -> None:
        """Have the bytes on the disk."""
        os.fsync(self._file.fileno())
        self._file.close()

    def remove(self) -> None:
        """Give the file up."""
        self._file.close()
        self.path.unlink(missing_ok=True)


def write_whole(path: Path, data: bytes) -> None:
    """Replace a file as a whole, and have it on the disk."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with fresh.open("wb", buffering=0) as file:
            if file.write(data) != len(data):
                raise OSError(28, os.strerror(28), str(fresh))
            os.fsync(file.fileno())
        fresh.replace(path)
    except OSError:
        fresh.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Make a checkpoint count."""
    text = json.dumps(manifest).encode()
    write_whole(folder / MANIFEST, text + b"\n%08x\n" % zlib.crc32(text))


def read_manifest(folder: Path) -> Manifest:
    """Return what the folder's checkpoint is; see Checkpoint for the exceptions."""
    path = folder / MANIFEST
    try:
        text, _, rest = path.read_bytes().partition(b"\n")
    except FileNotFoundError:
        raise invalid("restore", f"{folder} has no checkpoint: there is no {MANIFEST}") from None
    except OSError as error:
        raise device_error("restore", error, path) from None
    manifest = None
    with contextlib.suppress(ValueError):
        manifest = json.loads(text)
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise _corrupt(f"{path} is damaged, or not of a checkpoint")
    if manifest.get("version") != VERSION:
        raise VersionMismatchError(
            "RDT_EVERSION",
            "restore",
            f"{path} has version {manifest.get('version')} of the format, and this library reads "
            f"version {VERSION}: use the library that saved it",
        )
    if rest.strip() != b"%08x" % zlib.crc32(text):
        raise _corrupt(f"{path} is damaged: its checksum is of other bytes")
    return manifest


def device_error(call: str, error: OSError, path: Path, more: str = "") -> DeviceError:
    """Make the exception of a file that cannot be read or written."""
    found = DeviceError("RDT_EDEVICE", call, f"{error.filename or path}: {error.strerror}{more}")
    found.sys_errno = error.errno or 0
    return found


def _corrupt(detail: str) -> CorruptedDataError:
    return CorruptedDataError("RDT_ECORRUPT", "restore", detail)


class Checkpoint:
    """A checkpoint of a cluster's servers, which Worker.save() made.

    Args:
        path: Its folder.

    Attributes:
        path: The folder.
        clocks: The steps of each worker.
        saved_at: When it was cut, in seconds since 1970.
        tables: Names of the tables.
        models: Names of the dense models.
        values: Names of Worker.kv.

    Raises:
        InvalidArgumentError: The folder has no checkpoint.json.
        CorruptedDataError: Its description is damaged.
        VersionMismatchError: Another version of this library saved it.
        DeviceError: The operating system cannot read it.

    Example:
        >>> checkpoint = ps.Checkpoint("saved")
        >>> checkpoint.table("user")["values"].shape
        torch.Size([944, 16])
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._manifest = manifest = read_manifest(self.path)
        self.clocks: list[int] = list(manifest["clocks"])
        self.saved_at = float(str(manifest["saved_at"]))
        self._tables: dict[str, dict[str, Any]] = dict(manifest["tables"])
        self._models: dict[str, dict[str, Any]] = dict(manifest["models"])
        self._queues: dict[str, int] = dict(manifest["queues"])
        self._values: dict[str, tuple[int, str, list[int]]] = dict(manifest["values"])
        self.tables, self.models = sorted(self._tables), sorted(self._models)
        self.values = sorted(self._values)

    def _sections(self, kind: str, name: str) -> Iterator[tuple[Path, Section]]:
        """Yield the sections of a table, model or queue; those of the increment come last."""
        for file in self._manifest["files"]:
            for one in file["sections"]:
                if one[:2] == [kind, name]:
                    yield self.path / file["name"], Section(*one)

    def _read(self, path: Path, section: Section) -> bytes:
        """Return a section's bytes; they are those that were saved."""
        try:
            with path.open("rb") as file:
                file.seek(section.offset)
                data = file.read(section.bytes)
        except OSError as error:
            raise device_error("restore", error, path) from None
        if len(data) != section.bytes or zlib.crc32(data) != section.crc:
            raise _corrupt(
                f"{path}: {section.place()} is damaged: {len(data)} of {section.bytes} B, and "
                "their checksum is of other bytes"
            )
        return data

    def age_s(self) -> float:
        """Return its age.

        Returns:
            Seconds since it was cut.

        Example:
            >>> ps.Checkpoint("saved").age_s() > 0
            True
        """
        return time.time() - self.saved_at

    def table(self, name: str) -> dict[str, torch.Tensor]:
        """Return a table's rows.

        Args:
            name: Of the table.

        Returns:
            "values" of shape (rows, dim), and "state" of the rule, of shape (rows, floats). Of a
            table of keys the keys that have a row too, "keys" of shape (rows,), sorted.

        Raises:
            InvalidArgumentError: It has no such table.
            CorruptedDataError: Bytes have changed since; the message names the partition.
            DeviceError: The operating system cannot read it.

        Example:
            >>> ps.Checkpoint("saved").table("user")["state"].shape
            torch.Size([944, 16])
        """
        if name not in self._tables:
            raise invalid("table", f"{self.path} has no table {name!r}, but {self.tables}")
        spec = self._tables[name]["spec"]
        rows, dim = spec["rows"], spec["dim"]
        state = int(str(self._tables[name]["state_floats"]))
        if spec["keys"] != "dense":
            return self._keyed(name, dim, state - _KEY_FLOATS)
        kind = np.dtype([("id", "<u8"), ("row", "<f4", (dim + state,))])
        found = np.zeros((rows, dim + state), np.float32)
        for path, section in self._sections("rows", name):
            records = np.frombuffer(self._read(path, section), kind)
            found[records["id"]] = records["row"]
        return {
            "values": torch.from_numpy(found[:, :dim].copy()),
            "state": torch.from_numpy(found[:, dim:].copy()),
        }

    def _keyed(self, name: str, dim: int, state: int) -> dict[str, torch.Tensor]:
        entry = ["last:u8", "order:u8", "count:u4", "epoch:u4", "has_row:u4", "zero:u4"]
        ends = [(one.split(":")[0], f"<{one.split(':')[1]}") for one in entry]
        kind = np.dtype([("key", "<i8"), ("row", "<f4", (dim + state,)), *ends])
        parts = [np.frombuffer(self._read(*one), kind) for one in self._sections("rows", name)]
        found = np.concatenate([np.zeros(0, kind), *parts])
        found = found[found["has_row"] != 0]
        found = found[np.argsort(found["key"])]
        return {
            "keys": torch.from_numpy(found["key"].copy()),
            "values": torch.from_numpy(found["row"][:, :dim].copy()),
            "state": torch.from_numpy(found["row"][:, dim:].copy()),
        }

    def dense(self, name: str) -> dict[str, torch.Tensor]:
        """Return the parameters of a dense model by name, and the rule's state by number.

        Args:
            name: Of the model.

        Returns:
            Parameters by name; those of state i as "state i/" and the name.

        Raises:
            InvalidArgumentError: It has no such model.
            CorruptedDataError: Bytes have changed since.
            DeviceError: The operating system cannot read it.

        Example:
            >>> sorted(ps.Checkpoint("saved").dense("dense"))
            ['bias', 'weight']
        """
        if name not in self._models:
            raise invalid("dense", f"{self.path} has no dense model {name!r}, but {self.models}")
        model, arrays = self._models[name], dict[int, np.ndarray]()
        floats = int(model["model"][0])
        for path, section in self._sections("dense", name):
            array = arrays.setdefault(section.number, np.zeros(floats, np.float32))
            data = np.frombuffer(self._read(path, section), "<f4")
            array[section.first : section.first + section.length] = data
        found, offset = {}, 0
        for parameter, shape in model["parameters"]:
            end = offset + int(np.prod(shape))
            for number, array in arrays.items():
                head = "" if number == 0 else f"state {number}/"
                found[head + parameter] = torch.from_numpy(array[offset:end].reshape(shape).copy())
            offset = end
        return found

    def value(self, name: str) -> torch.Tensor:
        """Return the tensor of a name of Worker.kv.

        Args:
            name: The name.

        Returns:
            The tensor.

        Raises:
            InvalidArgumentError: It has no such name.
            CorruptedDataError: Bytes have changed since.
            DeviceError: The operating system cannot read it.

        Example:
            >>> ps.Checkpoint("saved").value("mean")
            tensor([0., 0., 0.])
        """
        if name not in self._values:
            raise invalid("value", f"{self.path} has no value of {name!r}, but {self.values}")
        _, dtype, shape = self._values[name]
        return value_of(dtype, shape, bytearray(self._bytes_of("kv", name)))

    def _bytes_of(self, kind: str, name: str) -> bytes:
        return b"".join(self._read(path, section) for path, section in self._sections(kind, name))

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return all tables, dense models and values as tensors by name.

        Returns:
            "table/values" and "table/state" for each table, "model/parameter" for each model, and
            "kv/name" for each name of Worker.kv.

        Raises:
            CorruptedDataError: Bytes have changed since.
            DeviceError: The operating system cannot read it.

        Example:
            >>> sorted(ps.Checkpoint("saved").tensors())
            ['user/state', 'user/values']
        """
        parts = [(name, self.table(name)) for name in self.tables]
        parts += [(name, self.dense(name)) for name in self.models]
        parts.append(("kv", {name: self.value(name) for name in self.values}))
        return {f"{name}/{key}": value for name, part in parts for key, value in part.items()}

    def to_safetensors(self, file: str | os.PathLike[str]) -> None:
        """Write tensors() into a file of safetensors; needs the package of that name.

        Args:
            file: The file, which is replaced.

        Raises:
            CorruptedDataError: Bytes have changed since.
            DeviceError: The operating system cannot read or write it.

        Example:
            >>> ps.Checkpoint("saved").to_safetensors("rows.safetensors")
        """
        try:
            from safetensors.torch import save
        except ImportError:
            raise ImportError(
                "to_safetensors() needs safetensors: pip install 'rdmatensor[safetensors]'"
            ) from None
        data = save(self.tensors(), {"format": "pt", "source": FORMAT})
        try:
            write_whole(Path(file), data)
        except OSError as error:
            raise device_error("to_safetensors", error, Path(file)) from None

    def to_dcp(self, folder: str | os.PathLike[str]) -> None:
        """Write tensors() as a checkpoint of torch.distributed.checkpoint, in this process alone.

        Args:
            folder: Of that checkpoint.

        Raises:
            CorruptedDataError: Bytes have changed since.

        Example:
            >>> ps.Checkpoint("saved").to_dcp("rows_dcp")
        """
        from torch.distributed.checkpoint import state_dict_saver

        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.distributed is disabled")  # as is wanted here
            state_dict_saver.save(self.tensors(), checkpoint_id=os.fspath(folder), no_dist=True)

    def __repr__(self) -> str:
        return f"<Checkpoint {str(self.path)!r} of steps {self.clocks}>"
