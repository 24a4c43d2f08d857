"""The recorder's side in Python: what the backend recorded, and the plan of all ranks.

The backend records each group's operations on this rank only, and finds the step that repeats. An
optimizer's step marks the end of a step. describe() reports what was found. recorded(), which a
program calls on every rank, compares the ranks' recordings and makes one plan of them. Nothing else
here communicates with other ranks, and a step never raises.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from graph_analysis import PlanError, RecordedOp, RecordedTensor, TransferPlan, record_plan
from graph_analysis.ir import Operation
from graph_analysis.recording import (
    ANY_SOURCE,
    Recording,
    recorded_difference,
    recording_from_json,
    recording_to_json,
)
from rdmatensor._backend.groups import BackendPart
from rdmatensor._record.names import Names, name_of
from rdmatensor.errors import PlanMismatchError
from rdmatensor.state import RecordedState

_SEND, _RECEIVE, _MARK = 101, 102, 100  # csrc/c10d/record/recorder.hpp
_ANY = 0xFFFFFFFF
_BARRIER = 9
_OPERATIONS: dict[int, Operation] = {  # RDT_COLL_*
    1: "broadcast",
    2: "all_reduce",
    3: "reduce",
    4: "all_gather",
    5: "reduce_scatter",
    6: "gather",
    7: "scatter",
    8: "all_to_all",
}
_ROOTED = ("broadcast", "reduce", "gather", "scatter")


@dataclass(slots=True)
class _Process:
    asked: dict[int, int] = field(default_factory=dict)  # calls of recorded(), by group
    has_hook: bool = False


_process = _Process()


def mark_steps(module: Any) -> None:  # noqa: ANN401 - the extension
    """Make every optimizer's step mark the end of a step for the recorders, once in a process."""
    if _process.has_hook:
        return

    def mark(*_: object) -> None:
        if not torch.compiler.is_compiling():
            module.mark_step()

    register_optimizer_step_post_hook(mark)
    _process.has_hook = True


def recorded(backend: BackendPart) -> TransferPlan | None:
    """Compare with all ranks now; None if nothing repeats on one of them."""
    cycle = backend.recorded().get("cycle")
    mine = "" if cycle is None else recording_to_json(recording_of(cycle, backend))
    asked = _process.asked[backend.number] = _process.asked.get(backend.number, 0) + 1
    try:
        texts = backend.everyone(f"recorded {asked}", mine)
    except UnicodeDecodeError as error:
        raise PlanError(f"not a recording: {error}") from error
    return plan_of(texts) if all(texts) else None


def plan_of(texts: list[str]) -> TransferPlan:
    """Return the plan of all ranks' recordings; PlanMismatchError names the first difference.

    PlanError: a text is not a recording, or the steps are not parts of one.
    """
    read = {text: recording_from_json(text) for text in dict.fromkeys(texts)}  # equal texts once
    recordings = [read[text] for text in texts]
    why = recorded_difference(recordings)
    if why is not None:
        raise PlanMismatchError(f"the ranks recorded different steps: {why}")
    return record_plan(recordings)


def describe(backend: BackendPart) -> RecordedState:
    """Return what is known of a group's step."""
    report = backend.recorded()
    found = RecordedState(state=report["state"], reason=report["reason"], changes=report["changes"])
    if "cycle" not in report:
        return found
    cycle, steps = report["cycle"], report["cycles"]
    found["operations"] = sum(entry[0] != _MARK for entry in cycle)
    found["bytes"] = sum(entry[5] for entry in cycle)
    found["steps"], found["moved"] = steps, report["moved"]
    spent = report["spent"]
    found["per_step"] = {name: spent[name] / steps for name in spent} if steps else {}
    return found


# ---- what was recorded, as values of graph_analysis ----------------------------------------------


def recording_of(cycle: list[tuple[Any, ...]], backend: BackendPart) -> Recording:
    """Return a cycle of the backend's recorder as a Recording of graph_analysis, with names."""
    known = Names()
    return tuple(
        _operation(entry, backend, known) for entry in cycle if entry[0] not in (_MARK, _BARRIER)
    )


def _operation(entry: tuple[Any, ...], backend: BackendPart, known: Names) -> RecordedOp:
    kind, dtype, reduce_op, other, tag, size_bytes, out_bytes, address, is_fixed = entry
    operation = _OPERATIONS.get(kind, "send")
    root: int | None = other if operation in _ROOTED else None
    peer: int | None = None
    if kind == _SEND:
        root, peer = backend.rank(), other
    elif kind == _RECEIVE:
        root, peer = (ANY_SOURCE if other == _ANY else other), backend.rank()
    tensors: tuple[RecordedTensor, ...] = ()
    if kind in _OPERATIONS:
        tensors = known.at(address, size_bytes, dtype)
        tensors = tensors or known.next_buffers(operation, dtype, size_bytes)
    return RecordedOp(
        operation=operation,
        dtype=name_of(dtype),
        item_bytes=dtype.itemsize,
        size_bytes=size_bytes,
        out_bytes=out_bytes,
        reduce_op=reduce_op,
        root=root,
        peer=peer,
        tag=tag,
        is_fixed=is_fixed,
        tensors=tensors,
    )
