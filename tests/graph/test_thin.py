"""Thin plans: what is masked takes no place in any bucket, and everything else stays."""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import replace
from typing import Any

import pytest
from generated_graphs import graphs
from hypothesis import given
from hypothesis import strategies as st
from test_plan_json import PLAN, _sealed

from graph_analysis import Mask, render_html, render_text, thin
from graph_analysis.build import build_plan
from graph_analysis.errors import ArgumentError, PlanError
from graph_analysis.ir import CostModel, Graph, Op, Value
from graph_analysis.plan import LiveBlocks, TransferPlan, first_difference
from graph_analysis.plan_check import check_plan
from graph_analysis.plan_json import plan_from_json, plan_to_json
from graph_analysis.strategies import DataParallel, ParameterServer, Strategy

pytestmark = pytest.mark.timeout(300)

strategies = st.one_of(
    st.builds(DataParallel, st.integers(1, 4), st.booleans()), st.just(ParameterServer(2, 2))
)


def elements(shape: tuple[Any, ...]) -> tuple[int, int]:
    """Return rows and columns."""
    columns = 1
    for size in shape[1:]:
        columns *= size
    return (shape[0] if shape else 1), columns


def live_elements(shape: tuple[Any, ...], mask: Mask) -> int:
    """Count one by one."""
    rows, columns = elements(shape)
    wide = -(-columns // mask.block[1])
    return sum(
        row // mask.block[0] * wide + column // mask.block[1] in mask.live
        for row, column in itertools.product(range(rows), range(columns))
    )


def masks_of(plan: TransferPlan, data: st.DataObject) -> dict[str, Mask]:
    found = {}
    for tensor in plan.tensors:
        if tensor.role != "gradient" or not data.draw(st.booleans()):
            continue
        block = data.draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
        rows, columns = elements(tensor.shape)
        count = -(-rows // block[0]) * -(-columns // block[1])
        live = data.draw(st.sets(st.integers(0, count - 1))) if count else set()
        assert tensor.parameter is not None
        found[tensor.parameter] = Mask(block, tuple(sorted(live)))
    return found


@given(graphs(), strategies, st.data())
def test_thin_plans_of_any_graph(graph: Graph, strategy: Strategy, data: st.DataObject) -> None:
    dense = build_plan(graph, strategy, cost=CostModel(latency_ns=data.draw(st.integers(0, 9000))))
    masks, before = masks_of(dense, data), plan_to_json(dense)
    plan = thin(dense, masks)
    assert plan_to_json(dense) == before
    check_plan(plan)
    assert plan_from_json(plan_to_json(plan)) == plan
    assert thin(dense, masks) == plan
    assert thin(plan, masks).live == plan.live
    hidden = {one.tensor for one in plan.live}
    assert (plan.fingerprint() != dense.fingerprint()) == bool(hidden)
    assert plan.fingerprint() in render_text(plan)
    assert plan.fingerprint() in render_html(plan)
    for name in ("tensors", "crossings", "groups", "symbols", "op_count"):
        assert getattr(plan, name) == getattr(dense, name)
    # Each gradient has the bytes of its live blocks; all others have what they had.
    wanted = {
        t.name: t.max_bytes
        if t.parameter not in masks
        else live_elements(t.shape, masks[t.parameter]) * t.item_bytes
        for t in dense.tensors
    }
    for arena in plan.arenas:
        assert {p.tensor: p.size_bytes for p in arena.placements} == {
            p.tensor: wanted[p.tensor]
            for old in dense.arenas
            for p in old.placements
            if old.name == arena.name
        }
    assert sum(b.payload_bytes for b in plan.buckets) <= sum(b.payload_bytes for b in dense.buckets)
    assert order_of(plan) == order_of(dense)


def order_of(plan: TransferPlan) -> dict[tuple[Any, ...], list[str]]:
    """Return the order of what is sent, by stream."""
    found: dict[tuple[Any, ...], list[str]] = {}
    for bucket in plan.buckets:
        key = (bucket.phase, bucket.operation, bucket.group, bucket.root)
        found.setdefault(key, []).extend(bucket.tensors)
    return found


def layers(count: int) -> Graph:
    """A step whose gradients become ready one after another."""
    values = [Value("x", "input", "float32", 4, (8,))]
    ops = []
    for index in range(count):
        weight = Value(f"w{index}", "parameter", "float32", 4, (64, 64))
        values += [weight, replace(weight, name=f"w{index}.grad", role="gradient", producer=index)]
        values[-1] = replace(values[-1], ready=index, of=weight.name)
        ops.append(Op(f"op{index}", "generated", ("x", weight.name), (f"w{index}.grad",)))
    return Graph((), tuple(values), tuple(ops), (), "joint_graph", "output_sum", "by hand")


def test_small_buckets_are_sent_together_where_a_message_costs_more_than_it_saves() -> None:
    cost = CostModel(latency_ns=10_000, bandwidth_bytes_per_s=1_000_000_000, op_ns=20_000)
    dense = build_plan(layers(8), DataParallel(2), cost=cost)
    few = Mask((1, 16), tuple(range(0, 256, 32)))
    plan = thin(dense, {f"w{index}": few for index in range(8)})
    assert len(dense.buckets) > len(plan.buckets)
    assert sum(b.payload_bytes for b in plan.buckets) * 32 == sum(
        b.payload_bytes for b in dense.buckets
    )
    assert max(b.finish_ns for b in plan.buckets) < max(b.finish_ns for b in dense.buckets)
    assert len(thin(dense, {"w3": few}).buckets) <= len(dense.buckets)


def test_a_mask_that_hides_nothing_changes_nothing() -> None:
    assert thin(PLAN, {}) == PLAN
    assert thin(PLAN, {"w": Mask((1, 5), (0, 1, 2))}) == PLAN
    thinned = thin(PLAN, {"w": Mask((1, 5), (1,))})
    assert thinned != PLAN
    assert thin(thinned, {}).fingerprint() == PLAN.fingerprint()


def test_the_report_says_what_is_sent_in_part() -> None:
    text = render_text(thin(PLAN, {"w": Mask((2, 4), (0, 3))}))
    assert re.search(r"w\.grad +2x4 +2 +4 +36 +60\n", text)  # 2x4, and the corner of 1x1
    assert "Sent in part" not in render_text(PLAN)


@pytest.mark.parametrize(
    ("masks", "words"),
    [
        ({"v": Mask((1, 1), ())}, "no gradient of v"),
        ({"w": Mask((0, 1), ())}, r"blocks of \(0, 1\)"),
        ({"w": Mask((1, True), ())}, r"blocks of \(1, True\)"),
        ({"w": Mask((1, 5), (3,))}, "ascending block numbers below 3"),
        ({"w": Mask((1, 5), (-1,))}, "ascending block numbers below 3"),
        ({"w": Mask((1, 5), (1, 0))}, "ascending block numbers below 3"),
        ({"w": Mask((1, 5), (1, 1))}, "ascending block numbers below 3"),
    ],
)
def test_masks_that_do_not_fit_are_refused(masks: dict[str, Mask], words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        thin(PLAN, masks)


@pytest.mark.parametrize(
    ("mine", "theirs", "words"),
    [
        (((1, 5), (0, 1)), ((1, 5), (0, 2)), "block 1 is live here only"),
        (((1, 5), (0, 2)), ((1, 5), (0, 1)), "block 1 is live there only"),
        (((1, 5), (0,)), ((1, 1), (0,)), r"blocks of (1, 5) here, (1, 1) there"),
        (((1, 5), (0, 1, 2)), ((1, 5), (0,)), "blocks are masked there only"),
        (((1, 5), (0,)), ((1, 5), (0, 1, 2)), "blocks are masked here only"),
    ],
)
def test_the_difference_names_the_parameter(mine: Any, theirs: Any, words: str) -> None:
    here, there = thin(PLAN, {"w": Mask(*mine)}), thin(PLAN, {"w": Mask(*theirs)})
    assert first_difference(here, there) == f"the mask of w differs: {words}"


@pytest.mark.parametrize(
    "live",
    [
        {"tensor": "nothing"},
        {"tensor": "w"},
        {"block": [0, 5]},
        {"block": [1]},
        {"live": [1, 0]},
        {"live": [3]},
        {"live": [-1]},
        {"live": [0, 1]},  # other bytes than the placement has
        {"live": [0.0]},
        {"other": 1},
    ],
)
def test_a_thin_plan_that_contradicts_itself_is_refused(live: dict[str, Any]) -> None:
    plan = thin(PLAN, {"w": Mask((1, 5), (1,))})
    assert plan.live == (LiveBlocks("w.grad", (1, 5), (1,)),)
    body = json.loads(plan_to_json(plan))["plan"]
    assert plan_from_json(_sealed(body)) == plan
    body["live"][0] |= live
    with pytest.raises(PlanError):
        plan_from_json(_sealed(body))
    body["live"] *= 2
    with pytest.raises(PlanError):
        plan_from_json(_sealed(body))
