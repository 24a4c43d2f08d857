"""Recordings of several ranks against each other, against a graph's plan, and as one plan."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from recorded_steps import STEP, collective, gradient, message, planned, programs

from graph_analysis import (
    PlanError,
    RecordedOp,
    missing_from,
    plan_from_json,
    plan_to_json,
    record_plan,
    recorded_difference,
    render_html,
    render_text,
)
from graph_analysis.recording import (
    ANY_SOURCE,
    form_difference,
    recording_from_json,
    recording_to_json,
)


@settings(max_examples=50, deadline=None)
@given(programs())
def test_the_plan_has_each_operation_once_with_its_bytes(ranks: list[list[RecordedOp]]) -> None:
    recordings = [tuple(recording) for recording in ranks]
    plan = record_plan(recordings)
    assert plan_from_json(plan_to_json(plan)) == plan  # which looks for contradictions too
    wanted = [(op.operation, op.size_bytes) for op in ranks[0] if op.operation != "send"]
    for rank, recording in enumerate(ranks):
        sends = [op for op in recording if op.operation == "send" and op.root == rank]
        wanted += [("send", op.size_bytes) for op in sends]
    sizes = {tensor.name: tensor.size_bytes for tensor in plan.tensors}
    assert sorted((c.operation, sizes[c.tensor]) for c in plan.crossings) == sorted(wanted)
    assert len(plan.buckets) == len(wanted)
    assert sum(bucket.payload_bytes for bucket in plan.buckets) == sum(size for _, size in wanted)


def test_what_left_together_is_one_bucket() -> None:
    plan = record_plan([STEP, STEP])
    backward = [bucket.tensors for bucket in plan.buckets if bucket.phase == "backward"]
    assert backward == [("w.grad", "v.grad"), ("u.grad",), ("all_reduce 3",)]
    assert plan.source == "recorded"
    assert record_plan([STEP, STEP]).fingerprint() == plan.fingerprint()
    assert "what a backend saw" in render_text(plan)
    assert "u.grad" in render_html(plan)


def test_a_tensor_that_crosses_twice_counts_twice() -> None:
    plan = record_plan([STEP + STEP[2:3]] * 2)
    sizes = {tensor.name: tensor.size_bytes for tensor in plan.tensors}
    assert sizes["u.grad"] == sizes["u.grad again 2"] == 16
    assert len(plan.crossings) == 6


OTHER: dict[str, tuple[Callable[[], tuple[RecordedOp, ...]], str]] = {
    "name": (
        lambda: (*STEP[:2], collective("all_reduce", 4, gradient("x", 4)), STEP[3]),
        "collective 3 of the step, tensor u.grad: ",
    ),
    "shape": (
        lambda: (
            STEP[0],
            collective("all_reduce", 8, gradient("w", 4), gradient("v", 4)),
            *STEP[2:],
        ),
        "collective 2 of the step, tensor w.grad: ",
    ),
    "bytes": (lambda: (*STEP[:3], collective("all_reduce", 2)), "without a name (4 bytes): "),
    "operation": (lambda: (*STEP[:3], collective("reduce_scatter", 3)), "all_reduce of a tensor"),
    "reduction": (lambda: (*STEP[:3], replace(STEP[3], reduce_op=4)), "reduce_op=4"),
    "root": (
        lambda: (replace(STEP[0], root=1), *STEP[1:]),
        "collective 1 of the step, broadcast of mean",
    ),
    "fewer": (lambda: STEP[:3], "the ranks have [4, 3] collectives"),
}


@pytest.mark.parametrize("kind", OTHER)
def test_ranks_that_differ_are_told_the_first_tensor(kind: str) -> None:
    make, words = OTHER[kind]
    with pytest.raises(PlanError, match="the ranks recorded different steps: ") as caught:
        record_plan([STEP, make()])
    assert words in str(caught.value)


def test_a_rank_without_names_agrees_with_one_that_has_them() -> None:
    bare = tuple(replace(op, tensors=()) for op in STEP)
    assert recorded_difference([STEP, bare]) is None
    assert record_plan([STEP, bare]) == record_plan([STEP, STEP])


def test_messages_must_be_received() -> None:
    sent, late = message(0, 1, 4, is_receive=False), message(0, 1, 4, is_receive=True, tag=1)
    small = message(0, 1, 3, is_receive=True)
    anybody = replace(small, root=ANY_SOURCE)
    assert form_difference([(sent,), (message(0, 1, 9, is_receive=True),)]) is None
    assert form_difference([(sent,), (anybody,)]) is None
    for wrong in ((), (late,), (small,), (sent,)):
        assert "messages from rank 0 to 1" in str(form_difference([(sent,), wrong]))


def test_recordings_travel_as_text() -> None:
    assert recording_from_json(recording_to_json(STEP)) == STEP
    for damage in ("", "7", "[1]", "[{}]", recording_to_json(STEP).replace("broadcast", "shout")):
        with pytest.raises(PlanError, match="not a recording"):
            recording_from_json(damage)


def test_against_the_plan_of_a_graph() -> None:
    step = STEP[1:]  # a metric's sum is in it, of which no graph knows
    step = (collective("all_reduce", 8, gradient("w", 4), gradient("v", 4)), *step[1:])
    recorded = record_plan([step, step])
    assert missing_from(recorded, planned(w=4, v=4, u=4)) is None
    wrong = {
        "tensor x.grad: the plan has all_reduce of 8 bytes, none": planned(w=4, v=4, u=4, x=2),
        "tensor u.grad: recorded were all_reduce of 16 bytes": planned(w=4, v=4),
        "tensor u.grad: the plan has all_reduce of 20 bytes": planned(w=4, v=4, u=5),
    }
    for words, plan in wrong.items():
        assert words in str(missing_from(recorded, plan))
