"""Gradients of Horovod's optimizer in buckets of the arena, and allreduces at once in a lane."""

from __future__ import annotations

from pathlib import Path

import jobs
import pytest
from roles_horovod_places import LAST

PARAMETERS = 4


@pytest.mark.parametrize("world", [2, 3])
def test_gradients_in_place_are_those_of_ddp(
    world: int, path_forced: dict[str, str], tmp_path: Path
) -> None:
    ranks = jobs.run("roles_horovod_places:like_ddp", world, tmp_path, environment=path_forced)
    for found in jobs.results(ranks):
        # Of three ranks, the order of a sum depends on its place; predividing rounds otherwise.
        limits = dict.fromkeys(found, 0.0 if world == 2 else 1e-5) | {"sum": 1e-6}
        assert {name: one for name, one in found.items() if one["far"] > limits[name]} == {}
        for name in ("plain", "by model", "kept", "groups", "sum", "predivided"):
            assert found[name]["in_place"] == LAST * PARAMETERS, (name, found)
            assert found[name]["copied"] == found[name]["aside"] == 0, (name, found)
        assert found["holding"]["copied"] > 0


def test_steps_that_repeat_copy_nothing(tmp_path: Path) -> None:
    environment = {"RDMATENSOR_TRANSPORT": "shm"}
    ranks = jobs.run("roles_horovod_places:transport", 2, tmp_path, environment=environment)
    for found in jobs.results(ranks):
        assert found["copied"] == 0
        assert found["told"]["what"] == "gradients of DistributedOptimizer"
        assert found["told"]["in_place"] > found["told"]["copied"] > 0
        assert found["adopted"] == ["gradients of DistributedOptimizer"]


@pytest.mark.parametrize(
    ("first", "world", "count"),
    [(0, 2, 3), (100, 3, 3), pytest.param(200, 4, 20, marks=pytest.mark.slow)],
)
def test_random_steps(
    first: int, world: int, count: int, path_forced: dict[str, str], tmp_path: Path
) -> None:
    ranks = jobs.run(
        *("roles_horovod_places:random_steps", world, tmp_path),
        environment=path_forced,
        timeout_s=60.0,
        first=first,
        count=count,
    )
    for found in jobs.results(ranks):
        assert len(found) == count
        assert max(found) < 1e-4, found


def test_a_gradient_that_is_written_while_it_is_summed_is_an_error(tmp_path: Path) -> None:
    ranks = jobs.run("roles_horovod_places:written_meanwhile", 2, tmp_path)
    for words in jobs.results(ranks):
        assert "left.weight was written by the program" in words
        assert "call optimizer.synchronize() first" in words


def test_a_step_that_is_forgotten_ends_first(tmp_path: Path) -> None:
    for found in jobs.results(jobs.run("roles_horovod_places:forgotten", 2, tmp_path)):
        assert found["far"] == 0.0
        assert found["in_place"] > 0


@pytest.mark.parametrize(("first", "world"), [(0, 2), (100, 3), (200, 4)])
def test_allreduces_at_once(
    first: int, world: int, path_forced: dict[str, str], tmp_path: Path
) -> None:
    ranks = jobs.run(
        *("roles_horovod_places:at_once", world, tmp_path),
        environment=path_forced,
        first=first,
        count=15,
    )
    assert jobs.results(ranks) == [15] * world


def test_averages_with_different_factors(path_forced: dict[str, str], tmp_path: Path) -> None:
    ranks = jobs.run("roles_horovod_places:factors", 4, tmp_path, environment=path_forced)
    assert jobs.results(ranks) == [8] * 4


@pytest.mark.parametrize("as_dense", [False, True])
def test_sparse_gradients(as_dense: bool, path_forced: dict[str, str], tmp_path: Path) -> None:
    ranks = jobs.run(
        *("roles_horovod_places:sparse", 3, tmp_path), environment=path_forced, as_dense=as_dense
    )
    for found in jobs.results(ranks):
        assert found["far"] < 1e-5
        assert found["is_sparse"]
