"""Frozen layers, checkpoints and many small gradients by a plan; what torch's profiler sees."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jobs
import pytest

pytestmark = [pytest.mark.timeout(150), pytest.mark.turns("transport", "model")]

START_S = 90.0  # two ranks capture graphs


def run(
    role: str, tmp_path: Path, environment: dict[str, str] | None = None, **arguments: Any
) -> list[Any]:
    return jobs.results(
        jobs.run(
            f"roles_plan_modes:{role}",
            2,
            tmp_path,
            timeout_s=START_S,
            environment=environment or {},
            **arguments,
        )
    )


def test_one_rank_trains_as_without_a_plan(tmp_path: Path) -> None:
    (rank,) = jobs.results(jobs.run("roles_plan_modes:alone", 1, tmp_path, timeout_s=START_S))
    assert rank["losses"] == rank["whole_losses"]  # bit by bit


def test_a_model_that_is_let_go_of_takes_its_plan_along(tmp_path: Path) -> None:
    ranks = jobs.results(jobs.run("roles_plan_modes:let_go", 2, tmp_path, timeout_s=START_S))
    assert ranks[0] == ranks[1]
    assert ranks[0]["is_kept"]
    assert ranks[0]["is_gone"]


def test_a_frozen_layer_is_left_alone(tmp_path: Path) -> None:
    ranks = run("frozen", tmp_path)
    for rank in ranks:
        assert rank["losses"] == pytest.approx(rank["gloo_losses"], rel=1e-6)
        assert rank["is_kept"]
        assert rank["has_no_gradient"]
        assert rank["planned"] == rank["trained"]
        assert rank["described"]["copied"] == rank["trained"]  # in the first step, once each
    assert ranks[0]["bits"] == ranks[1]["bits"]


def test_training_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    ranks = run("resumed", tmp_path)
    for rank in ranks:
        assert rank["losses"] == rank["whole_losses"]  # bit by bit
        assert rank["losses"] == pytest.approx(rank["gloo_losses"], rel=1e-6)
        assert rank["is_same"]
    assert ranks[0]["bits"] == ranks[1]["bits"]


@pytest.mark.parametrize("model", ["mlp", "cnn", "lstm", "gpt"])
def test_the_profiler_sees_no_copy_of_a_gradient(model: str, tmp_path: Path) -> None:
    for number, rank in enumerate(run("profiled", tmp_path, model=model)):
        # A batch norm's two averages, of eight channels, leave packed; its counter leaves from
        # where it is, and is shown by the next forward pass of the others.
        packed, elements = (2 + number, 16 + number) if model == "cnn" else (0, 0)
        assert rank["is_in_place"]
        assert rank["all_reduces"] >= rank["buckets"] > 0
        assert rank["copies"] == rank["copies_alone"] + packed
        assert rank["copied"] == rank["copied_alone"] + elements
        # It would have seen them: a step that has not learnt yet copies each gradient. Before the
        # first one, too, rank 0 sends its buffers.
        first = packed * (2 if number == 0 else 1)
        assert rank["first_copies"] == rank["copies_alone"] + first + rank["gradients"]


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_thousand_small_gradients_leave_together(transport: str, tmp_path: Path) -> None:
    ranks = run("thousand", tmp_path, {"RDMATENSOR_TRANSPORT": transport})
    for rank in ranks:
        assert rank["buckets"] == 1
        assert 0 < rank["writes"] <= 3  # messages to the peer, or fillings of our board
    assert ranks[0]["bits"] == ranks[1]["bits"]


def test_buckets_leave_while_backward_goes_on(path_forced: dict[str, str], tmp_path: Path) -> None:
    """The pass waits for the first bucket's sum, which so needs nothing that comes later."""
    for rank in run("overlap", tmp_path, path_forced):
        events = rank["events"]
        assert events.count("begun") >= 2
        last = max(events.index(f"first.{part}") for part in ("weight", "bias"))
        assert events.index("begun") < last < len(events) - 1
        assert rank["is_summed_within"]
        # Who reads a gradient after backward, to clip it or to scale it, finds the sum.
        assert rank["are_summed_after"]


def test_passes_of_two_plans_may_end_in_any_order(tmp_path: Path) -> None:
    assert jobs.results(jobs.run("roles_plan_modes:crossed", 1, tmp_path)) == [True]
