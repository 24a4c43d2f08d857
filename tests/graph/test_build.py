"""Whole plans of generated graphs: every fact recomputed from the graph, the slow way."""

from dataclasses import dataclass, replace
from itertools import combinations
from typing import ClassVar

import pytest
from clock import cpu_s, least_of_turns
from generated_graphs import graphs
from hypothesis import given
from hypothesis import strategies as st

from graph_analysis.build import build_plan
from graph_analysis.errors import ArgumentError, PlanError
from graph_analysis.ir import CostModel, Crossing, Graph, Group, Home, Op, Stay, Value, align_up
from graph_analysis.plan import TransferPlan
from graph_analysis.plan_check import check_plan
from graph_analysis.plan_json import plan_from_json, plan_to_json
from graph_analysis.report import render_text
from graph_analysis.strategies import DataParallel, Spread, StepFacts
from graph_analysis.timing import op_end_ns

pytestmark = pytest.mark.timeout(300)

strategies = st.builds(DataParallel, st.integers(1, 4), st.booleans())


@given(graphs(), strategies)
def test_plan_of_any_graph_is_consistent_and_repeatable(
    graph: Graph, strategy: DataParallel
) -> None:
    plan = build_plan(graph, strategy)
    check_plan(plan)
    again = build_plan(graph, strategy)
    assert (again, again.fingerprint()) == (plan, plan.fingerprint())
    assert plan.fingerprint() in render_text(plan)


@given(graphs(), strategies)
def test_data_parallel_sends_gradients_and_state(graph: Graph, strategy: DataParallel) -> None:
    plan = build_plan(graph, strategy)
    roles = {v.name: v.role for v in graph.values}
    sent = {(c.phase, c.operation, roles[c.tensor], c.tensor) for c in plan.crossings}
    wanted = set()
    for name, role in roles.items():
        if strategy.world_size > 1 and role in ("parameter", "buffer"):
            wanted.add(("setup", "broadcast", role, name))
        if strategy.world_size > 1 and role == "buffer" and strategy.broadcast_buffers:
            wanted.add(("forward", "broadcast", role, name))
        if strategy.world_size > 1 and role == "gradient":
            wanted.add(("backward", "all_reduce", role, name))
    assert sent == wanted
    assert plan.groups[0].ranks == tuple(range(strategy.world_size))


@given(graphs())
def test_gradients_are_numbered_and_sent_as_they_become_ready(graph: Graph) -> None:
    plan = build_plan(graph, DataParallel(2))
    by_name = {v.name: v for v in graph.values}
    numbered = sorted((t.ready_order, t.name) for t in plan.tensors if t.ready_order is not None)
    ready = [by_name[name].ready or 0 for _, name in numbered]
    assert ready == sorted(ready)
    ends = op_end_ns(graph, plan.cost)
    gradient_buckets = [b for b in plan.buckets if b.phase == "backward"]
    for bucket in gradient_buckets:
        assert bucket.ready_ns == max(ends[by_name[n].ready or 0] for n in bucket.tensors)
    order = [n for b in gradient_buckets for n in b.tensors]
    assert sorted(order) == sorted(name for _, name in numbered)
    assert [ends[by_name[n].ready or 0] for n in order] == sorted(
        ends[by_name[n].ready or 0] for n in order
    )


@given(graphs())
def test_arena_holds_exactly_what_crosses_in_a_step(graph: Graph) -> None:
    plan = build_plan(graph, DataParallel(3))
    sizes = {t.name: t.max_bytes for t in plan.tensors}
    crossing = {c.tensor for c in plan.crossings if c.phase != "setup"}
    assert {p.tensor for p in plan.arenas[0].placements} == crossing
    lives = {t.name: (t.first_use, t.last_use) for t in plan.tensors}
    for a, b in combinations(plan.arenas[0].placements, 2):
        is_apart = a.offset + a.size_bytes <= b.offset or b.offset + b.size_bytes <= a.offset
        is_other_time = lives[a.tensor][1] < lives[b.tensor][0] or (
            lives[b.tensor][1] < lives[a.tensor][0]
        )
        assert is_apart or is_other_time or 0 in (a.size_bytes, b.size_bytes)
    # Gradients and buffers all live at the optimizer step, so nothing can be used twice.
    total = sum(align_up(sizes[name] or 0, 64) for name in crossing)
    assert plan.arenas[0].peak_bytes == plan.arenas[0].naive_bytes == total
    assert plan.arenas[0].lower_bound_bytes == total


@dataclass(frozen=True)
class Everything:
    """A strategy of this test's own: rank 0 sends each tensor that operations make to rank 1."""

    kind: ClassVar[str] = "everything"

    def spread(self, facts: StepFacts) -> Spread:
        made = [v for v in facts.graph.values if v.alias_of is None and v.producer is not None]
        return Spread(
            world_size=2,
            options=(),
            groups=(Group("pair", (0, 1)),),
            homes=(Home("both", (0, 1)),),
            crossings=tuple(Crossing(v.name, "broadcast", "forward", "pair", 0) for v in made),
            stays=tuple(Stay("both", v.name, None, facts.lives[v.name]) for v in made),
            holders={},
        )


@given(graphs(max_ops=30))
def test_another_strategy_needs_no_change_elsewhere(graph: Graph) -> None:
    """Activations die before the step ends, so here the arena is used again."""
    plan = build_plan(graph, Everything())
    assert plan_from_json(plan_to_json(plan)) == plan
    kinds = {t.name: t.kind for t in plan.tensors}
    packed = [name for b in plan.buckets for name in b.tensors]
    sent = [c.tensor for c in plan.crossings]
    assert sorted(packed) == sorted(name for name in sent if kinds[name] != "dynamic")
    assert plan.arenas[0].peak_bytes <= plan.arenas[0].naive_bytes
    ends = op_end_ns(graph, plan.cost)
    by_name = {v.name: v for v in graph.values}
    for bucket in plan.buckets:
        ready = [by_name[n].ready_op for n in bucket.tensors]
        assert bucket.ready_ns == max(ends[index] for index in ready)


def test_memory_of_dead_tensors_is_planned_again() -> None:
    """Each is dead before the next is born; types that alternate keep them in buckets apart."""
    dtypes = ["int8", "uint8"]
    values = [
        Value(f"v{i}", "activation", dtypes[i % 2], 1, (1_000_000,), producer=2 * i)
        for i in range(5)
    ]
    ops = [
        Op(f"op{k}", "generated", () if k % 2 == 0 else (f"v{k // 2}",), (f"v{k // 2}",)[k % 2 :])
        for k in range(10)
    ]
    graph = Graph((), tuple(values), tuple(ops), (), "joint_graph", "output_sum", "generated")
    plan = build_plan(graph, Everything())
    check_plan(plan)
    assert len(plan.buckets) == 5
    assert plan.arenas[0].peak_bytes == plan.arenas[0].lower_bound_bytes == 1_000_000
    assert plan.arenas[0].naive_bytes == 5_000_000
    first, second = plan.arenas[0].placements[:2]
    assert (first.tensor, second.tensor) == ("v0", "v1")
    clash = replace(first, last_use=second.first_use)
    arena = replace(plan.arenas[0], placements=(clash, *plan.arenas[0].placements[1:]))
    with pytest.raises(PlanError, match="v1 and v0 overlap"):
        check_plan(replace(plan, arenas=(arena,)))


@given(graphs())
def test_operation_times_add_up(graph: Graph) -> None:
    """Twice the memory rate never makes a step longer; views cost nothing."""
    slow = op_end_ns(graph, CostModel(op_ns=7, memory_bytes_per_s=10**9))
    fast = op_end_ns(graph, CostModel(op_ns=7, memory_bytes_per_s=2 * 10**9))
    assert all(f <= s for f, s in zip(fast, slow, strict=True))
    views = {v.name for v in graph.values if v.alias_of is not None}
    before = 0
    for op, end in zip(graph.ops, slow, strict=True):
        assert end - before == 0 if set(op.outputs) <= views else end - before >= 7
        before = end


@given(graphs())
def test_fingerprint_tells_what_matters(graph: Graph) -> None:
    plan = build_plan(graph, DataParallel(2))
    assert build_plan(graph, DataParallel(3)).fingerprint() != plan.fingerprint()
    other_tool = build_plan(replace(graph, captured_with="another version"), DataParallel(2))
    assert other_tool.fingerprint() == plan.fingerprint()


@pytest.mark.parametrize("world_size", [0, -1, True])
def test_world_size_is_checked(world_size: int) -> None:
    with pytest.raises(ArgumentError):
        DataParallel(world_size)


def _chain(op_count: int) -> Graph:
    """A step of so many operations, every second of which makes a gradient."""
    values = [Value("x", "input", "float32", 4, (64,))]
    ops = []
    for index in range(op_count):
        made = Value(f"v{index}", "backward", "float32", 4, (index % 97,), producer=index)
        if index % 2:
            parameter = Value(f"p{index}", "parameter", "float32", 4, (index % 97,))
            values.append(parameter)
            made = replace(
                parameter, name=f"p{index}.grad", role="gradient", producer=index, ready=index
            )
            made = replace(made, of=parameter.name)
        ops.append(Op(f"op{index}", "generated", (values[-1].name,), (made.name,)))
        values.append(made)
    return Graph((), tuple(values), tuple(ops), (), "joint_graph", "output_sum", "generated")


def _cpu_s(op_count: int) -> tuple[float, TransferPlan]:
    graph = _chain(op_count)
    return cpu_s(lambda: build_plan(graph, DataParallel(4)))


def test_ten_thousand_operations_take_under_five_seconds() -> None:
    taken_s, plan = _cpu_s(10_000)
    assert taken_s < 5.0
    assert len(plan.arenas[0].placements) == 5_000


def test_time_grows_no_faster_than_the_graph() -> None:
    """Four times the operations, at most eight times the time: noise is allowed, squares not."""
    small, large = least_of_turns(lambda: _cpu_s(2_500)[0], lambda: _cpu_s(10_000)[0])
    assert large < 8 * small
