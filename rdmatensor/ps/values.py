"""Named tensors as a server holds them."""

from __future__ import annotations

import json
import math
import zlib
from dataclasses import dataclass, field
from typing import cast

import numpy
import torch

from rdmatensor.context import Context
from rdmatensor.errors import InvalidArgumentError, MismatchError, OutOfMemoryError
from rdmatensor.types import Array

BYTES_MAX = 1 << 34  # of one value: beyond it a shape is a typing error
NAME_BYTES = 200  # as UTF-8; three times as many in a request
NDIM_MAX = 8
HEAD_BYTES = 960  # of a request or an answer, before its data; the least slot has 1,024 B


class _DTypes(dict[str, torch.dtype]):
    """torch's plain dtypes by name, and `inverse`."""

    def __init__(self) -> None:
        names = (
            "bool uint8 int8 uint16 int16 uint32 int32 uint64 int64 float16 bfloat16 float32 "
            "float64 complex64 complex128 float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz"
        )
        super().__init__((one, getattr(torch, one)) for one in names.split())
        self.inverse = {dtype: name for name, dtype in self.items()}


DTYPES = _DTypes()
# torch has no sums of these; with wrap-around they have the bits of the signed ones.
_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}


def is_addable(dtype: torch.dtype) -> bool:
    """Return whether values of a dtype have a sum."""
    return dtype is not torch.bool and not str(dtype).startswith("torch.float8")


def bytes_of(value: torch.Tensor) -> memoryview:
    """Return the bytes of a dense tensor on the CPU, in C order."""
    flat = value.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data


def value_of(dtype: str, shape: list[int], data: bytearray) -> torch.Tensor:
    """Return the tensor that has these bytes as its memory."""
    flat = torch.frombuffer(data, dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
    return flat.view(DTYPES[dtype]).reshape(shape)


@dataclass
class _Value:
    """A name's value; `bytes` is an array in the arena."""

    version: int
    dtype: str
    shape: list[int]
    bytes: Array

    def tensor(self) -> torch.Tensor:
        """Return it as a flat tensor that sums wrap around in."""
        dtype = DTYPES[self.dtype]
        return torch.from_numpy(self.bytes).view(_SIGNED.get(dtype, dtype))


@dataclass
class _Client:
    """What is known of one worker."""

    sequence: int = 0  # of the last change
    answer: dict[str, object] = field(default_factory=dict)  # to it
    name: str = ""  # that it was of
    staged: _Value | None = None  # of a change whose parts come; version: its sequence
    snapshot: _Value | None = None  # that it reads in parts


def server_of(name: str, servers: int) -> int:
    """Return the server that a name is on."""
    return zlib.crc32(name.encode()) % servers


class Values:
    """The names of one server, and the calls of workers for them.

    A change carries the sequence of its worker; one that was carried out before is answered as it
    was then.
    """

    def __init__(self, context: Context, part_bytes: int, replicas: int = 0) -> None:
        self._context, self._part, self._replicas = context, part_bytes, replicas
        self._removed: dict[str, int] = {}  # the versions of removals; with replicas
        self._values: dict[str, _Value] = {}
        self._version = 0
        self._clients: dict[int, _Client] = {}

    def describe(self) -> dict[str, int]:
        """Return how many names there are, and their bytes."""
        return {
            "names": len(self._values),
            "bytes": sum(one.bytes.nbytes for one in list(self._values.values())),
        }

    def copies(self) -> dict[str, tuple[int, str, list[int], bytes]]:
        """Return version, dtype, shape and bytes of each name, as they are now."""
        return {
            name: (one.version, one.dtype, one.shape, one.bytes.tobytes())
            for name, one in self._values.items()
        }

    def put_back(self, name: str, version: int, dtype: str, shape: list[int], data: bytes) -> None:
        """Begin with a value of a checkpoint."""
        array = self._context.empty(len(data), "uint8")
        array[:] = numpy.frombuffer(data, numpy.uint8)
        self._values[name] = _Value(version, dtype, shape, array)
        self._version = max(self._version, version)

    def carry_out(self, request: dict[str, object], worker: int) -> dict[str, object]:
        """Carry out a worker's call; KeyError and TypeError are of calls that are none."""
        op = str(request["op"])
        client = self._clients.setdefault(worker, _Client())
        if op == "names":
            return self._names(str(request["after"]))
        name = str(request.get("name", ""))
        if op == "get":
            return self._get(name, client)
        if op == "more":
            return self._more(request, client)
        if op == "copy":
            return self._copy(name, client)
        if op in ("take part", "take"):
            staged = self._stage(request, client)
            return {} if op == "take part" else self._take(name, request, client, staged)
        sequence = _whole(request, "sequence")
        if sequence <= client.sequence:
            return client.answer
        if op == "part":
            self._stage(request, client)
            return {}
        answer = self._change(op, name, request, client)
        client.sequence, client.answer, client.name = sequence, answer, name
        return answer

    def _names(self, after: str) -> dict[str, object]:
        names: list[str] = []
        for name in sorted(one for one in self._values if one > after):
            if names and len(json.dumps([*names, name])) > HEAD_BYTES - 3 * NAME_BYTES - 50:
                return {"names": names, "after": names[-1]}
            names.append(name)
        return {"names": names, "after": None}

    def _get(self, name: str, client: _Client) -> dict[str, object]:
        client.snapshot = None
        value = self._values.get(name)
        if value is None:
            return {"version": None, "dtype": "bool", "shape": [0], "total": 0}
        if value.bytes.nbytes > self._part:  # later changes must not be half in it
            client.snapshot = _Value(
                value.version, value.dtype, value.shape, numpy.array(value.bytes)
            )
        return {
            "version": value.version,
            "dtype": value.dtype,
            "shape": value.shape,
            "total": value.bytes.nbytes,
            "data": value.bytes[: self._part].tobytes(),
        }

    def _more(self, request: dict[str, object], client: _Client) -> dict[str, object]:
        snapshot, offset = client.snapshot, _whole(request, "offset")
        if snapshot is None or snapshot.version != request["version"]:
            raise ValueError("a part of a value that the worker does not read")
        data = snapshot.bytes[offset : offset + self._part].tobytes()
        if offset + len(data) == snapshot.bytes.nbytes:
            client.snapshot = None
        return {"data": data}

    def _version_of(self, name: str) -> int:
        known = self._values.get(name)
        return self._removed.get(name, 0) if known is None else known.version

    def _copy(self, name: str, client: _Client) -> dict[str, object]:
        """Begin to send a name to its backup: the value, and the last changes of workers to it."""
        value, version = self._values.get(name), self._version_of(name)
        done = {
            worker: [one.sequence, one.answer]
            for worker, one in self._clients.items()
            if one.name == name
        }
        text = numpy.frombuffer(json.dumps(done).encode(), numpy.uint8)
        data = text if value is None else numpy.concatenate([value.bytes, text])
        dtype, shape = (None, []) if value is None else (value.dtype, value.shape)
        client.snapshot = _Value(version, "uint8", [data.nbytes], data)
        return {
            "version": version,
            "dtype": dtype,
            "shape": shape,
            "size": data.nbytes - text.nbytes,
            "total": data.nbytes,
            "data": data[: self._part].tobytes(),
        }

    def _take(
        self, name: str, request: dict[str, object], client: _Client, staged: _Value
    ) -> dict[str, object]:
        """Take what the primary has of a name, unless a later version is here."""
        client.staged = None
        size, version, dtype = _whole(request, "size"), _whole(request, "version"), request["dtype"]
        for worker, (sequence, answer) in json.loads(staged.bytes[size:].tobytes()).items():
            other = self._clients.setdefault(int(worker), _Client())
            if sequence > other.sequence:
                other.sequence, other.answer, other.name = sequence, answer, name
        if version > self._version_of(name) and dtype is None:
            self._values.pop(name, None)
            self._removed[name] = version
        elif version > self._version_of(name):
            shape = cast("list[int]", request["shape"])
            if math.prod(shape) * DTYPES[str(dtype)].itemsize != size:
                raise ValueError(f"{size} B of {dtype} and shape {shape}")
            self.put_back(name, version, str(dtype), shape, staged.bytes[:size].tobytes())
            self._removed.pop(name, None)
        self._version = max(self._version, version)
        return {}

    def _stage(self, request: dict[str, object], client: _Client) -> _Value:
        """Take one part of a value; the memory for all of it is there with the first one."""
        total, offset = _whole(request, "bytes"), _whole(request, "offset")
        data, sequence = cast("bytes", request.get("data", b"")), _whole(request, "sequence")
        if total > BYTES_MAX:
            detail = f"a value of {total} B: at most {BYTES_MAX} B; split it over names"
            raise OutOfMemoryError("RDT_ENOMEM", "kv", detail)
        staged = client.staged
        if staged is None or staged.version != sequence or staged.bytes.nbytes != total:
            client.staged = None  # its memory is free before more is taken
            array = self._context.empty(total, "uint8")
            staged = client.staged = _Value(sequence, "uint8", [total], array)
        if offset + len(data) > total:
            raise ValueError(f"{len(data)} B at {offset} of a value of {total} B")
        staged.bytes[offset : offset + len(data)] = numpy.frombuffer(data, numpy.uint8)
        return staged

    def _change(
        self, op: str, name: str, request: dict[str, object], client: _Client
    ) -> dict[str, object]:
        known = self._values.get(name)
        if op == "delete":
            existed = self._values.pop(name, None) is not None
            if existed and self._replicas:
                self._version += 1
                self._removed[name] = self._version
            return {"existed": existed}
        dtype, shape = str(request["dtype"]), cast("list[int]", request["shape"])
        if op not in ("put", "add", "cas") or dtype not in DTYPES or not name:
            raise ValueError(f"unknown change {op!r} of dtype {dtype!r}")
        total = math.prod(shape) * DTYPES[dtype].itemsize
        is_shape = len(shape) <= NDIM_MAX and all(type(n) is int and n >= 0 for n in shape)
        if not is_shape or total != _whole(request, "bytes"):
            raise ValueError(f"{request['bytes']} B of {dtype} and shape {shape}")
        current = 0 if known is None else known.version
        if op == "cas" and request["version"] != current:
            client.staged = None
            return {"version": None}
        if op == "add" and known is None:
            client.staged = None
            detail = f"no value has the name {name!r}: put() its first value"
            raise InvalidArgumentError("RDT_EINVAL", "add", detail)
        if known is not None and (known.dtype, known.shape) != (dtype, shape):
            client.staged = None
            detail = (
                f"{name!r} has {known.dtype} of shape {known.shape}, and the {op} {dtype} of shape "
                f"{shape}: delete() it first"
            )
            raise MismatchError("RDT_EMISMATCH", op, detail)
        staged = self._stage(request, client)
        client.staged = None
        value = _Value(self._version + 1, dtype, shape, staged.bytes)
        if op == "add" and known is not None:
            if not is_addable(DTYPES[dtype]):
                raise InvalidArgumentError("RDT_EINVAL", "add", f"{dtype} has no sum")
            known_sum = known.tensor()
            known_sum += value.tensor()
            value.bytes = known.bytes
        self._version += 1
        self._values[name] = value
        self._removed.pop(name, None)
        return {"version": value.version}


def _whole(request: dict[str, object], key: str) -> int:
    value = request[key]
    if type(value) is not int or value < 0:
        raise TypeError(f"{key}={value!r} is not a whole number")
    return value
