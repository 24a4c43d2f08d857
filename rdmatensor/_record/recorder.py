"""The recorder's side in Python: names for what the backend recorded, and the plan of all ranks.

The backend records each group's operations on this rank only, and finds the step that repeats. An
optimizer's step marks the end of a step. describe() reports what was found. recorded(), which a
program calls on every rank, compares the ranks' recordings and makes one plan of them. Nothing else
here communicates with other ranks, and a step never raises.
"""

from __future__ import annotations

import weakref
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol, TypedDict, cast

import torch
from torch._C import _distributed_c10d as torch_c10d
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_post_hook

from graph_analysis import PlanError, RecordedOp, RecordedTensor, TransferPlan, record_plan
from graph_analysis.ir import Operation, Role, align_up
from graph_analysis.recording import (
    ANY_SOURCE,
    Recording,
    recorded_difference,
    recording_from_json,
    recording_to_json,
)
from rdmatensor._backend.groups import BackendPart
from rdmatensor.errors import PlanMismatch

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
_ALIGNMENT_BYTES = 64  # of members of a bucket of rdmatensor.plan


class Recorded(TypedDict, total=False):
    """One group's part of describe(): see rdmatensor.distributed.describe()."""

    state: str
    reason: str
    changes: int
    operations: int
    bytes: int
    steps: int
    moved: int
    per_step: dict[str, float]


class PackedBuffers(Protocol):
    """The part of a plan's buffers that is used here."""

    def packed(self) -> dict[int, tuple[RecordedTensor, ...]]:
        """Return what is sent packed, by the address from which it is sent."""


@dataclass(frozen=True, slots=True)
class _Known:
    """A module, and the object that sends its buffers by a plan; either may be gone."""

    module: weakref.ref[torch.nn.Module]
    buffers: weakref.ref[PackedBuffers] | None


@dataclass(slots=True)
class _Process:
    asked: dict[int, int] = field(default_factory=dict)  # calls of recorded(), by group
    # In order of creation, which is the same on all ranks: the first module gives the name.
    modules: list[_Known] = field(default_factory=list)
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


def know(module: torch.nn.Module, buffers: PackedBuffers | None = None) -> None:
    """Take names for tensors from a module, for as long as it lives.

    buffers: packs its buffers before it sends them, unless DDP does.
    """
    _process.modules = [known for known in _process.modules if known.module() is not None]
    sent = None if buffers is None else weakref.ref(buffers)
    _process.modules.append(_Known(weakref.ref(module), sent))


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
    """Return the plan of all ranks' recordings; PlanMismatch names the first difference.

    PlanError: a text is not a recording, or the steps are not parts of one.
    """
    read = {text: recording_from_json(text) for text in dict.fromkeys(texts)}  # equal texts once
    recordings = [read[text] for text in texts]
    why = recorded_difference(recordings)
    if why is not None:
        raise PlanMismatch(f"the ranks recorded different steps: {why}")
    return record_plan(recordings)


def describe(backend: BackendPart) -> Recorded:
    """Return what is known of a group's step."""
    report = backend.recorded()
    found = Recorded(state=report["state"], reason=report["reason"], changes=report["changes"])
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
    """The tensors of the known modules, by address and, for DDP's buffers, by size."""

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
        """Return the tensors at this address, if with a bucket's gaps they fill the bytes."""
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

    Those are the tensors that DDP knows: a module that has assigned a new tensor since has another.
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
