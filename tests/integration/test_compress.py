"""Ranks compress one model together: under DDP and under a plan, and where they differ."""

from __future__ import annotations

from pathlib import Path

import jobs
import pytest


@pytest.mark.parametrize("kind", ["ddp", "plan"])
@pytest.mark.parametrize("by", ["near_zero", "contribution"])
def test_ranks_with_other_data_get_the_same_model(
    kind: str, by: str, path_forced: dict[str, str], tmp_path: Path
) -> None:
    ranks = jobs.run("roles_compress:agree", 2, tmp_path, environment=path_forced, kind=kind, by=by)
    assert jobs.results(ranks) == [True, True]


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("weights", "the weights or the rule of 2.weight differs between rank 2 and rank 0"),
        ("rule", "the weights or the rule of 2.weight differs between rank 2 and rank 0"),
        ("mask", "the mask of 2.weight differs between rank 2 and rank 0"),
    ],
)
def test_ranks_that_differ_all_say_where(what: str, words: str, tmp_path: Path) -> None:
    ranks = jobs.run("roles_compress:differing", 3, tmp_path, what=what)
    for said in jobs.results(ranks):
        assert said.startswith(words)
