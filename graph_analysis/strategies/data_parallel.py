"""Strategy: every rank holds the whole model and a part of the batch."""

from dataclasses import dataclass, fields
from typing import ClassVar

from graph_analysis.ir import Crossing, Group, Home, Operation, Phase, Stay, Value
from graph_analysis.strategies.base import Spread, StepFacts, require_count

_HOME = "rank"


@dataclass(frozen=True, slots=True)
class DataParallel:
    """Every rank holds the whole model and a part of the batch.

    Gradients are all-reduced in every step. Rank 0's parameters and buffers are broadcast once
    at set-up and, with broadcast_buffers, its buffers again before each forward, which is what
    DistributedDataParallel does by default. With one rank nothing crosses.
    """

    world_size: int
    broadcast_buffers: bool = True
    kind: ClassVar[str] = "data_parallel"

    def __post_init__(self) -> None:
        require_count("DataParallel", "world_size", self.world_size)

    def spread(self, facts: StepFacts) -> Spread:
        """All ranks form the one group "data" and share one layout."""
        ranks = tuple(range(self.world_size))
        crossings = self._crossings(facts) if self.world_size > 1 else ()
        return Spread(
            world_size=self.world_size,
            options=tuple((f.name, int(getattr(self, f.name))) for f in fields(self)),
            groups=(Group("data", ranks),),
            homes=(Home(_HOME, ranks),),
            crossings=crossings,
            stays=tuple(
                Stay(_HOME, c.tensor, None, facts.lives[c.tensor])
                for c in crossings
                if c.phase != "setup"
            ),
            holders={},
        )

    def _crossings(self, facts: StepFacts) -> tuple[Crossing, ...]:
        found: list[Crossing] = []
        for value in facts.graph.values:
            if value.alias_of is not None:
                continue
            if value.role in ("parameter", "buffer"):
                found.append(_send(value, "broadcast", "setup"))
            if value.role == "buffer" and self.broadcast_buffers:
                found.append(_send(value, "broadcast", "forward"))
            if value.role == "gradient":
                found.append(_send(value, "all_reduce", "backward"))
        return tuple(found)


def _send(value: Value, operation: Operation, phase: Phase) -> Crossing:
    root = 0 if operation == "broadcast" else None
    return Crossing(value.name, operation, phase, "data", root)
