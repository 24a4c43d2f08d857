"""Pass: which tensors leave their rank, under a given strategy?

A strategy is a frozen dataclass that satisfies Strategy: it names its groups of ranks and lists
the crossings of a graph. Everything after this pass (buckets, layout, plan, report) works from
groups and crossings alone and does not know which strategy they came from.
"""

from dataclasses import dataclass, fields
from typing import ClassVar, Protocol

from graph_analysis.errors import InvalidArgument
from graph_analysis.ir import Crossing, Graph, Group, Operation, Phase, Value

_PHASE_ORDER: tuple[Phase, ...] = ("setup", "forward", "backward")


class Strategy(Protocol):
    """How one model is spread over ranks."""

    kind: ClassVar[str]

    @property
    def world_size(self) -> int:
        """Number of ranks."""

    def options(self) -> tuple[tuple[str, int], ...]:
        """Every setting by name, for the plan and its fingerprint."""

    def groups(self) -> tuple[Group, ...]:
        """Groups of ranks that the crossings name."""

    def crossings(self, graph: Graph) -> tuple[Crossing, ...]:
        """What crosses, in any order."""


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
        if isinstance(self.world_size, bool) or self.world_size < 1:
            raise InvalidArgument(f"DataParallel: world_size {self.world_size}, must be 1 or more")

    def options(self) -> tuple[tuple[str, int], ...]:
        """Field names and values, booleans as 0 and 1."""
        return tuple((f.name, int(getattr(self, f.name))) for f in fields(self))

    def groups(self) -> tuple[Group, ...]:
        """All ranks form the one group "data"."""
        return (Group("data", tuple(range(self.world_size))),)

    def crossings(self, graph: Graph) -> tuple[Crossing, ...]:
        """Gradients, buffers and parameters, none of them when there is a single rank."""
        if self.world_size == 1:
            return ()
        found: list[Crossing] = []
        for value in graph.values:
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


def find_crossings(graph: Graph, strategy: Strategy) -> tuple[Crossing, ...]:
    """The strategy's crossings: by phase, then as they become ready, then by position."""
    position = {value.name: index for index, value in enumerate(graph.values)}
    ready = {value.name: value.ready_op for value in graph.values}
    return tuple(
        sorted(
            strategy.crossings(graph),
            key=lambda c: (_PHASE_ORDER.index(c.phase), ready[c.tensor], position[c.tensor]),
        )
    )
