"""A server's part of a checkpoint, and the manifest of all parts."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from rdmatensor._native.arguments import invalid
from rdmatensor._native.ffi import CData, check, ffi, lib, new_error
from rdmatensor.errors import CanceledError, RdmaTensorError
from rdmatensor.ps.checkpoint import (
    FORMAT,
    PARTITIONS,
    VERSION,
    Manifest,
    PartWriter,
    Section,
    write_whole,
)

_PIECE_BYTES = 256 * 1024  # that a server's lock is held for
_FLOATS = 1 << 18

Handle = Callable[[str], CData]


class Contents(NamedTuple):
    """What a server holds, by name."""

    tables: dict[str, tuple[int, dict[str, Any], int]]  # number, description, floats of state
    models: dict[str, tuple[int, dict[str, Any]]]  # number, description
    queues: dict[str, tuple[int, int]]  # number, chunks
    values: dict[str, tuple[int, str, list[int], bytes]]  # as Values.copies()


@dataclass
class Job:
    """A checkpoint that is being saved."""

    uid: str
    folder: Path
    is_increment: bool
    worker: int
    file: PartWriter
    clocks: list[int] = field(default_factory=list)
    applied: int = 0
    total: int = 0
    contents: Contents = field(default_factory=lambda: Contents({}, {}, {}, {}))
    state: str = "prepared"  # then "writing", "written", "done" or "failed"
    error: RdmaTensorError | None = None
    is_reported: bool = False
    saved_at: float = 0.0


def write_part(
    job: Job, handle: Handle, index: int, servers: int, look: Callable[[], object]
) -> None:
    """Write what a server holds, and the description of its file; look is called between pieces."""
    held = job.contents
    for _, spec, state in held.tables.values():
        job.total += spec["rows"] // servers * (8 + 4 * (spec["dim"] + state))
    for _, spec in held.models.values():
        job.total += 4 * spec["count"] * spec["arrays"]
    for name in held.tables:
        for partition in range(index, PARTITIONS, servers):
            _write_rows(job, handle("save"), name, partition)
            look()
    for name in held.models:
        _write_dense(job, handle("save"), name, look)
    for name in held.queues if index == 0 else ():
        _write_queue(job, handle("save"), name)
    for name, (_, _, _, data) in held.values.items():
        job.file.write(data)
        job.file.end("kv", name, 0, 0, len(data))
    job.file.close()
    part = {
        "name": job.file.path.name,
        "sections": job.file.sections,
        "applied": job.applied,
        "tables": {
            name: _step(handle("save"), lib.RDT_PS_TABLE, number)
            for name, (number, _, _) in held.tables.items()
        },
        "models": {
            name: _step(handle("save"), lib.RDT_PS_DENSE, number)
            for name, (number, _) in held.models.items()
        },
        "values": {name: one[:3] for name, one in held.values.items()},
    }
    write_whole(job.file.path.with_suffix(".json"), json.dumps(part).encode())


def _step(ptr: CData, kind: int, number: int) -> int:
    step, err = ffi.new("uint64_t *"), new_error()
    check(lib.rdt_ps_server_read_step(ptr, kind, number, step, err), "save", err)
    return int(step[0])


def _write_rows(job: Job, ptr: CData, name: str, partition: int) -> None:
    number, spec, state = job.contents.tables[name]
    record = 8 + 4 * (spec["dim"] + state)
    buffer = ffi.new("uint8_t[]", max(_PIECE_BYTES, record))
    at, length, err = ffi.new("uint64_t *"), ffi.new("uint64_t *"), new_error()
    before = job.file.written
    while True:
        status = lib.rdt_ps_server_read_rows(
            ptr, number, partition, at, buffer, len(buffer), length, err
        )
        check(status, "save", err)
        if length[0] == 0:
            break
        job.file.write(ffi.buffer(buffer, length[0])[:])
    if job.file.written > before:
        job.file.end("rows", name, partition, 0, (job.file.written - before) // record)


def _write_dense(job: Job, ptr: CData, name: str, look: Callable[[], object]) -> None:
    number, spec = job.contents.models[name]
    buffer, err = ffi.new("float[]", min(spec["count"], _FLOATS) + 1), new_error()
    for array in range(spec["arrays"]):
        for first in range(0, spec["count"], _FLOATS):
            some = min(_FLOATS, spec["count"] - first)
            status = lib.rdt_ps_server_read_dense(ptr, number, array, first, some, buffer, err)
            check(status, "save", err)
            job.file.write(ffi.buffer(buffer, 4 * some)[:])
            job.file.end("dense", name, array, spec["params_off"] + first, some)
            look()


def _write_queue(job: Job, ptr: CData, name: str) -> None:
    number, chunks = job.contents.queues[name]
    buffer, err = ffi.new("uint8_t[]", chunks + 1), new_error()
    check(lib.rdt_ps_server_read_queue(ptr, number, buffer, chunks, err), "save", err)
    job.file.write(ffi.buffer(buffer, chunks)[:])
    job.file.end("queue", name, 0, 0, chunks)


def _is_kept(section: Section, job: Job) -> bool:
    """Return whether a full checkpoint's section counts with the increment's, which may have all.

    Of keys, and of tables with a file, an increment has all rows.
    """
    spec: dict[str, Any] = job.contents.tables.get(section[1], (0, {}, 0))[1]
    return section[0] == "rows" and spec.get("keys", "dense") == "dense" and not spec.get("spill")


def manifest_of(
    job: Job, parts: list[dict[str, Any]], old: Manifest | None, full: tuple[Path, str] | None
) -> Manifest:
    """Return the manifest that makes the parts count; full is the last full checkpoint's name."""
    if len({part["applied"] for part in parts}) > 1:
        raise CanceledError(
            "RDT_ECANCELED",
            "save",
            "a worker has died in a step that some servers have applied and others have not: "
            "save again when another worker has repeated its batch",
        )
    files = [{"name": part["name"], "sections": part["sections"]} for part in parts]
    uid = job.uid
    if job.is_increment:
        assert full is not None
        uid = full[1]
        before = [] if old is None or old["full"] != uid else old["files"]
        before = [one for one in before if one["name"].startswith(f"{uid}.")]
        if len(before) != len(parts):
            raise invalid("save", f"{job.folder} has another full checkpoint meanwhile")
        for one in before:
            one["sections"] = [some for some in one["sections"] if _is_kept(some, job)]
        files = [*before, *files]
    # A table that only some servers have is being made: no step has changed it.
    tables, models = (
        {name: max(part[kind][name] for part in parts) for name in parts[0][kind] if all(
            name in part[kind] for part in parts)}
        for kind in ("tables", "models")
    )  # fmt: skip
    held = job.contents
    return {
        "format": FORMAT,
        "version": VERSION,
        "full": uid,
        "saved_at": job.saved_at,
        "clocks": job.clocks,
        "tables": {
            name: {"spec": held.tables[name][1], "state_floats": held.tables[name][2], "step": step}
            for name, step in tables.items()
        },
        "models": {name: {**held.models[name][1], "step": step} for name, step in models.items()},
        "values": {name: one for part in parts for name, one in part["values"].items()},
        "queues": {name: chunks for name, (_, chunks) in held.queues.items()},
        "files": files,
    }
