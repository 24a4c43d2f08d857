"""What a server reports: its state, the workers that hold others, and its metrics."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Literal, cast

from rdmatensor._native.ffi import CData, check, ffi, lib, new_error
from rdmatensor.context import Context
from rdmatensor.metrics import Sample
from rdmatensor.ps.modes import name_of
from rdmatensor.ps.spec import Shape, TableSpec
from rdmatensor.state import PsPart, PsServerState

_PARTS = ("absent", "in", "parked", "left", "dead")  # as RDT_PS_PART_*
KINDS: dict[str, tuple[Literal["counter", "gauge"], str]] = {
    "requests": ("counter", "requests of workers"),
    "replays": ("counter", "requests that had been carried out before"),
    "refused": ("counter", "requests answered with an error"),
    "pushed_rows": ("counter", "rows that workers pushed"),
    "pulled_rows": ("counter", "rows sent to workers; those that they read in place do not count"),
    "applied_rows": ("counter", "rows that a rule changed"),
    "ticks": ("counter", "ends of workers' steps"),
    "rounds": ("counter", "steps of all workers, in sync"),
    "rows_bytes": ("gauge", "values of tables"),
    "state_bytes": ("gauge", "state of the rules"),
    "staged_bytes": ("gauge", "pushed and not applied yet"),
    "apply_s": ("counter", "time spent in applying"),
    "workers_in": ("gauge", "workers that take part"),
    "workers_dead": ("counter", "workers that died"),
    "queued": ("gauge", "requests that have come and are not begun"),
    "switches": ("counter", "workers that read from this backup, as its server is lost"),
}


def numbers_of(server: CData) -> dict[str, object]:
    """Return the counters of a server, with times in seconds."""
    struct = ffi.new("struct rdt_ps_server_counters *")
    struct.struct_size = ffi.sizeof("struct rdt_ps_server_counters")
    lib.rdt_ps_server_counters(server, struct)
    found: dict[str, object] = {}
    for name, _ in ffi.typeof(struct[0]).fields:
        value = getattr(struct, name)
        if name.endswith("_ns"):
            found[name.removesuffix("_ns") + "_s"] = value / 1e9
        elif name not in ("struct_size", "tables"):
            found[name] = value if isinstance(value, int) else list(value)
    return found


def parts_of(server: CData, workers: int) -> list[PsPart]:
    """Return each worker as the server sees it."""
    return [_part(server, worker) for worker in range(workers)]


def _part(server: CData, worker: int) -> PsPart:
    struct, err = ffi.new("struct rdt_ps_part *"), new_error()
    struct.struct_size = ffi.sizeof("struct rdt_ps_part")
    check(lib.rdt_ps_server_part(server, worker, struct, err), "describe", err)
    return {
        "worker": worker,
        "state": cast("Literal['absent', 'in', 'parked', 'left', 'dead']", _PARTS[struct.part]),
        "is_waiting": bool(struct.is_waiting),
        "clock": struct.clock,
        "requests": struct.requests,
        "staged_bytes": struct.staged_bytes,
        "quiet_s": struct.quiet_ns / 1e9,
    }


def held_by(mode: str, parts: Sequence[PsPart]) -> list[int]:
    """Return the workers that others wait for; none if no worker waits.

    In "sync" these are all that have not ended the step, else the slowest of them.
    """
    busy = [one for one in parts if one["state"] in ("absent", "in") and not one["is_waiting"]]
    if not busy or not any(one["is_waiting"] for one in parts):
        return []
    least = min(one["clock"] for one in busy)
    return [one["worker"] for one in busy if mode == "sync" or one["clock"] == least]


def state_of(
    server: CData,
    context: Context,
    shape: Shape,
    index: int,
    tables: Mapping[str, Mapping[str, object]],
) -> PsServerState:
    """Return the state of a server."""
    mode, parts = name_of(shape.mode), parts_of(server, shape.workers)
    job = context.notes.get("job")
    state = {
        "job": job["id"] if isinstance(job, dict) else "",
        "server": index,
        "pid": os.getpid(),
        "mode": mode,
        **numbers_of(server),
        "workers": parts,
        "held_by": held_by(mode, parts),
        "tables": tables,
        "counters": asdict(context.counters()),
    }
    return cast("PsServerState", state)


def table_state(server: CData, spec: TableSpec, number: object) -> dict[str, object]:
    """Return what a table is, and how full one of keys, or one with a file, is on a server."""
    fixed = {"dim": spec.dim, "rows": spec.rows, "rule": spec.rule._spec()}
    if spec.keys == "dense" and not spec.spill:
        return fixed
    struct, err = ffi.new("struct rdt_ps_table_counters *"), new_error()
    struct.struct_size = ffi.sizeof("struct rdt_ps_table_counters")
    status = lib.rdt_ps_server_table_counters(server, number, struct, err)
    check(status, "describe", err)
    state = {name: getattr(struct, name) for name, _ in ffi.typeof(struct[0]).fields}
    del state["struct_size"]
    if spec.keys == "dense":
        state["rows"] = spec.rows
    return {
        **fixed,
        **state,
        "keys": spec.keys,
        "load": state["rows"] / max(1, state["capacity"]),
    }


def samples_of(server: CData, index: int, replica: str = "none") -> list[Sample]:
    """Return a server's metrics."""
    return samples_from(numbers_of(server), index, replica)


def samples_from(
    numbers: Mapping[str, object], index: int = 0, replica: str = "none"
) -> list[Sample]:
    """Return the metrics of a server with these numbers, which are those of numbers_of()."""
    labels, found = {"server": str(index)}, []
    if replica != "none":
        labels["replica"] = replica
    for name, value in numbers.items():
        if isinstance(value, int | float):
            kind, meaning = KINDS[name]
            full = f"ps_{name.removesuffix('_s')}_seconds" if name.endswith("_s") else f"ps_{name}"
            found.append(Sample(full, kind, meaning, value, labels))
    what = "ends of steps, by the ends of others' steps that their gradients could not know"
    found += [
        Sample("ps_staleness", "counter", what, count, {**labels, "steps": str(steps)})
        for steps, count in enumerate(cast("list[int]", numbers["staleness"]))
    ]
    return found
