"""The recorder's side in Python: names for what the backend saw, and the ranks' agreement on it.

The backend watches each group's operations and finds the step that repeats. Here an optimizer's
step is told to it as a step's end, what it found is put into graph_analysis's words, with the names
that the modules have for their tensors, and compared among the ranks by their store: without a
wait, because a rank whose steps do not repeat has nothing to compare.
"""

from __future__ import annotations

import hashlib
import json
import weakref
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypedDict, cast

import torch
from torch._C import _distributed_c10d as torch_c10d
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_post_hook

from graph_analysis import PlanError, RecordedOp, RecordedTensor, TransferPlan, plan_from_json
from graph_analysis.ir import Operation, Role, align_up
from graph_analysis.recording import ANY_SOURCE, Recording, recording_to_json
from rdmatensor._plan_buffers import SentBuffers
from rdmatensor._plan_memory import PlanMismatch
from rdmatensor._record_agree import agreed, recordings_of, settled
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
    """One group: the cycle that is compared, by the step that found it, and how that ended.

    A step comes back after another one, as after an evaluation. Where all ranks then leave the same
    texts as when it was compared last (known_as), the end is the same too (known).
    """

    cycle: int = 0
    mine: Recording = ()
    text: str = ""
    asks_left: int = 0
    compared: str = "no"
    plan: TransferPlan | None = None
    known_as: tuple[bytes, TransferPlan | None] = (b"", None)
    known: tuple[str, TransferPlan | None] = ("no", None)


@dataclass(frozen=True, slots=True)
class _Known:
    """A module, and what sends its buffers by a plan; either may be gone."""

    module: weakref.ref[torch.nn.Module]
    buffers: weakref.ref[SentBuffers] | None


@dataclass(slots=True)
class _Process:
    watches: dict[int, _Watch] = field(default_factory=dict)
    asked: dict[int, int] = field(default_factory=dict)  # calls of recorded(), by group
    # In the order in which they were made, which is the same on all ranks: the first has the name.
    modules: list[_Known] = field(default_factory=list)
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


def graph_plan() -> TransferPlan | None:
    """Return the plan of RDMATENSOR_PLAN, if that is a file."""
    return _process.graph_plan


def watch(module: Any, backend: BackendPart) -> None:  # noqa: ANN401 - the extension
    """Follow a group that is recorded from here on."""
    _process.module = module
    for number in [n for n in _process.watches if module.find_group(n) is None]:
        del _process.watches[number]
    _process.watches[backend.number] = _Watch()
    if not _process.has_hook:
        register_optimizer_step_post_hook(_after_optimizer)
        _process.has_hook = True


def know(module: torch.nn.Module, buffers: SentBuffers | None = None) -> None:
    """Take names for tensors from a module, as long as it lives.

    buffers: what packs its buffers before it sends them, if that is not DDP.
    """
    _process.modules = [known for known in _process.modules if known.module() is not None]
    sent = None if buffers is None else weakref.ref(buffers)
    _process.modules.append(_Known(weakref.ref(module), sent))


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
    mine = recording_of(report["cycle"], backend)
    if mine != followed.mine or not followed.text:
        followed.mine, followed.text = mine, recording_to_json(mine)
    followed.asks_left, followed.compared = _ASKS, "not yet"
    try:
        backend.post(f"recording {followed.cycle}", followed.text)
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
    # A digest: the texts of many ranks would be megabytes for as long as the group lives.
    known_as = (hashlib.sha256(json.dumps(texts).encode()).digest(), _process.graph_plan)
    if known_as != followed.known_as:
        try:
            followed.known = settled(texts, _process.graph_plan)
        except PlanMismatch as error:
            backend.break_group(f"ends the group: {error}")  # the others wait, and shall know
            raise
        followed.known_as = known_as
    followed.compared, followed.plan = followed.known


def recorded(backend: BackendPart) -> TransferPlan | None:
    """Compare with all ranks now; None if on one of them nothing repeats."""
    cycle = backend.recorded().get("cycle")
    mine = "" if cycle is None else recording_to_json(recording_of(cycle, backend))
    asked = _process.asked[backend.number] = _process.asked.get(backend.number, 0) + 1
    try:
        texts = backend.everyone(f"recorded {asked}", mine)
    except UnicodeDecodeError as error:
        raise PlanError(f"not a recording: {error}") from error
    if not all(texts):
        return None
    found: TransferPlan | None = None
    refusal: ValueError | RuntimeError | None = None
    try:
        recordings = recordings_of(texts)
        found = agreed(recordings, _process.graph_plan)
    except (PlanMismatch, PlanError) as error:
        refusal = error
    # Each rank has merged with its own file, and may have found that it does not fit.
    mark = "" if found is None else found.fingerprint()
    marks = backend.everyone(f"recorded {asked}, merged", mark)
    if refusal is not None:
        raise refusal
    other = next((rank for rank, one in enumerate(marks) if one != mark), None)
    if other is not None:
        raise PlanMismatch(
            f"RDMATENSOR_PLAN of rank {other} is another plan than this rank's, or only one has it"
        )
    return found


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
        self._packed: dict[int, tuple[RecordedTensor, ...]] = {}
        for known in _process.modules:
            module = known.module()
            if module is not None:
                self._take(module)
            sent = known.buffers() if known.buffers is not None else None
            if sent is not None:
                self._packed |= sent.packed()
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
        packed = self._packed.get(address, ())
        if packed and sum(tensor.size_bytes for tensor in packed) == size_bytes:
            return packed
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
