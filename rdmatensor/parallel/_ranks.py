"""What the ranks of a group agree on: whole numbers that all took part in, and one decision."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NoReturn, TypeVar

import torch
import torch.distributed as dist

from rdmatensor.errors import InvalidArgumentError, PlanMismatchError

Made = TypeVar("Made")


def refuse(call: str, why: str) -> NoReturn:
    """Raise InvalidArgumentError for a call of rdmatensor.parallel."""
    raise InvalidArgumentError("RDT_EINVAL", f"parallel.{call}", why)


class Ranks:
    """The ranks of a group, by their places in it."""

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        chosen = dist.group.WORLD if group is None else group
        if chosen is None:
            raise ValueError("init_process_group() has not been called")
        self.group: dist.ProcessGroup = chosen
        self.size = dist.get_world_size(chosen)
        self.rank = dist.get_rank(chosen)

    def all(self, mine: Made) -> list[Made]:
        """Return what each rank has."""
        found: list[Made] = [mine] * self.size
        dist.all_gather_object(found, mine, group=self.group)
        return found

    def largest(self, values: Sequence[int]) -> list[int]:
        """Return the largest of all ranks, place by place."""
        return self._reduced(values, dist.ReduceOp.MAX)

    def mean(self, values: Sequence[int]) -> list[int]:
        """Return the mean of all ranks, rounded down, place by place."""
        return [total // self.size for total in self._reduced(values, dist.ReduceOp.SUM)]

    def _reduced(self, values: Sequence[int], operation: dist.ReduceOp.RedOpType) -> list[int]:
        if not values:
            return []
        tensor = torch.tensor(values, dtype=torch.int64)
        dist.all_reduce(tensor, op=operation, group=self.group)
        return [int(value) for value in tensor.tolist()]

    def barrier(self) -> None:
        """Block until all ranks have called it."""
        dist.all_reduce(torch.zeros(1), group=self.group)

    def together(self, make: Callable[[], Made]) -> Made:
        """Return what make() returns; if it raises on a rank, all raise. It may not communicate."""
        made: list[Made] = []
        raised: Exception | None = None
        try:
            made.append(make())
        except Exception as error:  # noqa: BLE001 - raised below, when the others know
            raised = error
        words = self.all(None if raised is None else f"{type(raised).__name__}: {raised}")
        if raised is not None:
            raise raised
        for rank, said in enumerate(words):
            if said is not None:
                raise RuntimeError(f"on rank {rank}: {said}")
        return made[0]

    def check_same(self, what: str, mine: str) -> None:
        """Raise PlanMismatchError on all ranks unless all have the same."""
        for rank, other in enumerate(everyone := self.all(mine)):
            if other != everyone[0]:
                raise PlanMismatchError(f"{what} differs between rank {rank} and rank 0")
