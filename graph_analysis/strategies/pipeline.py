"""Strategy: the model is cut into stages, each on a rank of its own."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from graph_analysis.errors import ArgumentError
from graph_analysis.ir import Crossing, Graph, Group, Home, Lifetime, Omission, Stay, Value
from graph_analysis.liveness import storage_roots
from graph_analysis.stages import cut_by_names, cut_in_balance, stage_of_ops
from graph_analysis.strategies.base import (
    Option,
    Spread,
    StepFacts,
    forward_op_count,
    require_count,
    sendable_name,
)

_Edge = tuple[str, int, int]  # tensor, source stage, target stage


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Stage k is on rank k; split is the number of stages, or where all but the first begin.

    A split point is the name of a module ("layers.4") or of an operation of the graph. The example
    inputs are those of one micro-batch, and the plan is that of one micro-batch. Activations are
    sent to each stage that reads them, their gradients back. A parameter that several stages read
    lives on the first of them and is sent to the others. Inputs are assumed to be available
    wherever they are read, as targets are on the last stage; with share_inputs the first stage that
    reads one sends it to the others.
    """

    split: int | tuple[str, ...]
    share_inputs: bool = False
    kind: ClassVar[str] = "pipeline"

    def __post_init__(self) -> None:
        if isinstance(self.split, tuple) and all(isinstance(name, str) for name in self.split):
            return
        if not isinstance(self.split, int):
            raise ArgumentError(
                f"Pipeline: split {self.split!r} is neither a number nor a tuple of names"
            )
        require_count("Pipeline", "split", self.split)

    def spread(self, facts: StepFacts) -> Spread:
        """One home for each stage, and a group for each pair of stages with traffic."""
        graph = facts.graph
        stages = self.split if isinstance(self.split, int) else len(self.split) + 1
        omissions: tuple[Omission, ...] = ()
        if graph.source in ("module", "recorded"):
            why = "without a graph of the step it is unknown what lies between them"
            omissions = (Omission("cut into stages", why),)
            cuts: tuple[int, ...] = ()
        elif isinstance(self.split, int):
            cuts = cut_in_balance(graph, facts.op_end_ns, self.split)
        else:
            cuts = cut_by_names(graph, self.split)
        stage_of = stage_of_ops(graph, cuts)
        homes = _home_stages(graph, stage_of, self.share_inputs)
        edges = _edges(graph, stage_of, homes)
        return Spread(
            world_size=stages,
            options=(
                ("stages", stages),
                ("share_inputs", int(self.share_inputs)),
                *((f"stage{k}", graph.ops[at].name) for k, at in enumerate(cuts, 1)),
                *_names(self.split),
            ),
            groups=tuple(
                Group(_pair(a, b), tuple(sorted((a, b))))
                for a, b in sorted({(a, b) for _, a, b in edges})
            ),
            homes=tuple(Home(f"stage{k}", (k,)) for k in range(stages)),
            crossings=_crossings(graph, edges),
            stays=_stays(facts, stage_of, edges),
            holders={} if omissions else _holders(graph, stage_of, homes),
            omissions=omissions,
        )


def _names(split: int | tuple[str, ...]) -> tuple[Option, ...]:
    names = () if isinstance(split, int) else split
    return tuple((f"split_point{k}", name) for k, name in enumerate(names, 1))


def _pair(source: int, target: int) -> str:
    return f"stage{source}-stage{target}"


def _home_stages(
    graph: Graph, stage_of: Sequence[int], share_inputs: bool
) -> dict[str, int | None]:
    """The first stage that has each value; None for a value that every stage has."""
    first: dict[str, int] = {}
    for op, stage in zip(graph.ops, stage_of, strict=True):
        for name in op.inputs:
            first.setdefault(name, stage)
    found: dict[str, int | None] = {}
    for value in graph.values:
        if value.producer is not None:
            found[value.name] = stage_of[value.producer]
        elif value.role == "constant" or (value.role == "input" and not share_inputs):
            found[value.name] = None
        else:
            found[value.name] = first.get(value.name, 0)
    return found


def _edges(
    graph: Graph, stage_of: Sequence[int], homes: Mapping[str, int | None]
) -> dict[_Edge, int]:
    """Tensors read on another stage than their own, with the first operation that reads each."""
    names = sendable_name(graph)
    owner = {v.name: homes[v.of] for v in graph.values if v.of is not None}
    found: dict[_Edge, int] = {}
    for index, (op, stage) in enumerate(zip(graph.ops, stage_of, strict=True)):
        for name in op.inputs:
            home = homes[name]
            if home is not None and home != stage:
                found.setdefault((names[name], home, stage), index)
    for name, target in owner.items():  # a gradient made elsewhere goes to its parameter
        home = homes[name]
        if home is not None and target is not None and home != target:
            found.setdefault((name, home, target), len(graph.ops))
    return found


def _crossings(graph: Graph, edges: Mapping[_Edge, int]) -> tuple[Crossing, ...]:
    forward_ops = forward_op_count(graph)
    return tuple(
        Crossing(
            tensor=name,
            operation="send",
            phase="forward" if reader < forward_ops else "backward",
            group=_pair(source, target),
            root=source,
        )
        for (name, source, target), reader in edges.items()
    )


def _stays(
    facts: StepFacts, stage_of: Sequence[int], edges: Mapping[_Edge, int]
) -> tuple[Stay, ...]:
    """At both ends from the tensor's first use to the last operation of that stage that uses it."""
    graph = facts.graph
    roots = storage_roots(graph)
    values = {v.name: v for v in graph.values}
    last: dict[tuple[str, int], int] = {}
    crossing = {roots[name] for name, _, _ in edges}
    for index, (op, stage) in enumerate(zip(graph.ops, stage_of, strict=True)):
        for name in (*op.inputs, *op.outputs):
            if roots[name] in crossing:
                last[roots[name], stage] = index
    found: dict[tuple[int, str], Stay] = {}
    for name, source, target in edges:
        for stage in (source, target):
            life = _life_at(facts, values[name], last.get((roots[name], stage), -1))
            found[stage, name] = Stay(f"stage{stage}", name, None, life)
    return tuple(found.values())


def _life_at(facts: StepFacts, value: Value, last_use: int) -> Lifetime:
    if value.role in ("parameter", "buffer", "gradient"):
        return facts.lives[value.name]
    first = max(value.ready_op, 0)
    return Lifetime(first, max(first, last_use))


def _holders(
    graph: Graph, stage_of: Sequence[int], homes: Mapping[str, int | None]
) -> dict[str, tuple[str, ...]]:
    """The stages that make or read each tensor that owns memory."""
    roots = storage_roots(graph)
    found: dict[str, set[int]] = {v.name: set() for v in graph.values if v.alias_of is None}
    for op, stage in zip(graph.ops, stage_of, strict=True):
        for name in (*op.inputs, *op.outputs):
            found[roots[name]].add(stage)
    for value in graph.values:
        home = homes[value.of or value.name]
        if home is not None and value.role in ("parameter", "buffer", "gradient"):
            found[roots[value.name]].add(home)
    return {
        name: tuple(f"stage{k}" for k in sorted(stages)) for name, stages in found.items() if stages
    }
