"""Restoring on a server: tables, models and queues begin with what a checkpoint has."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from rdmatensor._native.ffi import CData, check, ffi, lib, new_error
from rdmatensor.errors import ClosedError, MismatchError
from rdmatensor.ps.checkpoint import Checkpoint
from rdmatensor.ps.values import Values, server_of

_TELL_S = 5.0
log = logging.getLogger("rdmatensor.ps")


class Restorer:
    """Loads a server's part of a checkpoint as workers ask for tables and models.

    Without a checkpoint all is ready at once.
    """

    def __init__(
        self,
        handle: Callable[[str], CData],
        index: int,
        servers: int,
        workers: int,
        checkpoint: Checkpoint | None,
    ) -> None:
        self._handle, self._index, self._servers = handle, index, servers
        self.checkpoint = checkpoint
        self._loads: dict[tuple[str, str], Future[None]] = {}
        self._loader = ThreadPoolExecutor(1, "rdmatensor restore")
        self._is_stopping = False
        self.read_bytes = 0
        self._told_s = time.monotonic()
        if checkpoint is not None:
            clocks = ffi.new("uint64_t[]", clocks_of(checkpoint, workers))
            lib.rdt_ps_server_write_clocks(handle("restore"), clocks)

    def is_ready(self, kind: str, name: str) -> bool:
        """Return whether a table or model has what it begins with; raises why it cannot."""
        load = self._loads.get((kind, name))
        if load is None:
            return True
        if load.done():
            load.result()
        return load.done()

    def has(self, kind: str, name: str) -> bool:
        """Return whether the checkpoint has it."""
        return (kind, name) in self._loads

    def table(self, name: str, number: int, spec: dict[str, Any]) -> None:
        """Start to load a table's rows, if the checkpoint has them."""
        if self.checkpoint is None or name not in self.checkpoint._tables:
            return
        saved = self.checkpoint._tables[name]
        where = {"spill": spec["spill"], "memory": spec["memory"]}  # may differ
        _compare("table", name, {**saved["spec"], **where}, spec)
        self._start("table", name, lambda: self._load_rows(name, number, int(str(saved["step"]))))

    def model(self, name: str, number: int, spec: dict[str, Any]) -> None:
        """Start to load a dense model's part, if the checkpoint has it."""
        if self.checkpoint is None or name not in self.checkpoint._models:
            return
        saved = self.checkpoint._models[name]
        # Frozen parameters and buffers are the workers'.
        wanted, had = (
            {"rule": one["rule"], "parameters": one["model"][:2]} for one in (spec, saved)
        )
        _compare("dense", name, had, wanted)
        step = int(str(saved["step"]))
        self._start("dense", name, lambda: self._load_dense(name, number, spec, step))

    def queue(self, name: str, number: int, chunks: int) -> None:
        """Have the chunks done that were done."""
        checkpoint = self.checkpoint
        if checkpoint is None or name not in checkpoint._queues:
            return
        _compare("queue", name, checkpoint._queues[name], chunks)
        for path, section in checkpoint._sections("queue", name):
            data, err = checkpoint._read(path, section), new_error()
            ptr = self._handle("restore")
            check(lib.rdt_ps_server_write_queue(ptr, number, data, chunks, err), "restore", err)

    def values(self, into: Values) -> None:
        """Load this server's names."""
        saved = {} if self.checkpoint is None else self.checkpoint._values
        for name, (version, dtype, shape) in saved.items():
            if server_of(name, self._servers) == self._index:
                assert self.checkpoint is not None
                data = self.checkpoint._bytes_of("kv", name)
                into.put_back(name, version, dtype, shape, data)

    def _start(self, kind: str, name: str, load: Callable[[], None]) -> None:
        self._loads[kind, name] = self._loader.submit(load)

    def _count(self, what: str, size: int) -> None:
        self.read_bytes += size
        if self._is_stopping:
            raise ClosedError("RDT_ECLOSED", "restore", "the server was closed")
        if time.monotonic() - self._told_s > _TELL_S:
            self._told_s = time.monotonic()
            log.info("server %d restores %s: %d B so far", self._index, what, self.read_bytes)

    def _load_rows(self, name: str, number: int, step: int) -> None:
        assert self.checkpoint is not None
        err = new_error()
        for path, section in self.checkpoint._sections("rows", name):
            if section.number % self._servers != self._index:
                continue
            data, ptr = self.checkpoint._read(path, section), self._handle("restore")
            status = lib.rdt_ps_server_write_rows(ptr, number, data, section.length, err)
            check(status, "restore", err)
            self._count(f"table {name!r}", len(data))
        self._set_step(lib.RDT_PS_TABLE, number, step)

    def _load_dense(self, name: str, number: int, spec: dict[str, Any], step: int) -> None:
        assert self.checkpoint is not None
        first, err = int(str(spec["params_off"])), new_error()
        end = first + int(str(spec["count"]))
        for path, section in self.checkpoint._sections("dense", name):
            start, stop = max(first, section.first), min(end, section.first + section.length)
            if start >= stop:
                continue
            floats = np.frombuffer(self.checkpoint._read(path, section), "<f4")
            part = floats[start - section.first : stop - section.first].tobytes()
            status = lib.rdt_ps_server_write_dense(
                *(self._handle("restore"), number, section.number, start - first, stop - start),
                *(ffi.from_buffer("float[]", part), err),
            )
            check(status, "restore", err)
            self._count(f"dense model {name!r}", len(part))
        self._set_step(lib.RDT_PS_DENSE, number, step)

    def _set_step(self, kind: int, number: int, step: int) -> None:
        err, ptr = new_error(), self._handle("restore")
        check(lib.rdt_ps_server_write_step(ptr, kind, number, step, err), "restore", err)

    def close(self) -> None:
        """End loading; idempotent."""
        self._is_stopping = True
        self._loader.shutdown(wait=True, cancel_futures=True)


def read(path: str | None) -> Checkpoint | None:
    """Return the checkpoint that a cluster begins with."""
    return None if path is None else Checkpoint(Path(path))


def clocks_of(checkpoint: Checkpoint, workers: int) -> list[int]:
    """Return the workers' steps; another number of workers begins at the furthest one's."""
    if len(checkpoint.clocks) == workers:
        return checkpoint.clocks
    return [max(checkpoint.clocks, default=0)] * workers


def _compare(kind: str, name: str, saved: object, wanted: object) -> None:
    if saved != wanted:
        raise MismatchError(
            "RDT_EMISMATCH",
            "restore",
            f"{kind} {name!r} was saved as {saved}, and is wanted as {wanted}",
        )
