"""Strategy: the collectives in the graph itself are the crossings."""

from dataclasses import dataclass
from typing import ClassVar

from graph_analysis.errors import ArgumentError
from graph_analysis.ir import Crossing, Graph, Group, Home, Lifetime, Op, Stay
from graph_analysis.liveness import storage_roots
from graph_analysis.strategies.base import (
    Spread,
    StepFacts,
    forward_op_count,
    require_count,
    sendable_name,
)

_HOME = "rank"


@dataclass(frozen=True, slots=True)
class GraphCollectives:
    """Tensor-parallel and other models whose graph calls functional collectives.

    Every rank runs the same graph. Each collective is sent alone, when its input is ready. The
    groups are those of the rank that captured.
    """

    world_size: int
    kind: ClassVar[str] = "graph_collectives"

    def __post_init__(self) -> None:
        require_count("GraphCollectives", "world_size", self.world_size)

    def spread(self, facts: StepFacts) -> Spread:
        """One crossing for each tensor that goes into a collective."""
        ranks = tuple(range(self.world_size))
        groups: dict[str, tuple[int, ...]] = {}
        for op in facts.graph.ops:
            if op.collective is not None:
                groups[op.collective.group] = op.collective.ranks
        for name, members in groups.items():
            if not set(members) <= set(ranks):
                raise ArgumentError(
                    f"GraphCollectives: group {name} of the graph has the ranks {members}, "
                    f"world_size is {self.world_size}"
                )
        crossings, stays = _sent(facts)
        return Spread(
            world_size=self.world_size,
            options=(("world_size", self.world_size),),
            groups=tuple(Group(name, members) for name, members in groups.items()),
            homes=(Home(_HOME, ranks),),
            crossings=crossings,
            stays=stays,
            holders={},
            together=_recorded_together(facts.graph),
        )


def _recorded_together(graph: Graph) -> tuple[tuple[str, ...], ...]:
    """A recorded operation is one message; for a captured graph the grouping is open."""
    if graph.source != "recorded":
        return ()
    return tuple(op.inputs for op in graph.ops if op.collective is not None)


def _sent(facts: StepFacts) -> tuple[tuple[Crossing, ...], tuple[Stay, ...]]:
    graph = facts.graph
    names = sendable_name(graph)
    roots = storage_roots(graph)
    first_reader = _first_readers(graph)
    forward_ops = forward_op_count(graph)
    crossings: list[Crossing] = []
    lives: dict[str, Lifetime] = {}
    for index, op in enumerate(graph.ops):
        for source, made in _pairs(op):
            assert op.collective is not None
            tensor, result = names[source], names[made]
            in_place = roots[source] == roots[made]
            crossings.append(
                Crossing(
                    tensor=tensor,
                    operation=op.collective.operation,
                    phase="forward" if index < forward_ops else "backward",
                    group=op.collective.group,
                    root=op.collective.root,
                    result=None if in_place else result,
                )
            )
            # The input must stay until a reader waits for the output.
            done = first_reader.get(made, index)
            for name in (tensor, result):
                life = lives.get(name, facts.lives[roots[name]])
                lives[name] = Lifetime(life.first_use, max(life.last_use, done))
    stays = tuple(Stay(_HOME, name, None, life) for name, life in lives.items())
    return tuple(dict.fromkeys(crossings)), stays


def _pairs(op: Op) -> list[tuple[str, str]]:
    """Input and output of each tensor of a collective; empty for other operations."""
    if op.collective is None:
        return []
    if len(op.inputs) != len(op.outputs):
        raise ArgumentError(
            f"{op.name} ({op.target}) takes {len(op.inputs)} and gives {len(op.outputs)} tensors"
        )
    return list(zip(op.inputs, op.outputs, strict=True))


def _first_readers(graph: Graph) -> dict[str, int]:
    found: dict[str, int] = {}
    for index, op in enumerate(graph.ops):
        for name in op.inputs:
            found.setdefault(name, index)
    return found
