"""Backward passes that are not one sum of all gradients, by a plan."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jobs
import pytest

START_S = 90.0  # two ranks capture a graph each


def run(role: str, tmp_path: Path, **arguments: Any) -> list[Any]:
    ranks = jobs.run(f"roles_plan_passes:{role}", 2, tmp_path, timeout_s=START_S, **arguments)
    return jobs.results(ranks)


@pytest.mark.timeout(150)
def test_reentrant_checkpoints_have_their_gradients_summed(tmp_path: Path) -> None:
    for rank in run("checkpointed", tmp_path, is_shared=False):
        assert rank == {"said": "", "is_right": [True] * 3, "steps": 3}


@pytest.mark.timeout(150)
def test_a_parameter_that_reentrant_checkpoints_share_is_no_silent_wrong_sum(
    tmp_path: Path,
) -> None:
    for rank in run("checkpointed", tmp_path, is_shared=True):
        assert "had a gradient again" in rank["said"]
        assert "first." in rank["said"]
        assert rank["is_right"] == []


@pytest.mark.timeout(150)
def test_grad_alone_sends_nothing_and_counts_as_no_step(tmp_path: Path) -> None:
    first, second = run("differentiated", tmp_path)
    assert first["left"] == [True] * 4
    for rank in (first, second):
        assert rank["is_right"] == [True] * 12
        assert rank["steps"] == 12


@pytest.mark.timeout(150)
def test_a_rank_that_used_no_parameter_sends_zeros(tmp_path: Path) -> None:
    for rank in run("unused_by_one", tmp_path):
        assert rank == {"is_right": True, "steps": 1}


@pytest.mark.timeout(150)
def test_what_leaves_from_aside_is_counted_as_copied(tmp_path: Path) -> None:
    for rank in run("held", tmp_path):
        first, second, third, fourth = rank["copied"]
        assert first - third == rank["gradient_bytes"]  # learnt: each copied once
        assert second == third  # small sums go over boards, which copy
        # The stray into the copy of the bucket, the copy, and all of it back.
        aside = rank["kept_bytes"] + rank["flat_bytes"] + rank["gradient_bytes"]
        assert fourth - third == aside
