"""What other ranks say of their steps, which may be anything: a plan, or refused by its error."""

import contextlib
import json
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from recorded_steps import COLLECTIVES, STEP, gradient, message

from graph_analysis import (
    PlanError,
    missing_from,
    plan_from_json,
    plan_to_json,
    record_plan,
    render_html,
    render_text,
)
from graph_analysis.recording import recording_from_json, recording_to_json

numbers = st.sampled_from([-2, -1, 0, 1, 2, 3, 4, 16, 1 << 63, 10**40]) | st.integers(0, 8)
ends = st.none() | st.sampled_from([-2, -1, 0, 0, 0, 1, 1, 2, 9])
names = st.sampled_from(
    ["w", "w.grad", "v", "v.grad", "v again 2", "send 0", "all_gather 0 result"]
)
anything = st.recursive(
    st.none() | st.booleans() | numbers | st.floats() | st.text(max_size=4) | st.just("\ud800"),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)
said_tensors = st.fixed_dictionaries(
    {
        "name": names | st.just("\ud800"),
        "role": st.sampled_from(["gradient", "gradient", "buffer", "parameter", "loss", "x"]),
        "dtype": st.sampled_from(["float32", ""]),
        "item_bytes": st.just(4) | numbers,
        "shape": st.lists(numbers, max_size=2),
        "of": st.none() | names,
    }
)
said_ops = st.fixed_dictionaries(
    {
        "operation": st.sampled_from([*COLLECTIVES, "send", "send", "send", "push", "shout"]),
        "dtype": st.just("float32"),
        "item_bytes": st.just(4) | numbers,
        "size_bytes": st.just(8) | numbers,
        "out_bytes": st.just(8) | numbers,
        "reduce_op": st.just(0) | numbers,
        "root": ends,
        "peer": ends,
        "tag": st.just(0) | numbers,
        "is_fixed": st.booleans(),
        "tensors": st.lists(said_tensors, max_size=2),
    }
)
said = st.lists(said_ops, min_size=1, max_size=3) | anything


def judge(texts: list[str]) -> None:
    """Take what ranks said as a plan that can be used, or refuse it by its error and no other."""
    try:
        plan = record_plan([recording_from_json(text) for text in texts])
    except PlanError as error:
        why = str(error)
    else:
        assert plan.fingerprint() == plan_from_json(plan_to_json(plan)).fingerprint()
        assert missing_from(plan, plan) is None
        why = render_text(plan) + render_html(plan)
    assert why.encode()  # it can be printed


@settings(deadline=None)  # a loaded machine is no finding
@given(said, said)
def test_what_peers_say_is_a_plan_or_refused(one: object, other: object) -> None:
    first, second = json.dumps(one), json.dumps(other)
    judge([first])
    judge([first, first])
    judge([first, second])


@settings(deadline=None)
@given(st.text(max_size=40) | st.integers(0, 1 << 16).map(lambda count: "[" * count))
def test_words_that_are_no_recording_are_refused(text: str) -> None:
    with contextlib.suppress(ValueError, RecursionError):
        assume(json.loads(text) != [])
    with pytest.raises(PlanError, match="not a recording"):
        recording_from_json(text)


@settings(deadline=None)
@given(st.integers(0, 1 << 16), st.characters(codec="ascii"), st.booleans())
def test_a_changed_or_missing_character_is_refused_or_harmless(
    at: int, found: str, is_cut: bool
) -> None:
    whole = recording_to_json((*STEP, message(0, 1, 4, is_receive=False)))
    at %= len(whole)
    damaged = whole[:at] + ("" if is_cut else found + whole[at + 1 :])
    judge([damaged, recording_to_json((*STEP, message(0, 1, 4, is_receive=True)))])


IMPOSSIBLE = {
    "item_bytes=0": replace(STEP[3], item_bytes=0),
    "size below 0": replace(STEP[3], size_bytes=-4),
    "no root": replace(STEP[0], root=None),
    "a root of none": replace(STEP[3], root=0),
    "no ends": replace(message(0, 1, 4, is_receive=False), root=None),
    "another's operation": replace(STEP[0], operation="push"),
    "a gradient of nothing": replace(STEP[2], tensors=(replace(gradient("u", 4), of=None),)),
    "a shape below 0": replace(STEP[2], tensors=(gradient("u", -4),)),
    "no memory is so large": replace(STEP[2], tensors=(gradient("u", 1 << 40, 1 << 40),)),
    "a name that is no text": replace(STEP[2], tensors=(gradient("\ud800", 4),)),
}


@pytest.mark.parametrize("kind", IMPOSSIBLE)
def test_what_no_backend_records_is_refused(kind: str) -> None:
    with pytest.raises(PlanError, match="not a recording"):
        recording_from_json(recording_to_json((IMPOSSIBLE[kind],)))


def test_ranks_that_are_not_there_are_refused() -> None:
    with pytest.raises(PlanError, match="there are 2 ranks"):
        record_plan([(replace(STEP[0], root=2),)] * 2)
