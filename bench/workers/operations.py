"""Operations of `bench collectives`: their tensors, what they promise, and who can run them.

Sizes are nccl-tests': of all_gather and gather what is there at the end, of reduce_scatter, scatter
and all_to_all what is there at the beginning. What has a root has rank 0. "send" is a ping-pong of
two ranks, of which one trip counts.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
import torch.distributed as dist

Call = Callable[[], object]
Make = Callable[[int], torch.Tensor]
ELEMENT_BYTES = 4
_IN_BLOCKS = ("reduce_scatter", "all_to_all", "scatter")  # each block of the input is another's


class Operation:
    """One operation on tensors of its own, and what it should deliver.

    Its elements: rank r begins with r + 1 everywhere, block b of what is in blocks with
    r + 1 + b * 100, all exact in float32. A tensor that a rank has no part in is empty.
    make: what gives a tensor of so many elements, in any state.
    """

    def __init__(
        self, name: str, size_bytes: int, rank: int, ranks: int, make: Make = torch.empty
    ) -> None:
        self.name, self.rank, self.ranks, self._make = name, rank, ranks, make
        elements = max(1, size_bytes // ELEMENT_BYTES)
        self.share = max(1, elements // ranks)
        self.whole = 0 if name == "barrier" else self.share * ranks
        self.trips = 2 if name == "send" else 1  # that one call makes
        self.renew()

    @property
    def size_bytes(self) -> int:
        """What nccl-tests calls the size: of whole blocks for each rank; 0 for a barrier."""
        return self.whole * ELEMENT_BYTES

    def renew(self) -> None:
        """Let go of the tensors, and take new ones."""
        share, whole = self.share, self.whole
        at_root = whole if self.rank == 0 else 0
        source, target = {
            "all_gather": (share, whole),
            "reduce_scatter": (whole, share),
            "all_to_all": (whole, whole),
            "gather": (share, at_root),
            "scatter": (at_root, share),
            "send": (whole, whole),
        }.get(self.name, (whole, 0))
        self.source = self.target = torch.empty(0)
        self.source, self.target = self._make(source), self._make(target)

    @property
    def written(self) -> torch.Tensor | None:
        """What this rank puts in."""
        has_input = self.source.numel() > 0 and (self.name != "broadcast" or self.rank == 0)
        return self.source if has_input else None

    @property
    def read(self) -> torch.Tensor | None:
        """What this rank gets out."""
        if self.name in ("all_reduce", "broadcast") or (self.name == "reduce" and self.rank == 0):
            return self.source
        return self.target if self.target.numel() > 0 else None

    def block(self, tensor: torch.Tensor, number: int) -> torch.Tensor:
        """Return a rank's share of a whole tensor."""
        return tensor[number * self.share : (number + 1) * self.share]

    def blocks(self, tensor: torch.Tensor) -> list[torch.Tensor] | None:
        """Return all shares at the root, which alone has them."""
        if self.rank != 0:
            return None
        return [self.block(tensor, number) for number in range(self.ranks)]

    def fill(self) -> None:
        """Before each compared call."""
        self.source.fill_(float(self.rank + 1))
        self.target.zero_()
        if self.name in _IN_BLOCKS and self.source.numel() > 0:
            for number in range(self.ranks):
                self.block(self.source, number).add_(100.0 * number)

    def clear(self) -> None:
        """Sums of zeros stay finite, however many calls there are."""
        self.source.zero_()
        self.target.zero_()

    def is_right(self) -> bool:
        """Whether the tensors are what the operation promises this rank."""
        found = self.read
        if found is None:
            return True
        total = float(self.ranks * (self.ranks + 1) // 2)
        of_all = {
            "all_reduce": total,
            "reduce": total,
            "broadcast": 1.0,
            "reduce_scatter": total + 100.0 * self.rank * self.ranks,
            "scatter": 1.0 + 100.0 * self.rank,
            "send": 2.0 - self.rank,  # what the other one has
        }
        if self.name in of_all:
            return bool((found == of_all[self.name]).all())
        offset = 100.0 * self.rank if self.name == "all_to_all" else 0.0
        return all(
            bool((self.block(found, number) == number + 1 + offset).all())
            for number in range(self.ranks)
        )


Group = dist.ProcessGroup


def _gather(one: Operation, group: Group) -> Call:
    source, blocks = one.source, one.blocks(one.target)
    return lambda: dist.gather(source, blocks, dst=0, group=group)


def _scatter(one: Operation, group: Group) -> Call:
    target, blocks = one.target, one.blocks(one.source)
    return lambda: dist.scatter(target, blocks, src=0, group=group)


def _send(one: Operation, group: Group) -> Call:
    source, target, other = one.source, one.target, 1 - one.rank

    def trip() -> None:
        if other == 1:
            dist.send(source, other, group=group)
        dist.recv(target, other, group=group)
        if other == 0:
            dist.send(source, other, group=group)

    return trip


def _in_place(call: Callable[..., object], **more: int) -> Callable[[Operation, Group], Call]:
    return lambda one, group: functools.partial(call, one.source, group=group, **more)


def _into(call: Callable[..., object]) -> Callable[[Operation, Group], Call]:
    return lambda one, group: functools.partial(call, one.target, one.source, group=group)


_THROUGH_TORCH: dict[str, Callable[[Operation, Group], Call]] = {
    "all_reduce": _in_place(dist.all_reduce),
    "all_gather": _into(dist.all_gather_into_tensor),
    "reduce_scatter": _into(dist.reduce_scatter_tensor),
    "broadcast": _in_place(dist.broadcast, src=0),
    "all_to_all": _into(dist.all_to_all_single),
    "reduce": _in_place(dist.reduce, dst=0),
    "gather": _gather,
    "scatter": _scatter,
    "send": _send,
    "barrier": lambda _, group: functools.partial(dist.barrier, group=group),
}


def through_torch(operation: Operation, group: Group) -> Call:
    """Return a call of torch.distributed on the tensors that the operation has now."""
    return _THROUGH_TORCH[operation.name](operation, group)
