"""What crosses under each strategy, recomputed from the graph, and where it stands at each end."""

from math import prod

import pytest
from generated_graphs import graphs, training_steps
from hypothesis import given
from hypothesis import strategies as st

from graph_analysis.build import build_plan
from graph_analysis.errors import ArgumentError
from graph_analysis.ir import Collective, Graph, Op, SlotPolicy, Symbol, SymbolicDim, Value
from graph_analysis.plan import TransferPlan
from graph_analysis.plan_check import check_plan
from graph_analysis.plan_json import plan_from_json, plan_to_json
from graph_analysis.report import render_text
from graph_analysis.strategies import (
    DataParallel,
    GraphCollectives,
    ParameterServer,
    Pipeline,
    Strategy,
)
from graph_analysis.strategies.base import sendable_name

pytestmark = pytest.mark.timeout(300)

ANY: list[Strategy] = [
    DataParallel(3),
    Pipeline(1),
    ParameterServer(2, 3),
    GraphCollectives(2),
]


@given(graphs(), st.sampled_from(ANY))
def test_every_strategy_gives_a_consistent_plan(graph: Graph, strategy: Strategy) -> None:
    plan = build_plan(graph, strategy)
    check_plan(plan)
    assert plan_from_json(plan_to_json(plan)) == plan
    assert plan.strategy.kind in render_text(plan)


@given(graphs(), st.integers(1, 4), st.integers(1, 3))
def test_parameter_server_pulls_and_pushes_what_is_trained(
    graph: Graph, shards: int, workers: int
) -> None:
    plan = build_plan(graph, ParameterServer(shards, workers))
    trained = {v.of for v in graph.values if v.role == "gradient"}
    wanted = set()
    for value in graph.values:
        if value.role == "parameter":
            wanted.add((value.name, "pull", "forward" if value.name in trained else "setup"))
        if value.role == "gradient":
            wanted.add((value.name, "push", "backward"))
        if value.role == "buffer" and workers > 1:
            wanted.add((value.name, "broadcast", "setup"))
    assert {(c.tensor, c.operation, c.phase) for c in plan.crossings} == wanted
    assert len(plan.crossings) == len(wanted)
    shard_of = {c.tensor: c.group for c in plan.crossings if c.operation == "pull"}
    for crossing in plan.crossings:
        if crossing.operation == "push":
            tensor = next(t for t in plan.tensors if t.name == crossing.tensor)
            assert shard_of[str(tensor.parameter)] == crossing.group
    for group in plan.groups[:-1]:
        root = workers + int(group.name.removeprefix("shard"))
        assert group.ranks == (*range(workers), root)


@given(graphs(), st.integers(1, 4))
def test_shards_differ_by_no_more_than_the_largest_parameter(graph: Graph, shards: int) -> None:
    plan = build_plan(graph, ParameterServer(shards, 2))
    sizes = {t.name: t.size_bytes or 0 for t in plan.tensors if t.role == "parameter"}
    load = {f"shard{k}": 0 for k in range(shards)}
    for crossing in plan.crossings:
        if crossing.operation == "pull":
            load[crossing.group] += sizes[crossing.tensor]
    assert max(load.values()) - min(load.values()) <= max(sizes.values(), default=0)


@given(graphs(), st.integers(1, 3), st.integers(1, 3))
def test_a_shard_has_a_place_for_each_worker(graph: Graph, shards: int, workers: int) -> None:
    plan = build_plan(graph, ParameterServer(shards, workers))
    pushed = {c.tensor: c.group for c in plan.crossings if c.operation == "push"}
    pulled = {c.tensor: c.group for c in plan.crossings if c.phase == "forward"}
    for arena in plan.arenas:
        found = {(p.tensor, p.origin) for p in arena.placements}
        if arena.name == "worker":
            assert found == {(name, None) for name in (*pushed, *pulled)}
        else:
            mine = {(n, w) for n, at in pushed.items() if at == arena.name for w in range(workers)}
            assert found == mine | {(n, None) for n, at in pulled.items() if at == arena.name}
    for bucket in plan.buckets:
        ends = sorted((p.arena, p.origin) for p in bucket.places if p.arena == "worker")
        assert ends == [("worker", None)]
        others = [p.origin for p in bucket.places if p.arena == bucket.group]
        assert others == (list(range(workers)) if bucket.operation == "push" else [None])


def _collective_graph() -> Graph:
    """A tensor gathered, a part of it reduced twice, another broadcast in place."""
    everybody, pair = (0, 1, 2, 3), (0, 2)
    values = (
        Value("x", "input", "float32", 4, (8,)),
        Value("a", "activation", "float32", 4, (8,), 0),
        Value("whole", "activation", "float32", 4, (32,), 1),
        Value("part", "activation", "float32", 4, (4,), 2, alias_of="a"),
        Value("sum", "activation", "float32", 4, (4,), 3),
        Value("sum2", "loss", "float32", 4, (4,), 4),
        Value("g", "backward", "float32", 4, (4,), 5),
        Value("g2", "backward", "float32", 4, (4,), 6, alias_of="g"),
        Value("end", "backward", "float32", 4, (4,), 7),
    )
    ops = (
        Op("a", "make", ("x",), ("a",)),
        Op("whole", "gather", ("a",), ("whole",), Collective("all_gather", "tp", everybody, None)),
        Op("part", "slice", ("a",), ("part",)),
        Op("sum", "reduce", ("part",), ("sum",), Collective("all_reduce", "dp", pair, None)),
        Op("sum2", "reduce", ("part",), ("sum2",), Collective("all_reduce", "tp", everybody, None)),
        Op("g", "make", ("sum", "whole"), ("g",)),
        Op("g2", "reduce_", ("g",), ("g2",), Collective("broadcast", "dp", pair, 2)),
        Op("end", "read", ("g2", "sum2"), ("end",)),
    )
    return Graph((), values, ops, (), "joint_graph", "loss_fn", "by hand")


def test_collectives_of_the_graph_cross_one_by_one() -> None:
    plan = build_plan(_collective_graph(), GraphCollectives(4))
    check_plan(plan)
    assert [
        (c.tensor, c.result, c.operation, c.group, c.root, c.phase) for c in plan.crossings
    ] == [
        ("a", "whole", "all_gather", "tp", None, "forward"),
        ("part", "sum", "all_reduce", "dp", None, "forward"),
        ("part", "sum2", "all_reduce", "tp", None, "forward"),
        ("g", None, "broadcast", "dp", 2, "backward"),
    ]
    assert [b.tensors for b in plan.buckets] == [("a",), ("part",), ("part",), ("g",)]
    part = next(t for t in plan.tensors if t.name == "part")
    assert (part.view_of, part.size_bytes) == ("a", 16)
    places = {p.tensor: (p.first_use, p.last_use) for p in plan.arenas[0].placements}
    assert set(places) == {"a", "whole", "part", "sum", "sum2", "g"}
    assert places["g"] == (5, 7)  # in place: until its last reader
    assert places["part"] == (0, 7)  # until the second result is first read
    assert {g.name: g.ranks for g in plan.groups} == {"tp": (0, 1, 2, 3), "dp": (0, 2)}


def test_a_group_beyond_the_world_is_refused() -> None:
    with pytest.raises(ArgumentError, match="ranks"):
        build_plan(_collective_graph(), GraphCollectives(2))


@pytest.mark.parametrize("make", [DataParallel, GraphCollectives, lambda n: ParameterServer(n, 1)])
@pytest.mark.parametrize("count", [0, -1, True, 1.5])
def test_counts_are_checked(make: object, count: object) -> None:
    with pytest.raises(ArgumentError, match="integer of 1 or more"):
        make(count)  # type: ignore[operator]


def _bounded_step(upper: int | None) -> Graph:
    """A chain of two operations over a batch with this maximum."""
    batch = SymbolicDim("batch", ("batch",), upper, 2)
    values = (
        Value("w", "parameter", "float32", 4, (16,)),
        Value("h", "activation", "float32", 4, (batch, 16), 0),
        Value("y", "loss", "float32", 4, (), 1),
    )
    ops = (Op("first", "f", ("w",), ("h",)), Op("second", "f", ("h",), ("y",)))
    symbols = (Symbol("batch", 1, upper, "x", 0),)
    return Graph(symbols, values, ops, (), "joint_graph", "loss_fn", "by hand")


@pytest.mark.parametrize(
    ("upper", "percent", "kind", "slots"),
    [
        (8, 50, "bounded", 1),
        (9, 50, "dynamic", 0),
        (8, 49, "dynamic", 0),
        (None, 100, "dynamic", 0),
    ],
)
def test_a_slot_over_its_share_of_the_arena_is_not_planned(
    upper: int | None, percent: int, kind: str, slots: int
) -> None:
    """An arena of 1 KiB: 8 rows of 64 bytes are half of it."""
    policy = SlotPolicy(arena_bytes=1024, bounded_share_percent=percent)
    plan = build_plan(_bounded_step(upper), Pipeline(("second",)), policy=policy)
    check_plan(plan)
    assert plan_from_json(plan_to_json(plan)) == plan
    crossing = next(t for t in plan.tensors if t.name == "h")
    assert (crossing.kind, crossing.symbols, crossing.inputs) == (
        kind,
        ("batch",),
        ("x, dimension 0",),
    )
    assert len(plan.crossings) == 1
    assert [len(a.placements) for a in plan.arenas] == [slots, slots]
    assert len(plan.buckets) == slots
    said = "counted as dynamic" in render_text(plan)
    assert said == (kind == "dynamic" and upper is not None)


@pytest.mark.parametrize("policy", [SlotPolicy(0, 25), SlotPolicy(1, -1), SlotPolicy(1, 101)])
def test_policies_are_checked(policy: SlotPolicy) -> None:
    with pytest.raises(ArgumentError, match="share"):
        build_plan(_bounded_step(8), Pipeline(2), policy=policy)


@given(training_steps(), st.integers(2, 5))
def test_bytes_of_a_step_are_those_of_what_is_trained(graph: Graph, ranks: int) -> None:
    trained = [v for v in graph.values if v.role == "gradient"]
    total = sum(4 * prod(d for d in v.shape if isinstance(d, int)) for v in trained)
    assert _payload(build_plan(graph, DataParallel(ranks)), "all_reduce") == total
    served = build_plan(graph, ParameterServer(ranks, 2))
    assert _payload(served, "push") == _payload(served, "pull") == total


def _payload(plan: TransferPlan, operation: str) -> int:
    return sum(b.payload_bytes for b in plan.buckets if b.operation == operation)


_SEQ = SymbolicDim("seq", ("seq",), 5, 3)


@pytest.mark.parametrize(
    ("of_root", "of_view", "is_whole"),
    [
        ((6, 4), (3, 8), True),
        ((6, 4), (6, 3), False),
        ((2, _SEQ), (SymbolicDim("2*seq", ("seq",), 10, 6),), True),
        (
            (2, SymbolicDim("seq + 1", ("seq",), 6, 4)),
            (SymbolicDim("2*seq + 1", ("seq",), 11, 7),),
            False,
        ),
        ((_SEQ, _SEQ), (SymbolicDim("seq**2", ("seq",), 25, 9),), False),  # not seen to be equal
        ((_SEQ,), (SymbolicDim("batch", ("batch",), 5, 3),), False),
    ],
)
def test_a_view_of_the_whole_is_sent_as_what_it_shows(
    of_root: tuple[int | SymbolicDim, ...],
    of_view: tuple[int | SymbolicDim, ...],
    is_whole: bool,
) -> None:
    values = (
        Value("root", "activation", "float32", 4, of_root, 0),
        Value("view", "activation", "float32", 4, of_view, 1, "root"),
    )
    ops = (Op("root", "f", (), ("root",)), Op("view", "f", ("root",), ("view",)))
    graph = Graph((), values, ops, (), "joint_graph", "loss_fn", "by hand")
    assert sendable_name(graph) == {"root": "root", "view": "root" if is_whole else "view"}
