"""The data of operations: what a torch process group does for each of them."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as torch_c10d
from torch.distributed import ProcessGroup

from rdmatensor.horovod._bundle import Bundle, is_small
from rdmatensor.horovod._entry import (
    AVERAGE,
    MAX,
    MIN,
    PRODUCT,
    SUM,
    Entry,
    Mode,
    Signature,
)

_REDUCE_OPS = {
    SUM: dist.ReduceOp.SUM,
    AVERAGE: dist.ReduceOp.AVG,
    MIN: dist.ReduceOp.MIN,
    MAX: dist.ReduceOp.MAX,
    PRODUCT: dist.ReduceOp.PRODUCT,
}


@dataclass(slots=True, eq=False)
class Run:
    """Operations whose data is in flight."""

    entries: list[Entry]
    works: list[torch_c10d.Work]
    size: int
    position: int = -1  # in a fast lane
    lane: Any = None  # _lane.Lane
    bundle: Bundle | None = None
    flat: torch.Tensor | None = None  # what is reduced: the operations' outputs are parts of it
    extra: Any = None
    is_finished: bool = False
    is_void: bool = False  # members have left the lane in it: its sums are not complete

    def wait(self) -> None:
        """Wait for the data; RuntimeError as torch raises it."""
        for work in self.works:
            work.wait()

    def is_ready(self) -> bool:
        """Return whether wait() would not wait."""
        return all(work.is_completed() for work in self.works)

    def unpack(self) -> None:
        """Bring what was sent in a bundle to its place; the data is there."""
        if self.bundle is not None:
            self.bundle.unpack()

    def finish(self) -> None:
        """Set the results; the data is there."""
        self.is_finished = True
        if self.flat is not None:
            self._finish_flat(self.flat)
            return
        self.unpack()
        for entry in self.entries:
            if entry.is_done:  # it has failed
                continue
            _FINISH.get(entry.kind, _finish_plain)(entry, self)

    def _finish_flat(self, flat: torch.Tensor) -> None:
        finish_outputs([flat], self.entries[0].signature, self.size)
        for entry in self.entries:
            if not entry.is_done:
                entry.finish(None)


# ---- allreduce ---------------------------------------------------------------------------------


def start_allreduce(
    group: ProcessGroup,
    parts: list[Entry | Signature],
    *,
    is_zero: bool = False,
    bundle: Bundle | None = None,
    has_bundle: bool = False,
    is_whole: bool = False,
) -> Run:
    """Start the allreduce of operations that have one dtype and one op.

    A part without an entry of this rank is a signature: it contributes a neutral element, or zeros.
    has_bundle: small tensors travel as one, on all ranks; in that bundle, or in a new one.
    is_whole: large ones, too.
    """
    tensors: list[torch.Tensor] = []
    entries = []
    for part in parts:
        if isinstance(part, Entry):
            entries.append(part)
            tensors += _prepared(part, group)
        else:
            tensors += _without_contribution(part, is_zero)
    first = parts[0]
    signature = first.signature if isinstance(first, Entry) else first
    sent = tensors
    if has_bundle:
        small = [tensor for tensor in tensors if is_whole or is_small(tensor)]
        large = [tensor for tensor in tensors if not (is_whole or is_small(tensor))]
        bundle = Bundle(small) if bundle is None else bundle
        bundle.pack(small)
        sent = [bundle.flat, *large]
    return Run(entries, [_reduce(group, sent, signature)], group.size(), bundle=bundle)


def start_flat(group: ProcessGroup, entries: list[Entry], flat: torch.Tensor) -> Run:
    """Start the allreduce of a tensor of which the operations' inputs and outputs are parts."""
    signature = entries[0].signature
    if signature["prescale"] != 1.0:
        _scale(flat, signature["prescale"])
    return Run(entries, [_reduce(group, [flat], signature)], group.size(), flat=flat)


def reducer_at_once(
    group: ProcessGroup, signature: Signature
) -> Callable[[torch.Tensor], torch_c10d.Work | None]:
    """Return a function that reduces a tensor in place; it returns a Work if that takes longer.

    It calls the backend without torch's dispatcher, and the caller waits inside.
    """
    part: Any = group._get_backend(torch.device("cpu"))
    allreduce = getattr(part, "wrapped_pg", part).allreduce  # under TORCH_DISTRIBUTED_DEBUG
    options = _options(_reduce_op(signature, group.size()))[2]
    prescale = signature["prescale"]

    def reduce(output: torch.Tensor) -> torch_c10d.Work | None:
        if prescale != 1.0:
            _scale(output, prescale)
        work: torch_c10d.Work | None = allreduce([output], options)
        return work

    return reduce


def _without_contribution(signature: Signature, is_zero: bool) -> list[torch.Tensor]:
    return [
        torch.full(shape, 0 if is_zero else _neutral(signature["op"], dtype), dtype=dtype)
        for shape, dtype in zip(signature["shapes"], _dtypes(signature), strict=True)
    ]


def _reduce(
    group: ProcessGroup, tensors: list[torch.Tensor], signature: Signature
) -> torch_c10d.Work:
    plain, coalesced, _ = _options(_reduce_op(signature, group.size()))
    if len(tensors) == 1:
        return group.allreduce(tensors, plain)
    return group.allreduce_coalesced(tensors, coalesced)


@functools.cache
def _options(op: dist.ReduceOp.RedOpType) -> tuple[Any, Any, Any]:
    """Return those of an allreduce, of several, and of one that the caller waits for."""
    plain, coalesced = dist.AllreduceOptions(), dist.AllreduceCoalescedOptions()
    awaited = dist.AllreduceOptions()
    plain.reduceOp = coalesced.reduceOp = awaited.reduceOp = dist.ReduceOp(op)
    awaited.asyncOp = False
    return plain, coalesced, awaited


def _reduce_op(signature: Signature, size: int) -> dist.ReduceOp.RedOpType:
    """Return torch's: averages of floats are the backend's, unless a factor follows them."""
    op: int = signature["op"]
    if op == AVERAGE and not _is_backends_average(signature, size):
        op = SUM
    return _REDUCE_OPS[op]


has_average = True  # of the data path; Gloo, to which a benchmark compares, has none


def _is_backends_average(signature: Signature, size: int) -> bool:
    """Return whether the backend divides: where multiplying by the size undoes that exactly."""
    return (
        has_average
        and size & (size - 1) == 0
        and signature["op"] == AVERAGE
        and signature["postscale"] == 1.0
        and signature["dtypes"][0] in ("float32", "float64", "bfloat16", "float16")
    )


def _prepared(entry: Entry, group: ProcessGroup) -> list[torch.Tensor]:
    """Return the outputs with this rank's contribution in them."""
    signature = entry.signature
    if entry.mode == Mode.VOID:
        for output in entry.outputs:
            output.fill_(_neutral(signature["op"], output.dtype))
    elif entry.mode == Mode.CARRY:
        if _is_backends_average(signature, group.size()):
            for output in entry.outputs:
                output.mul_(group.size())
    else:
        for given, output in zip(entry.inputs, entry.outputs, strict=True):
            if given is not output:
                output.copy_(given)
            if signature["prescale"] != 1.0:
                _scale(output, signature["prescale"])
    return entry.outputs


def _neutral(op: int, dtype: torch.dtype) -> float | int | bool:
    """Return what changes nothing."""
    if op == PRODUCT:
        return 1
    if op not in (MIN, MAX):
        return 0
    if dtype == torch.bool:
        return op == MIN
    if dtype.is_floating_point:
        return float("inf") if op == MIN else float("-inf")
    return torch.iinfo(dtype).max if op == MIN else torch.iinfo(dtype).min


def _scale(tensor: torch.Tensor, factor: float) -> None:
    """Multiply: in the tensor's own dtype, or in float64 and cut if it holds integers."""
    if tensor.dtype.is_floating_point:
        tensor.mul_(factor)
    else:
        tensor.copy_(tensor.double().mul_(factor))


def _finish_reduced(entry: Entry, run: Run) -> None:
    finish_outputs(entry.outputs, entry.signature, run.size)
    entry.finish(entry.outputs if entry.is_list else entry.outputs[0])


def finish_outputs(outputs: list[torch.Tensor], signature: Signature, size: int) -> None:
    """Make averages of sums, and multiply by the second factor."""
    factor = signature["postscale"]
    if signature["op"] == AVERAGE and not _is_backends_average(signature, size):
        for output in outputs:
            if factor != 1.0:
                _scale(output, factor / size)
            elif output.dtype.is_floating_point:
                output.div_(size)
            else:
                output.copy_(output.div(size, rounding_mode="trunc"))
    elif factor != 1.0:
        for output in outputs:
            _scale(output, factor)


# ---- the others --------------------------------------------------------------------------------


def start_broadcast(group: ProcessGroup, entry: Entry, root: int) -> Run:
    """Start a broadcast; root is the rank in the group."""
    output = entry.outputs[0]
    if group.rank() == root and entry.inputs[0] is not output:
        output.copy_(entry.inputs[0])
    options = dist.BroadcastOptions()
    options.rootRank, options.rootTensor = root, 0
    return Run([entry], [group.broadcast([output], options)], group.size())


def start_allgather(group: ProcessGroup, entry: Entry, rows: list[list[int]]) -> Run:
    """Start an allgather; rows: of each tensor on each member."""
    works = []
    entry.outputs = []
    for given, each in zip(entry.inputs, rows, strict=True):
        output = given.new_empty((sum(each), *given.shape[1:]))
        entry.outputs.append(output)
        if output.numel() == 0:
            continue
        if len(set(each)) == 1:
            works.append(group._allgather_base(output, given, torch_c10d.AllgatherOptions()))
        else:
            works.append(_exchange(group, list(torch.split(output, each)), [given] * len(each)))
    return Run([entry], works, group.size())


def _exchange(
    group: ProcessGroup, received: list[torch.Tensor], sent: list[torch.Tensor]
) -> torch_c10d.Work:
    return group.alltoall(received, sent, dist.AllToAllOptions())


def start_alltoall(group: ProcessGroup, entry: Entry, splits: list[list[int]]) -> Run:
    """Start an alltoall; splits: rows that each member sends to each."""
    own = group.rank()
    given = entry.inputs[0]
    received = [sent[own] for sent in splits]
    output = given.new_empty((sum(received), *given.shape[1:]))
    entry.outputs = [output]
    works = []
    if math.prod(given.shape[1:]) and any(map(sum, splits)):  # the same on all members
        works = [
            _exchange(
                group, list(torch.split(output, received)), list(torch.split(given, splits[own]))
            )
        ]
    return Run([entry], works, group.size(), extra=received)


def start_reducescatter(group: ProcessGroup, entry: Entry) -> Run:
    """Start a reducescatter: an allreduce of a copy, of which each member keeps its rows."""
    copies = [tensor.clone() for tensor in entry.inputs]
    if entry.signature["prescale"] != 1.0:
        for copy in copies:
            _scale(copy, entry.signature["prescale"])
    entry.outputs = copies
    works = [_reduce(group, [copy], entry.signature) for copy in copies if copy.numel()]
    return Run([entry], works, group.size(), extra=group.rank())


def rows_of(rows: int, rank: int, size: int) -> tuple[int, int]:
    """Return the first row of a member and their number: earlier members get one more."""
    each, more = divmod(rows, size)
    return rank * each + min(rank, more), each + (rank < more)


def _finish_scattered(entry: Entry, run: Run) -> None:
    entry.outputs = [
        whole.narrow(0, *rows_of(whole.shape[0], run.extra, run.size)).clone()
        for whole in entry.outputs
    ]
    _finish_reduced(entry, run)


def _finish_alltoall(entry: Entry, run: Run) -> None:
    output = entry.outputs[0]
    counts = torch.tensor(run.extra, dtype=torch.int32)
    entry.finish((output, counts) if entry.has_splits else output)


def _finish_plain(entry: Entry, _run: Run) -> None:
    entry.finish(entry.outputs if entry.is_list else entry.outputs[0])


_FINISH = {
    "allreduce": _finish_reduced,
    "reducescatter": _finish_scattered,
    "alltoall": _finish_alltoall,
}


def _dtypes(signature: Signature) -> list[torch.dtype]:
    return [getattr(torch, name) for name in signature["dtypes"]]
