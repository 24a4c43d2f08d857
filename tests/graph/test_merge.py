"""A graph's plan and a recorded one as one: who knows of what, and that both agree."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from recorded_steps import RANKS, STEP, collective, gradient, message, planned, programs

from graph_analysis import (
    GraphCollectives,
    ParameterServer,
    PlanError,
    RecordedOp,
    TransferPlan,
    build_plan,
    merge_plans,
    missing_from,
    plan_from_json,
    plan_to_json,
    record_plan,
    render_html,
    render_text,
)
from graph_analysis.ir import Collective, Graph, Op, Value

# A buffer that no graph here knows, three gradients in two messages, and a metric's sum.
SEEN = (STEP[0], collective("all_reduce", 8, gradient("w", 4), gradient("v", 4)), *STEP[2:])


def sources(plan: TransferPlan) -> dict[str, str]:
    return {c.tensor: c.source for c in plan.crossings if c.phase != "setup"}


def merged(graph_plan: TransferPlan, *ranks: tuple[RecordedOp, ...]) -> TransferPlan:
    """Merge, and hold what is true of every merged plan."""
    recorded = record_plan(ranks)
    plan = merge_plans(graph_plan, recorded)
    text = plan_to_json(plan)
    assert plan_from_json(text) == plan  # which looks for contradictions
    assert plan_to_json(plan_from_json(text)) == text
    assert plan_to_json(merge_plans(graph_plan, recorded)) == text
    assert merge_plans(plan, recorded) == plan
    known = Counter(c.source for c in plan.crossings if c.phase != "setup")
    assert known["both"] + known["recorded"] == len(recorded.crossings)
    assert known["both"] + known["graph"] == sum(c.phase != "setup" for c in graph_plan.crossings)
    assert [c for c in plan.crossings if c.phase == "setup"] == [
        c for c in graph_plan.crossings if c.phase == "setup"
    ]
    return plan


def test_what_only_the_recorder_saw_joins_the_plan() -> None:
    graph_plan = planned(w=4, v=4, u=4)
    plan = merged(graph_plan, SEEN, SEEN)
    assert sources(plan) == {
        "mean": "recorded",
        "w.grad": "both",
        "v.grad": "both",
        "u.grad": "both",
        "all_reduce 3": "recorded",
    }
    # What leaves together is what left together, not what the cost model would send.
    assert [b.tensors for b in graph_plan.buckets] == [("w.grad", "v.grad", "u.grad")]
    assert [b.tensors for b in plan.buckets] == [
        ("mean",),
        ("w.grad", "v.grad"),
        ("u.grad",),
        ("all_reduce 3",),
    ]
    assert [b.payload_bytes for b in plan.buckets] == [16, 32, 16, 4]
    assert {b.group for b in plan.buckets} == {"data"}  # the graph's name of the same ranks
    assert plan.tensors[: len(graph_plan.tensors)] == graph_plan.tensors
    metric = plan.tensors[-1]
    assert (metric.name, metric.size_bytes) == ("all_reduce 3", 4)
    assert (metric.first_use, metric.last_use) == (0, plan.op_count)
    assert plan.arenas[0].peak_bytes == 5 * 64  # each keeps a place of its own


def test_the_report_and_the_page_show_who_knows() -> None:
    plan = merged(planned(w=4, v=4, u=4, x=2), SEEN, SEEN)
    text = render_text(plan)
    assert "a graph, and what a backend saw in the first steps" in text
    rows = [line for line in text.splitlines() if "every step, backward" in line]
    known = [line.rpartition("  ")[2].strip() for line in rows]
    assert known == ["both", "recorder alone", "graph alone"]
    assert "In the graph, and in no step that was recorded\n  x.grad: all_reduce\n" in text
    assert "all_reduce 3" in render_html(plan)
    alone = render_text(planned(w=4))
    assert "known from" not in alone
    assert "no step that was recorded" not in alone


def test_what_was_never_seen_stays_and_is_marked() -> None:
    plan = merged(planned(w=4, v=4, u=4, x=2), SEEN, SEEN)
    assert sources(plan)["x.grad"] == "graph"
    assert [b.tensors for b in plan.buckets][-1] == ("x.grad",)


def test_a_merged_plan_is_held_by_the_next_run() -> None:
    """Read back, it wants what only the recorder had seen, too."""
    plan = merged(planned(w=4, v=4, u=4), SEEN, SEEN)
    assert missing_from(record_plan([SEEN, SEEN]), plan) is None
    without = record_plan([SEEN[:3], SEEN[:3]])
    assert "tensor all_reduce 3: the plan has all_reduce of 4 bytes, none" in str(
        missing_from(without, plan)
    )


def test_a_gradient_that_the_graph_does_not_have() -> None:
    plan = merged(planned(w=4, v=4), SEEN, SEEN)
    assert sources(plan)["u.grad"] == "recorded"
    (tensor,) = [t for t in plan.tensors if t.name == "u.grad"]
    assert (tensor.parameter, tensor.ready_order) == ("u", 2)


OTHER: dict[str, tuple[Callable[[], TransferPlan], str]] = {
    "bytes": (lambda: planned(w=4, v=4, u=5), "u.grad: the graph's plan has all_reduce of 20"),
    "shape": (lambda: planned(w=4, v=4, u=4), "tensor w: (4,) of float32 in the graph, recorded"),
    "ranks": (lambda: planned(3, w=4), "plans for 3 and 2 ranks"),
    "server": (
        lambda: build_plan(graph_of(), ParameterServer(1, 1)),
        "a parameter_server plan cannot be merged",
    ),
    "source": (lambda: record_plan([SEEN, SEEN]), "plans from recorded and recorded"),
}


@pytest.mark.parametrize("kind", OTHER)
def test_plans_that_are_not_of_one_step_are_refused(kind: str) -> None:
    make, words = OTHER[kind]
    seen = STEP if kind == "shape" else SEEN  # in which w is of two dimensions
    with pytest.raises(PlanError) as caught:
        merge_plans(make(), record_plan([seen, seen]))
    assert words in str(caught.value)
    with pytest.raises(PlanError, match="merged are one of a graph and a recorded one"):
        merge_plans(planned(w=4), planned(w=4))


def test_a_tensor_of_another_root_or_dtype_is_refused() -> None:
    buffers = [replace(op, root=1) for op in SEEN[:1]]
    graph_plan = merge_plans(planned(w=4), record_plan([SEEN[:1]] * 2))
    with pytest.raises(PlanError, match=r"tensor mean: .* broadcast from or to 0 of 16 bytes"):
        merge_plans(graph_plan, record_plan([tuple(buffers)] * 2))
    halves = replace(gradient("w", 8), dtype="float16", item_bytes=2)
    op = replace(collective("all_reduce", 4, halves), dtype="float16", item_bytes=2)
    with pytest.raises(PlanError, match=r"tensor w\.grad: .*float32.*float16"):
        merge_plans(planned(w=4), record_plan([(op,), (op,)]))


def graph_of(*sums: int) -> Graph:
    """A graph that holds all_reduces of so many items in a group of its own."""
    values = [Value("x", "input", "float32", 4, (1,))]
    ops: list[Op] = []
    for number, items in enumerate(sums):
        names = (f"linear_{number}", f"sum_{number}")
        for name in names:
            values.append(Value(name, "activation", "float32", 4, (items,), len(ops)))
            both = Collective("all_reduce", "tp", (0, 1), None) if name == names[1] else None
            ops.append(Op(name, "op", (values[-2].name,), (name,), both))
    return Graph((), tuple(values), tuple(ops), (), "joint_graph", "loss_fn", "test")


def test_collectives_of_a_graph_have_no_names_in_the_recording() -> None:
    """They are matched in order by all that is known; the hooks' own stay the recorder's."""
    graph_plan = build_plan(graph_of(8, 8, 5), GraphCollectives(2))
    sums = collective("all_reduce", 8)
    hook = collective("all_gather", 8)
    plan = merged(graph_plan, *[(sums, hook, sums, sums)] * 2)
    assert sources(plan) == {
        "linear_0": "both",
        "all_gather 1": "recorded",
        "linear_1": "both",
        "all_reduce 3": "recorded",
        "linear_2": "graph",
    }
    assert next(c.result for c in plan.crossings) == "sum_0"
    assert {t.name for t in plan.tensors} >= {"all_gather 1", "all_gather 1 result"}
    assert "all_reduce 0" not in {t.name for t in plan.tensors}
    assert {g.name for g in plan.groups} == {"tp"}


@settings(max_examples=15, deadline=None)
@given(programs())
def test_whatever_was_recorded_joins_a_plan(ranks: list[list[RecordedOp]]) -> None:
    """Collectives and messages without names, as of FSDP2's hooks: all are the recorder's."""
    recordings = [tuple(recording) for recording in ranks]
    graphs = (planned(RANKS, w=4, v=2), build_plan(graph_of(), GraphCollectives(RANKS)))
    for graph_plan in graphs:
        plan = merged(graph_plan, *recordings)
        recorded = record_plan(recordings)
        before = Counter((b.operation, b.payload_bytes) for b in recorded.buckets)
        before += Counter((b.operation, b.payload_bytes) for b in graph_plan.buckets)
        assert Counter((b.operation, b.payload_bytes) for b in plan.buckets) == before


def test_messages_keep_their_ends() -> None:
    ranks = [
        (message(0, 1, 4, is_receive=False),),
        (message(0, 1, 4, is_receive=True),),
        (),
    ]
    plan = merged(planned(3, w=4), *ranks)
    (sent,) = [c for c in plan.crossings if c.operation == "send"]
    assert (sent.source, sent.root) == ("recorded", 0)
    assert [g.ranks for g in plan.groups if g.name == sent.group] == [(0, 1)]
