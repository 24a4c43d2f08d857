"""The recorder's side in Python: names for what the backend saw, and the ranks' agreement on it.

The backend watches each group's operations and finds the step that repeats. Here an optimizer's
step is told to it as a step's end, what it found is put into graph_analysis's words, with the names
that the modules have for their tensors, and compared among the ranks by their store: without a
wait, because a rank whose steps do not repeat has nothing to compare.
"""

from __future__ import annotations

import weakref
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypedDict, cast

import torch
from torch._C import _distributed_c10d as torch_c10d
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_post_hook

from graph_analysis import (
    PlanError,
    RecordedOp,
    RecordedTensor,
    TransferPlan,
    merge_plans,
    missing_from,
    plan_from_json,
    record_plan,
)
from graph_analysis.ir import Operation, Role, align_up
from graph_analysis.recording import (
    ANY_SOURCE,
    Recording,
    form_difference,
    recorded_difference,
    recording_from_json,
    recording_to_json,
)
from rdmatensor._plan_memory import PlanMismatch
from rdmatensor.distributed import BackendPart
from rdmatensor.errors import InvalidArgument

_SEND, _RECEIVE, _MARK = 101, 102, 100  # csrc/c10d/recorder.hpp
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
_ALIGNMENT_BYTES = 64  # of members of a bucket of rdmatensor.plan
_ASKS = 64  # steps in which the other ranks' recordings are looked for; then they have none


class Recorded(TypedDict, total=False):
    """One group's part of describe(): see rdmatensor.distributed.describe()."""

    state: str
    reason: str
    changes: int
    compared: str
    known_from: dict[str, int]
    operations: int
    bytes: int
    steps: int
    moved: int
    per_step: dict[str, float]


@dataclass(slots=True)
class _Watch:
    """One group: the cycle that is compared, by the step that found it, and how that ended."""

    cycle: int = 0
    mine: Recording = ()
    asks_left: int = 0
    compared: str = "no"
    plan: TransferPlan | None = None


@dataclass(slots=True)
class _Process:
    watches: dict[int, _Watch] = field(default_factory=dict)
    asked: dict[int, int] = field(default_factory=dict)  # calls of recorded(), by group
    # In the order in which they were made, which is the same on all ranks: the first has the name.
    modules: list[weakref.ref[torch.nn.Module]] = field(default_factory=list)
    has_hook: bool = False
    graph_plan: TransferPlan | None = None
    module: Any = None  # rdmatensor._c10d


_process = _Process()


# ---- set-up --------------------------------------------------------------------------------------


def is_wanted(setting: str) -> bool:
    """Whether RDMATENSOR_PLAN says that anything is recorded; a plan's file is read and checked."""
    if setting == "off":
        return False
    if setting != "auto" and _process.graph_plan is None:
        try:
            _process.graph_plan = plan_from_json(Path(setting).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, PlanError) as error:
            raise InvalidArgument(
                "RDT_EINVAL",
                "settings",
                f"RDMATENSOR_PLAN={setting!r} is neither auto nor off, and no plan: {error}; "
                "`python -m graph_analysis MODULE:FACTORY -o FILE` writes one",
            ) from error
    return True


def watch(module: Any, backend: BackendPart) -> None:  # noqa: ANN401 - the extension
    """Follow a group that is recorded from here on."""
    _process.module = module
    for number in [n for n in _process.watches if module.find_group(n) is None]:
        del _process.watches[number]
    _process.watches[backend.number] = _Watch()
    if not _process.has_hook:
        register_optimizer_step_post_hook(_after_optimizer)
        _process.has_hook = True


def know(module: torch.nn.Module) -> None:
    """Take names for tensors from a module, as long as it lives."""
    _process.modules = [known for known in _process.modules if known() is not None]
    _process.modules.append(weakref.ref(module))


# ---- steps ---------------------------------------------------------------------------------------


def _after_optimizer(*_: object) -> None:
    if torch.compiler.is_compiling():
        return
    for number in _process.module.mark_step():
        _begin_to_compare(number)
    for number, followed in list(_process.watches.items()):
        if followed.asks_left > 0:
            _compare(number, followed)


def _begin_to_compare(number: int) -> None:
    backend, followed = _process.module.find_group(number), _process.watches.get(number)
    if backend is None or followed is None:
        return
    report = backend.recorded()
    if "cycle" not in report:
        return
    followed.cycle, followed.plan = report["number"], None
    followed.mine = recording_of(report["cycle"], backend)
    followed.asks_left, followed.compared = _ASKS, "not yet"
    try:
        backend.post(f"recording {followed.cycle}", recording_to_json(followed.mine))
    except RuntimeError as error:  # the store: its kinds raise different ones
        followed.asks_left, followed.compared = 0, f"no: {error}"


def _compare(number: int, followed: _Watch) -> None:
    backend = _process.module.find_group(number)
    followed.asks_left -= 1
    if backend is None or backend.get_error() != torch_c10d.ErrorType.SUCCESS:
        followed.asks_left, followed.compared = 0, "no: the group has ended"
        return
    try:
        texts = backend.posted(f"recording {followed.cycle}")
    except (RuntimeError, UnicodeDecodeError) as error:  # the store has gone with rank 0; no text
        followed.asks_left, followed.compared = 0, f"no: {error}"
        return
    if not texts:
        if followed.asks_left == 0:
            followed.compared = "no: not every rank's steps repeat"
        return
    followed.asks_left = 0
    try:
        recordings = [recording_from_json(text) for text in texts]
        why = form_difference(recordings) or _difference_of_names(recordings)
        if why is not None:  # each rank may well be right
            followed.compared = f"no: {why}"
            return
        followed.plan = _agreed(recordings)
    except PlanMismatch as error:
        backend.break_group(f"ends the group: {error}")  # the others wait for us, and shall know
        raise
    except PlanError as error:  # damaged words of a peer, or a step that no plan can say
        followed.compared = f"no: {error}"
        return
    followed.compared = "yes"


def _difference_of_names(recordings: list[Recording]) -> str | None:
    """Return what differs where only names do, unless the ranks sent one set in other orders.

    Memory that is used again may bear an old name, on one rank and not on the other; then the names
    are not the same ones.
    """
    bare = [tuple(replace(op, tensors=()) for op in recording) for recording in recordings]
    names = [sorted(t.name for op in recording for t in op.tensors) for recording in recordings]
    if recorded_difference(bare) is not None or all(other == names[0] for other in names):
        return None
    return recorded_difference(recordings)


def _agreed(recordings: list[Recording]) -> TransferPlan:
    """Return the plan of all ranks; PlanMismatch names the first tensor that differs."""
    why = recorded_difference(recordings)
    if why is not None:
        raise PlanMismatch(f"the ranks recorded different steps: {why}")
    plan = record_plan(recordings)
    planned = _process.graph_plan
    if planned is None or not _is_about(planned, plan):
        return plan
    why = missing_from(plan, planned)
    if why is None:
        try:
            return plan if planned.source == "recorded" else merge_plans(planned, plan)
        except PlanError as error:
            why = str(error)
    raise PlanMismatch(f"the step is not the one that RDMATENSOR_PLAN plans: {why}")


def _is_about(planned: TransferPlan, plan: TransferPlan) -> bool:
    """Whether the file's plan is for this group; a job has others, of metrics for example."""
    of_model = {t.name for t in planned.tensors if t.role in ("parameter", "gradient", "buffer")}
    named = of_model or {t.name for t in planned.tensors}  # the latter are numbers, as others have
    is_named = any(tensor.name in named for tensor in plan.tensors)
    return planned.strategy.world_size == plan.strategy.world_size and is_named


def recorded(backend: BackendPart) -> TransferPlan | None:
    """Compare with all ranks now; None if on one of them nothing repeats."""
    cycle = backend.recorded().get("cycle")
    mine = "" if cycle is None else recording_to_json(recording_of(cycle, backend))
    asked = _process.asked[backend.number] = _process.asked.get(backend.number, 0) + 1
    try:
        texts = backend.everyone(f"recorded {asked}", mine)
    except UnicodeDecodeError as error:
        raise PlanError(f"not a recording: {error}") from error
    return _agreed([recording_from_json(text) for text in texts]) if all(texts) else None


def describe(backend: BackendPart) -> Recorded:
    """Return what is known of a group's step."""
    report = backend.recorded()
    followed = _process.watches.get(backend.number, _Watch())
    found = Recorded(state=report["state"], reason=report["reason"], changes=report["changes"])
    if "cycle" not in report:
        return found
    cycle, steps = report["cycle"], report["cycles"]
    is_same = followed.cycle == report["number"]
    found["compared"] = followed.compared if is_same else "no"
    if is_same and followed.plan is not None and followed.plan.source == "merged":
        crossings = [c for c in followed.plan.crossings if c.phase != "setup"]
        found["known_from"] = dict(Counter[str](c.source for c in crossings))
    found["operations"] = sum(entry[0] != _MARK for entry in cycle)
    found["bytes"] = sum(entry[5] for entry in cycle)
    found["steps"], found["moved"] = steps, report["moved"]
    spent = report["spent"]
    found["per_step"] = {name: spent[name] / steps for name in spent} if steps else {}
    return found


# ---- what was seen, in graph_analysis's words ----------------------------------------------------


def recording_of(cycle: list[tuple[Any, ...]], backend: BackendPart) -> Recording:
    """Return a cycle of the backend's recorder as graph_analysis knows it, with names."""
    known = _Names()
    return tuple(
        _operation(entry, backend, known) for entry in cycle if entry[0] not in (_MARK, _BARRIER)
    )


def _operation(entry: tuple[Any, ...], backend: BackendPart, known: _Names) -> RecordedOp:
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
        dtype=_name(dtype),
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


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


class _Names:
    """The tensors of the modules that are known, by address and, for DDP's buffers, by size."""

    def __init__(self) -> None:
        self._by_address: dict[int, tuple[RecordedTensor, int]] = {}
        self._buffers: list[tuple[RecordedTensor, ...]] = []
        for known in _process.modules:
            module = known()
            if module is not None:
                self._take(module)
        self._addresses = sorted(self._by_address)

    def _take(self, module: torch.nn.Module) -> None:
        inner = module.module if isinstance(module, DistributedDataParallel) else module
        for name, parameter in inner.named_parameters():
            self._add(name, "parameter", parameter, None)
            if parameter.grad is not None and parameter.grad.device.type == "cpu":
                self._add(f"{name}.grad", "gradient", parameter.grad, name)
        for name, buffer in inner.named_buffers():
            self._add(name, "buffer", buffer, None)
        if isinstance(module, DistributedDataParallel) and _sends_buffers(module):
            self._buffers += _flattened(module)

    def _add(self, name: str, role: Role, tensor: torch.Tensor, of: str | None) -> None:
        if tensor.layout == torch.strided and tensor.nbytes > 0:
            entry = (_tensor(name, role, tensor, of), tensor.nbytes)
            self._by_address.setdefault(tensor.data_ptr(), entry)

    def at(self, address: int, size_bytes: int, dtype: torch.dtype) -> tuple[RecordedTensor, ...]:
        """Return what lies there, if together with the gaps of a bucket it is all that does."""
        found, end = [], address
        first = bisect_left(self._addresses, address)
        for start in self._addresses[first : bisect_left(self._addresses, address + size_bytes)]:
            tensor, nbytes = self._by_address[start]
            if not end <= start < end + _ALIGNMENT_BYTES or tensor.dtype != _name(dtype):
                return ()
            end = start + nbytes
            found.append(tensor)
        is_whole = size_bytes in (end - address, align_up(end - address, _ALIGNMENT_BYTES))
        return tuple(found) if is_whole else ()

    def next_buffers(
        self, operation: str, dtype: torch.dtype, size_bytes: int
    ) -> tuple[RecordedTensor, ...]:
        """Return the buffers that DDP sends next, if they are of this size; each is sent once."""
        if operation != "broadcast" or not self._buffers:
            return ()
        first = self._buffers[0]
        same = all(tensor.dtype == _name(dtype) for tensor in first)
        if not same or sum(tensor.size_bytes for tensor in first) != size_bytes:
            return ()
        return self._buffers.pop(0)


def _tensor(name: str, role: Role, tensor: torch.Tensor, of: str | None) -> RecordedTensor:
    return RecordedTensor(
        name=name,
        role=role,
        dtype=_name(tensor.dtype),
        item_bytes=tensor.element_size(),
        shape=tuple(tensor.shape),
        of=of,
    )


def _sends_buffers(module: DistributedDataParallel) -> bool:
    return bool(module.will_sync_module_buffers())  # type: ignore[no-untyped-call]


def _flattened(module: DistributedDataParallel) -> Iterable[tuple[RecordedTensor, ...]]:
    """Return what DDP packs into one tensor each before it broadcasts its buffers.

    Those that DDP knows: a module that has assigned a new tensor since has another.
    """
    named = cast("dict[str, torch.Tensor]", module.named_module_buffers)
    names, buffers = list(named), list(named.values())
    if not buffers:
        return []
    limit = int(module.broadcast_bucket_size)
    packed, _ = torch_c10d._compute_bucket_assignment_by_size(buffers, [limit])
    return [
        tuple(_tensor(names[i], "buffer", buffers[i], None) for i in indices) for indices in packed
    ]
