"""What torch.distributed offers beyond the plain collectives; Gloo is the oracle where it can."""

from __future__ import annotations

import re
from pathlib import Path

import jobs
import pytest

pytestmark = pytest.mark.turns("transport", first=1)

WORLDS = [2, 3]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("world", WORLDS)
def test_the_rest_of_the_surface_gives_the_bits_of_gloo(
    world: int, path_forced: dict[str, str], tmp_path: Path
) -> None:
    role = "roles_surface:compare_with_gloo"
    ranks = jobs.run(role, world, tmp_path, timeout_s=80.0, environment=path_forced)

    for rank in jobs.results(ranks):
        assert rank["different"] == []
        assert rank["compared"] > 20, "too few cases to mean anything"


@pytest.mark.parametrize("world", WORLDS)
def test_a_batch_is_one_work(world: int, path_forced: dict[str, str], tmp_path: Path) -> None:
    role = "roles_surface:everything_in_a_batch"
    ranks = jobs.run(role, world, tmp_path, environment=path_forced)

    for rank in jobs.results(ranks):
        assert rank.pop("errors") == [
            "rdmatensor:endCoalescing: this thread began no coalescing",
            "rdmatensor:startCoalescing: this thread coalesces already",
        ]
        assert rank.pop("outputs") == [50_001, 7, 7]
        assert all(rank.values()), rank


def test_a_batch_names_what_did_not_come(path_forced: dict[str, str], tmp_path: Path) -> None:
    role = "roles_surface:batch_names_what_failed"
    ranks = jobs.run(role, 2, tmp_path, environment=path_forced)

    text = jobs.results(ranks)[0]
    assert "rdmatensor:recv from rank 1, tag 77: the timeout passed" in text


@pytest.mark.parametrize("world", [3, 4])
def test_overlapping_groups_in_threads_at_once(
    world: int, path_forced: dict[str, str], tmp_path: Path
) -> None:
    role = "roles_surface:groups_and_threads"
    ranks = jobs.run(role, world, tmp_path, environment=path_forced)

    assert jobs.results(ranks) == [[]] * world


def test_a_monitored_barrier_names_who_is_missing(
    path_forced: dict[str, str], tmp_path: Path
) -> None:
    role = "roles_surface:missing_ranks_are_named"
    ranks = jobs.run(role, 3, tmp_path, environment=path_forced)

    root, missing, other = jobs.results(ranks)
    for name in ("rdmatensor short", "rdmatensor long", "gloo long"):
        assert "Rank 1 failed to pass monitoredBarrier" in root[name][0], name
        assert "Rank 2 successfully reached monitoredBarrier" in other[name][0], name
    # A rank that is there may be slow on a busy machine, and be named too.
    for name in ("rdmatensor all", "gloo all"):
        assert re.search("Ranks? 1(, 2)? failed to pass monitoredBarrier", root[name][0]), name
    for rank in (root, missing, other):
        assert rank["rdmatensor nobody"] == rank["gloo nobody"] == []
