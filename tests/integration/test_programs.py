"""Programs that are right are not ended by what the backend does of itself."""

from __future__ import annotations

from pathlib import Path

import jobs
import pytest

pytestmark = [pytest.mark.timeout(90), pytest.mark.turns("transport")]


def test_groups_are_split_after_groups_of_some_ranks(
    path_forced: dict[str, str], tmp_path: Path
) -> None:
    ranks = jobs.run("roles_programs:splits", 3, tmp_path, environment=path_forced)
    first, second, third = (rank["found"] for rank in jobs.results(ranks))
    assert first == third == [2.0] * 4
    assert second == [1.0] * 2


def test_timeouts_without_an_end(path_forced: dict[str, str], tmp_path: Path) -> None:
    ranks = jobs.run("roles_programs:long_timeouts", 2, tmp_path, environment=path_forced)
    assert jobs.results(ranks) == [["2.0"] * 4] * 2


def test_integers_are_averaged(path_forced: dict[str, str], tmp_path: Path) -> None:
    """Summed, then divided and truncated toward zero, as NCCL does."""
    ranks = jobs.run("roles_programs:averages", 2, tmp_path, environment=path_forced)
    assert jobs.results(ranks) == [[3, -3, 7, 1 << 40]] * 2


def test_the_host_of_the_store_lets_others_join(
    path_forced: dict[str, str], tmp_path: Path
) -> None:
    role = "roles_programs:the_host_leaves_at_once"
    ranks = jobs.run(role, 3, tmp_path, environment=path_forced)
    assert jobs.results(ranks) == [0.0, 1.0, 1.0]


def test_pairs_meet_after_the_host_of_the_store_has_left(
    path_forced: dict[str, str], tmp_path: Path
) -> None:
    role = "roles_programs:the_host_of_the_store_leaves"
    ranks = jobs.run(role, 3, tmp_path, environment=path_forced)
    assert jobs.results(ranks) == [0.0, 2.0, 1.0]
