"""Pipelines of generated steps: stages, crossings and lifetimes against their definitions."""

from itertools import combinations, pairwise
from math import prod

import pytest
from clock import cpu_s, least_of_turns
from generated_graphs import training_steps
from hypothesis import given
from hypothesis import strategies as st

from graph_analysis.build import build_plan
from graph_analysis.errors import ArgumentError
from graph_analysis.ir import CostModel, Graph, Lifetime, Op, Value
from graph_analysis.liveness import lifetimes
from graph_analysis.plan_check import check_plan
from graph_analysis.plan_json import plan_from_json, plan_to_json
from graph_analysis.stages import SLACK_PERCENT, cut_in_balance, stage_of_ops
from graph_analysis.strategies import Pipeline
from graph_analysis.strategies.base import StepFacts, forward_op_count
from graph_analysis.timing import op_end_ns

pytestmark = pytest.mark.timeout(300)


@st.composite
def split_steps(draw: st.DrawFn) -> tuple[Graph, tuple[str, ...]]:
    """A step and the names of the operations at which stages begin."""
    graph = draw(training_steps())
    names = [op.name for op in graph.ops[1 : forward_op_count(graph)]]
    chosen = draw(st.sets(st.sampled_from(names), max_size=3))
    return graph, tuple(name for name in names if name in chosen)


def _stages(graph: Graph, names: tuple[str, ...]) -> tuple[int, ...]:
    by_name = {op.name: index for index, op in enumerate(graph.ops)}
    return stage_of_ops(graph, tuple(by_name[name] for name in names))


@given(split_steps())
def test_forward_stages_are_runs_and_the_backward_follows_them(
    split: tuple[Graph, tuple[str, ...]],
) -> None:
    graph, names = split
    stages = _stages(graph, names)
    limit = forward_op_count(graph)
    forward = stages[:limit]
    assert list(forward) == sorted(forward)
    assert set(forward) == set(range(len(names) + 1))
    for name, stage in zip([op.name for op in graph.ops], stages, strict=True):
        if name in names:
            assert stage == names.index(name) + 1
    # What reads a parameter, or an activation that only one stage knows, runs on that stage.
    known: dict[str, set[int]] = {}
    for op, stage in zip(graph.ops[:limit], forward, strict=True):
        for name in (*op.inputs, *op.outputs):
            known.setdefault(name, set()).add(stage)
    for op, stage in zip(graph.ops[limit:], stages[limit:], strict=True):
        single = {min(known[n]) for n in op.inputs if n != "v-1" and len(known.get(n, ())) == 1}
        assert not single or stage == max(single)


@given(split_steps())
def test_each_value_is_sent_once_to_each_stage_that_reads_it(
    split: tuple[Graph, tuple[str, ...]],
) -> None:
    graph, names = split
    plan = build_plan(graph, Pipeline(names))
    check_plan(plan)
    assert plan_from_json(plan_to_json(plan)) == plan
    stages = _stages(graph, names)
    home: dict[str, int] = {}
    for op, stage in zip(graph.ops, stages, strict=True):
        for name in op.inputs:
            if name.startswith("p"):
                home.setdefault(name, stage)
        home[op.outputs[0]] = stage
    wanted = set()
    for op, stage in zip(graph.ops, stages, strict=True):
        wanted |= {(n, home[n], stage) for n in op.inputs if n != "v-1" and home[n] != stage}
    for value in graph.values:
        if value.of is not None and home[value.name] != home[value.of]:
            wanted.add((value.name, home[value.name], home[value.of]))
    members = {g.name: g.ranks for g in plan.groups}
    sent = [
        (c.tensor, c.root, next(r for r in members[c.group] if r != c.root)) for c in plan.crossings
    ]
    assert sorted(sent) == sorted(wanted)
    assert {c.operation for c in plan.crossings} <= {"send"}


@given(split_steps())
def test_every_end_keeps_a_place_from_birth_to_its_own_last_use(
    split: tuple[Graph, tuple[str, ...]],
) -> None:
    graph, names = split
    plan = build_plan(graph, Pipeline(names))
    stages = _stages(graph, names)
    values = {v.name: v for v in graph.values}
    members = {g.name: g.ranks for g in plan.groups}
    wanted = {(f"stage{rank}", c.tensor) for c in plan.crossings for rank in members[c.group]}
    found = {(a.name, p.tensor): p for a in plan.arenas for p in a.placements}
    assert set(found) == wanted
    for (arena, name), place in found.items():
        if values[name].role != "backward" and values[name].role != "activation":
            continue
        birth = values[name].producer or 0
        uses = [
            index
            for index, op in enumerate(graph.ops)
            if name in op.inputs and f"stage{stages[index]}" == arena
        ]
        assert (place.first_use, place.last_use) == (birth, max([birth, *uses]))
    for arena in plan.arenas:
        for a, b in combinations(arena.placements, 2):
            is_apart = a.offset + a.size_bytes <= b.offset or b.offset + b.size_bytes <= a.offset
            is_other_time = a.last_use < b.first_use or b.last_use < a.first_use
            assert is_apart or is_other_time


@given(training_steps(reach=1), st.data())
def test_gradients_of_a_chain_go_back_as_large_as_the_activations_came(
    graph: Graph, data: st.DataObject
) -> None:
    """Without shortcuts exactly one activation crosses a boundary, and its gradient back."""
    names = [op.name for op in graph.ops[1 : forward_op_count(graph)]]
    cut = data.draw(st.sampled_from(names))
    plan = build_plan(graph, Pipeline((cut,)))
    sizes = {t.name: t.max_bytes for t in plan.tensors}
    by_phase = {
        phase: [sizes[c.tensor] for c in plan.crossings if c.phase == phase]
        for phase in ("forward", "backward")
    }
    assert len(by_phase["forward"]) == 1
    needed = any(name.startswith("p") for op in graph.ops[: _at(graph, cut)] for name in op.inputs)
    crossing = next(c.tensor for c in plan.crossings if c.phase == "forward")
    if needed and any(crossing in op.inputs for op in graph.ops[forward_op_count(graph) :]):
        assert by_phase["backward"] == by_phase["forward"]


def _at(graph: Graph, name: str) -> int:
    return next(index for index, op in enumerate(graph.ops) if op.name == name)


@given(training_steps(max_ops=9), st.integers(1, 4))
def test_balance_is_within_its_slack_of_the_best_cut(graph: Graph, stages: int) -> None:
    ends = op_end_ns(graph, CostModel())
    limit = forward_op_count(graph)
    if stages > limit and stages > 1:
        with pytest.raises(ArgumentError, match="stages for a forward"):
            cut_in_balance(graph, ends, stages)
        return
    cuts = cut_in_balance(graph, ends, stages)
    assert len(cuts) == stages - 1
    times = [0, *ends[:limit]]

    def longest(chosen: tuple[int, ...]) -> int:
        return max(times[b] - times[a] for a, b in pairwise((0, *chosen, limit)))

    every = list(combinations(range(1, limit), stages - 1))
    allowed = min(map(longest, every))
    allowed += allowed * SLACK_PERCENT // 100
    assert longest(cuts) <= allowed
    weights = {chosen: sum(_alive(graph, at, limit) for at in chosen) for chosen in every}
    assert weights[cuts] == min(w for chosen, w in weights.items() if longest(chosen) <= allowed)


def _alive(graph: Graph, cut: int, limit: int) -> int:
    """Bytes of what the forward makes before the cut and reads after it."""
    late = {name for op in graph.ops[cut:limit] for name in op.inputs}
    made = [v for v in graph.values if v.producer is not None and v.producer < cut]
    sizes = {v.name: 4 * prod(d for d in v.shape if isinstance(d, int)) for v in made}
    return sum(size for name, size in sizes.items() if name in late)


@pytest.mark.parametrize(
    ("split", "message"),
    [
        (0, "integer of 1"),
        (True, "integer of 1"),
        (2.5, "neither a number"),
        (("nothing",), "neither an operation nor a module"),
        (("op2", "op1"), "not in the order"),
        (("op0",), "a stage is empty"),
    ],
)
def test_splits_are_checked(split: object, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        build_plan(_straight(4), Pipeline(split))  # type: ignore[arg-type]


def _straight(count: int) -> Graph:
    """A chain whose every operation has a parameter in a module of its own."""
    values = [Value("x", "input", "float32", 4, (64,))]
    ops = []
    for index in range(count):
        parameter = Value(f"layer{index}.weight", "parameter", "float32", 4, (64,))
        source = "x" if index == 0 else f"v{index - 1}"
        made = Value(f"v{index}", "activation", "float32", 4, (64,), producer=index)
        ops.append(Op(f"op{index}", "generated", (source, parameter.name), (made.name,)))
        values += [parameter, made]
    for index in reversed(range(count)):
        at = len(ops)
        upstream = () if index == count - 1 else (f"g{index + 1}",)
        grad = Value(
            f"layer{index}.weight.grad", "gradient", "float32", 4, (64,), at, None, at,
            f"layer{index}.weight",
        )  # fmt: skip
        back = Value(f"g{index}", "backward", "float32", 4, (64,), at + 1)
        ops.append(Op(f"gw{index}", "generated", (*upstream, f"v{index}"), (grad.name,)))
        reads = (*upstream, f"layer{index}.weight")
        ops.append(Op(f"gx{index}", "generated", reads, (back.name,)))
        values += [grad, back]
    return Graph((), tuple(values), tuple(ops), (), "joint_graph", "loss_fn", "generated")


def test_a_stage_begins_where_a_module_is_first_read() -> None:
    plan = build_plan(_straight(6), Pipeline(("layer2", "op4")))
    assert [(c.tensor, c.group, c.root) for c in plan.crossings] == [
        ("v1", "stage0-stage1", 0),
        ("v3", "stage1-stage2", 1),
        ("g4", "stage2-stage1", 2),
        ("g2", "stage1-stage0", 1),
    ]
    held = {t.name: t.homes for t in plan.tensors if t.role == "parameter"}
    assert held == {f"layer{k}.weight": (f"stage{k // 2}",) for k in range(6)}
    assert dict(plan.strategy.options)["stage1"] == "op2"


def test_inputs_cross_only_when_asked() -> None:
    graph = _straight(4)
    reads_input = Op("op3", "generated", ("v2", "x", "layer3.weight"), ("v3",))
    ops = tuple(reads_input if op.name == "op3" else op for op in graph.ops)
    graph = Graph((), graph.values, ops, (), "joint_graph", "loss_fn", "generated")
    for share, wanted in ((False, []), (True, [("x", 0)])):
        plan = build_plan(graph, Pipeline(("op2",), share_inputs=share))
        assert [(c.tensor, c.root) for c in plan.crossings if c.tensor == "x"] == wanted


@pytest.mark.slow
def test_time_grows_no_faster_than_the_graph() -> None:
    """Four times the operations, at most eight times the time: noise is allowed, squares not."""
    small, large = least_of_turns(lambda: _cpu_s(1_000), lambda: _cpu_s(4_000))
    assert large < 8 * small


def _cpu_s(count: int) -> float:
    graph = _straight(count)
    facts = StepFacts(graph, lifetimes(graph), op_end_ns(graph, CostModel()))
    taken_s, spread = cpu_s(lambda: Pipeline(4).spread(facts))
    assert len(spread.crossings) == 6
    assert all(isinstance(stay.lifetime, Lifetime) for stay in spread.stays)
    return taken_s
