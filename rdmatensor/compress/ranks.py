"""What ranks decide together. Without torch.distributed a process decides alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import torch
import torch.distributed as dist

from rdmatensor.errors import PlanMismatchError

Made = TypeVar("Made")


class Ranks:
    """The ranks that compress one model together.

    group: None takes the default group where there is one.
    """

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

    def first(self, mine: Made) -> Made:
        """Return what rank 0 has: its word decides."""
        return self.all(mine)[0]

    def mean(self, value: float) -> float:
        """Return the mean, summed in the order of ranks."""
        return sum(self.all(float(value))) / self.size

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """Return the sum, added in the order of ranks: the same bits on all."""
        if self.is_alone:
            return values
        parts = [torch.empty_like(values) for _ in range(self.size)]
        dist.all_gather(parts, values.contiguous(), group=self.group)
        total = parts[0].clone()
        for part in parts[1:]:
            total += part
        return total

    def check_same(self, what: str, values: Mapping[str, str]) -> None:
        """Raise PlanMismatchError on all ranks, with the name of what first differs."""
        everyone = self.all(dict(values))
        for rank, theirs in enumerate(everyone):
            for name in sorted({*everyone[0], *theirs}):
                if everyone[0].get(name) != theirs.get(name):
                    raise PlanMismatchError(
                        f"{what} of {name} differs between rank {rank} and rank 0: load one "
                        "checkpoint on all ranks"
                    )
