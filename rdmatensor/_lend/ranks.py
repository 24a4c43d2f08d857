"""What ranks decide together: the largest number counts, and rank 0 solves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import torch.distributed as dist

from rdmatensor.errors import PlanMismatchError

Made = TypeVar("Made")


class Ranks:
    """The ranks that share a budget; without torch.distributed a process decides alone."""

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self.group = group
        self.is_alone = not (dist.is_available() and dist.is_initialized())
        self.size = 1 if self.is_alone else dist.get_world_size(group)

    def all(self, mine: Made) -> list[Made]:
        """Return what each rank has, in the order of ranks."""
        if self.is_alone:
            return [mine]
        found: list[Made] = [mine] * self.size
        dist.all_gather_object(found, mine, group=self.group)
        return found

    def most(self, mine: Sequence[int]) -> list[int]:
        """Return the largest of each number."""
        return [max(column) for column in zip(*self.all(list(mine)), strict=True)]

    def first(self, mine: Made) -> Made:
        """Return what rank 0 has."""
        return self.all(mine)[0]

    def check_same(self, what: str, mine: object) -> None:
        """Raise PlanMismatchError on all ranks if one differs from rank 0."""
        everyone = self.all(mine)
        for rank, other in enumerate(everyone):
            if other != everyone[0]:
                raise PlanMismatchError(
                    f"{what} is {other!r} on rank {rank}, {everyone[0]!r} on rank 0"
                )

    def check_errors(self, error: Exception | None) -> None:
        """Raise the own error; if another rank has one, an error with its rank and message."""
        texts = self.all(None if error is None else str(error))
        if error is not None:
            raise error
        for rank, text in enumerate(texts):
            if text is not None:
                raise PlanMismatchError(f"rank {rank} cannot fit the budget: {text}")
