"""A rank ends at random moments of a job's life, and everybody else is told who it was.

RDT_TEST_SWEEP=N goes through N points instead of a few; from 20 on a phase that no end has hit
counts, and RDT_TEST_SWEEP_SEED=K takes other moments. The rig's are in tests/rig/sweep.py.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import jobs
import pytest
from meeting import SCALE
from roles_plan import plan_of
from roles_sweep import PHASES, PLAN_VARIABLE
from sweep_points import (
    EXITS,
    JOB_LIMIT_S,
    POINTS_THAT_COVER,
    WORLD,
    Point,
    Tally,
    judge,
    points,
)

from graph_analysis.plan_json import plan_to_json

POINTS = int(os.environ.get("RDT_TEST_SWEEP", "4"))
SEED = int(os.environ.get("RDT_TEST_SWEEP_SEED", "1"))
TRANSPORTS = ("shm", "tcp")


@pytest.fixture(scope="module")
def plan_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plan") / "plan.json"
    path.write_text(plan_to_json(plan_of("mlp", WORLD)), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def tally() -> Iterator[Tally]:
    """What has been hit so far."""
    seen = Tally()
    yield seen
    print(f"\n{seen}")


@pytest.mark.slow
@pytest.mark.timeout(90 * SCALE)
@pytest.mark.parametrize("point", list(points(POINTS, SEED, TRANSPORTS)), ids=str)
def test_survivors_name_who_ended_and_go_on(
    point: Point, plan_file: Path, tmp_path: Path, tally: Tally
) -> None:
    ranks = jobs.run(
        "roles_sweep:a_rank_dies",
        WORLD,
        tmp_path / "out",
        timeout_s=JOB_LIMIT_S,
        environment={**point.environment(), PLAN_VARIABLE: str(plan_file)},
        **point.arguments(tmp_path),
    )

    tally.add(point, *judge(point, tmp_path, ranks))


@pytest.mark.slow
@pytest.mark.timeout(90 * SCALE)
def test_survivors_go_on_without_a_stopped_rank_that_hosts_the_store(
    plan_file: Path, tmp_path: Path, tally: Tally
) -> None:
    point = Point(0, "tcp", "all_reduce", "stopped", 0, 0.0)
    test_survivors_name_who_ended_and_go_on(point, plan_file, tmp_path, tally)


@pytest.mark.slow  # as the points that it counts
def test_the_ends_cover_the_phases(tally: Tally) -> None:
    tally.check(POINTS)


@pytest.mark.parametrize("seed", range(3))
def test_the_points_have_every_end_of_every_rank_and_every_phase(seed: int) -> None:
    drawn = list(points(POINTS_THAT_COVER, seed, TRANSPORTS))

    assert {(point.how, point.victim) for point in drawn} == {
        (how, rank) for how in EXITS for rank in range(WORLD)
    }
    assert {point.phase for point in drawn} == set(PHASES)
    assert {point.how for point in drawn[:4]} == set(EXITS)  # the quick form


def test_phases_that_are_not_hit_count_once_the_points_could_have_hit_them() -> None:
    tally = Tally()
    for point in points(POINTS_THAT_COVER, 1, TRANSPORTS):
        tally.add(point, "set-up" if point.number % 2 else "teardown", 0.1)

    tally.check(POINTS_THAT_COVER - 1)
    with pytest.raises(AssertionError, match="only 2 of 12 phases were hit"):
        tally.check(POINTS_THAT_COVER)
