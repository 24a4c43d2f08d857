"""What could part the ranks of a planned model is repaired, or an error on all of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jobs
import pytest

pytestmark = pytest.mark.timeout(120)


def run(role: str, tmp_path: Path) -> list[Any]:
    return jobs.results(jobs.run(f"roles_plan_ranks:{role}", 2, tmp_path, timeout_s=60.0))


def test_what_a_pass_that_raised_has_sent_is_not_the_next_one_s(tmp_path: Path) -> None:
    for rank in run("raised", tmp_path):
        assert rank["said"] == "lit"
        assert rank["buckets"] == 2
        assert rank["is_right"]


def test_buffers_are_those_that_the_model_has_now(tmp_path: Path) -> None:
    """A module may assign itself a new one; they are sent as often as by DDP."""
    first, second = run("buffers", tmp_path)
    for rank in (first, second):
        assert rank["saw"] == rank["theirs"]
        assert rank["is_same"]
        assert "the plan's buffer average is (4,) of float32" in rank["said"]
        assert "float64" in rank["said"]
    assert first["output"] == second["output"]


def test_small_buffers_leave_together(tmp_path: Path) -> None:
    """Those of floats in one message, those of integers in another, and a large one alone."""
    for rank in run("many_buffers", tmp_path):
        # And whether rank 0 has changed its own since.
        assert rank["calls"][1:] == [rank["gradients"] + 3 + 1] * 4
        assert rank["is_same"]
        # At the end of each of five steps, and before the first one.
        assert rank["copied_bytes"] == 6 * rank["small_bytes"]
        assert rank["recorded"] == rank["planned"]
        assert len(rank["planned"]) == 3 * 6 + 1
        # By the allocator: nothing besides the plan's memory, of which buffers have a part.
        assert rank["arena_bytes"] == rank["peak_bytes"]


def test_where_one_rank_refuses_all_are_told(tmp_path: Path) -> None:
    ranks = run("one_refuses", tmp_path)
    for rank in ranks:
        assert rank["world"].startswith("InvalidArgumentError")
        assert "the plan of rank 1 is for 3 ranks" in rank["world"]
        assert rank["frozen"].startswith("PlanMismatchError")
        assert "second.weight, which is frozen in the model" in rank["frozen"]
    assert "on rank 1" in ranks[0]["frozen"]


def test_a_parameter_without_elements_trains_along(tmp_path: Path) -> None:
    first, second = run("hollow", tmp_path)
    assert first["shape"] == [0, 4]
    assert first["gradient"] == second["gradient"] == [[2 * 7.5] * 4] * 4
    assert first["bits"] == second["bits"]
