"""Collectives and messages of the torch backend; Gloo is the oracle."""

from __future__ import annotations

from pathlib import Path

import jobs
import pytest

pytestmark = pytest.mark.turns("transport")

WORLDS = [2, 3, 5]


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("world", WORLDS)
def test_every_collective_gives_the_bits_of_gloo(
    world: int, path_forced: dict[str, str], tmp_path: Path
) -> None:
    ranks = jobs.run(
        "roles_collectives:compare_with_gloo",
        world,
        tmp_path,
        timeout_s=200.0,
        environment=path_forced,
    )

    for rank in jobs.results(ranks):
        assert rank["different"] == []
        assert rank["compared"] > 500, "too few cases to mean anything"


@pytest.mark.parametrize("world", WORLDS)
def test_random_floats_are_close_and_the_same_on_all_ranks(
    world: int, path_forced: dict[str, str], tmp_path: Path
) -> None:
    role = "roles_collectives:random_floats_are_close"
    ranks = jobs.run(role, world, tmp_path, environment=path_forced)

    # A sum of `world` numbers below 6 in some order: at most world roundings of 2^-24 of 32.
    assert max(jobs.results(ranks)) <= world * 32 * 2.0**-24


@pytest.mark.parametrize(
    "algorithm", ["messages", "direct", "ring", "halving-doubling", "tree", "rign"]
)
def test_an_algorithm_can_be_forced(algorithm: str, tmp_path: Path) -> None:
    forced = {"RDMATENSOR_ALGO": algorithm}
    ranks = jobs.run("roles_collectives:random_floats_are_close", 3, tmp_path, environment=forced)

    if algorithm == "rign":
        assert all(rank.exit == 1 for rank in ranks)
        assert all("RDMATENSOR_ALGO is 'rign'; want auto, messages" in rank.log for rank in ranks)
    else:
        assert max(jobs.results(ranks)) <= 3 * 32 * 2.0**-24


@pytest.mark.timeout(120)
@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("algorithm", ["direct", "ring", "halving-doubling", "tree"])
def test_each_forced_algorithm_runs_and_is_right(
    algorithm: str, world: int, path_forced: dict[str, str], tmp_path: Path
) -> None:
    forced = {**path_forced, "RDMATENSOR_ALGO": algorithm}
    ranks = jobs.run("roles_ran:forced", world, tmp_path, timeout_s=80.0, environment=forced)

    for rank in jobs.results(ranks):
        assert rank["wrong"] == []
        assert algorithm in rank["ran"]


def test_the_algorithm_that_is_forced_is_the_one_that_ran(tmp_path: Path) -> None:
    forced = {"RDMATENSOR_TRANSPORT": "tcp", "RDMATENSOR_ALGO": "ring"}
    ranks = jobs.run("roles_ran:what_ran", 2, tmp_path, environment=forced)

    for rank in jobs.results(ranks):
        assert rank == {
            "all_reduce": {"ring": 2},
            "broadcast": {"ring": 2},
            "all_gather": {"ring": 2},
            "reduce_scatter": {"ring": 2},
            "barrier": {"dissemination": 2},
        }


@pytest.mark.parametrize("world", WORLDS)
def test_operations_in_flight_together(
    world: int, path_forced: dict[str, str], tmp_path: Path
) -> None:
    ranks = jobs.run("roles_collectives:asynchronous", world, tmp_path, environment=path_forced)

    for rank in jobs.results(ranks):
        assert rank == {"sums": True, "then": True, "dropped": True, "success": True}


@pytest.mark.parametrize("world", WORLDS)
def test_messages(world: int, path_forced: dict[str, str], tmp_path: Path) -> None:
    ranks = jobs.run("roles_collectives:messages", world, tmp_path, environment=path_forced)

    assert jobs.results(ranks) == [[]] * world
