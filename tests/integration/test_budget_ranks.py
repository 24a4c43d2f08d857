"""Ranks fit a budget together: one choice for all, and what differs is named on all."""

from __future__ import annotations

from pathlib import Path

import jobs
import pytest


@pytest.mark.timeout(120)
def test_all_ranks_choose_alike_by_the_largest_step(tmp_path: Path) -> None:
    ranks = jobs.results(jobs.run("roles_budget:agree", 2, tmp_path, timeout_s=60))
    prints, recomputed, same, peaks, alone = zip(*ranks, strict=True)
    assert len(set(prints)) == 1
    assert recomputed[0] > 0
    assert all(same)
    assert peaks[0] == peaks[1] == max(alone) > min(alone)


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("model", "the model or its units is"),
        ("budget", "the budget is (1073741824, ('recompute',)) on rank 2"),
        ("tier", "tier 'disk' is unknown"),
        ("calls", "a step calls none of the units"),
    ],
)
def test_ranks_that_differ_all_say_where(what: str, words: str, tmp_path: Path) -> None:
    for said in jobs.results(jobs.run("roles_budget:differing", 3, tmp_path, what=what)):
        assert words in said
