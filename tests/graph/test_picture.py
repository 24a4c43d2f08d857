"""The page: well-formed, self-contained, the same bytes each time, and true to its plan."""

import re
from dataclasses import replace
from html import escape
from xml.etree import ElementTree

import pytest
from generated_graphs import graphs, training_steps
from hypothesis import given
from hypothesis import strategies as st

from graph_analysis.build import build_plan
from graph_analysis.ir import Graph, Omission, Op, Value
from graph_analysis.picture import render_html
from graph_analysis.picture.svg import MARGIN_LEFT, WIDTH, Scale, free_label, shortened, ticks
from graph_analysis.plan import TransferPlan
from graph_analysis.strategies import DataParallel, ParameterServer, Pipeline, Strategy

pytestmark = pytest.mark.timeout(300)

SVG = "{http://www.w3.org/2000/svg}"


def _pictures(page: str) -> dict[str, ElementTree.Element]:
    """Every drawing by its label."""
    found = [ElementTree.fromstring(s) for s in re.findall(r"<svg.*?</svg>", page, re.DOTALL)]
    return {str(drawing.get("aria-label")): drawing for drawing in found}


def _titles(drawing: ElementTree.Element) -> list[str]:
    return [str(title.text) for title in drawing.iter(f"{SVG}title")]


@given(graphs(), st.sampled_from([DataParallel(3), ParameterServer(2, 2)]))
def test_page_of_any_plan_is_well_formed_and_repeatable(graph: Graph, strategy: Strategy) -> None:
    plan = build_plan(graph, strategy)
    page = render_html(plan)
    assert page == render_html(plan)
    _check_page(page, plan)


@given(training_steps(), st.integers(1, 2))
def test_pipelines_are_drawn_with_a_lane_for_each_stage(graph: Graph, stages: int) -> None:
    plan = build_plan(graph, Pipeline(stages))
    page = render_html(plan)
    _check_page(page, plan)
    if stages == 2:
        words = {t.text for t in _pictures(page)["graph with crossing tensors"].iter(f"{SVG}text")}
        assert {"stage0", "stage1", "rank 0", "rank 1"} <= words


def _check_page(page: str, plan: TransferPlan) -> None:
    assert plan.fingerprint() in page
    # No script, nothing to fetch: the page works from a file and years later.
    assert not re.search(r"<script|<link|<img|url\(|<[^>]*(src|href)=", page)
    drawings = _pictures(page)
    stepwise = [c for c in plan.crossings if c.phase != "setup"]
    assert bool(drawings) == bool(stepwise)
    for drawing in drawings.values():
        _check_inside(drawing)
    if stepwise:
        titles = _titles(drawings["graph with crossing tensors"])
        arrows = [title for title in titles if not title.endswith("made about here")]
        assert sorted(arrow.split(" ")[1] for arrow in arrows) == sorted(
            c.tensor.split(" ")[0] for c in stepwise
        )
    for arena in plan.arenas:
        if arena.placements:
            titles = _titles(drawings[f"arena {arena.name} over time"])
            assert len(titles) == len(arena.placements) + 1  # and the line of bytes alive
    if plan.buckets:
        titles = _titles(drawings["time line of the buckets"])
        assert sum(" tensors, " in title for title in titles) == len(plan.buckets)
    for omission in plan.omissions:
        assert escape(omission.reason) in page


def _check_inside(drawing: ElementTree.Element) -> None:
    """No box leaves the picture, none has a negative size."""
    _, _, width, height = map(float, str(drawing.get("viewBox")).split())
    for box in drawing.iter(f"{SVG}rect"):
        x, y, w, h = (float(str(box.get(key))) for key in ("x", "y", "width", "height"))
        assert min(x, y, w, h) >= 0
        assert x + w <= width + 0.2
        assert y + h <= height + 0.2


def test_names_cannot_break_out_of_the_page() -> None:

    name = 'a<b>&"c'
    values = (
        Value(name, "parameter", "float32", 4, (4,)),
        Value(f"{name}.grad", "gradient", "float32", 4, (4,), 0, None, 0, name),
    )
    ops = (Op("op<0>", "f", (name,), (f"{name}.grad",)),)
    omissions = (Omission("<script>", "<img src=x>"),)
    graph = Graph((), values, ops, omissions, "joint_graph", "loss_fn", "by hand")
    for strategy in (DataParallel(2), ParameterServer(1, 2)):
        plan = build_plan(graph, strategy)
        _check_page(render_html(plan), plan)
    assert "<script>" not in render_html(replace(plan, captured_with="<script>"))


@given(st.floats(0, 1e12), st.integers(1, 9))
def test_ticks_are_few_round_and_inside(top: float, count: int) -> None:
    found = ticks(top, count)
    assert found[0] == 0
    assert len(found) <= count + 1
    assert found[-1] <= top
    if len(found) > 1:
        step = found[1]
        assert str(step).rstrip("0") in ("1", "2", "5")
        assert found == list(range(0, found[-1] + 1, step))


def test_scales_and_labels() -> None:
    assert Scale(10, MARGIN_LEFT, WIDTH).at(10) == WIDTH
    assert Scale(0, 5, 9).at(3) == 5
    assert shortened("weight", 100) == "weight"
    assert shortened("blocks.0.weight", 55) == "\u2026.weight"
    assert shortened("blocks.0.weight", 20) == ""
    taken: list[tuple[float, float]] = []
    assert [free_label(taken, at, 10) for at in (0, 5, 10, 30, 25)] == [
        True, False, True, True, False,
    ]  # fmt: skip
