"""A rank dies at random moments of a job's life, and everybody else is told who it was.

RDT_TEST_SWEEP=N goes through N points instead of a few; from 20 on a phase that no death has hit
counts, and RDT_TEST_SWEEP_SEED=K takes other moments.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import jobs
import pytest
from roles_plan import plan_of
from roles_sweep import PHASES, PLAN_VARIABLE

from graph_analysis.plan_json import plan_to_json

WORLD = 3
POINTS = int(os.environ.get("RDT_TEST_SWEEP", "4"))
SEED = int(os.environ.get("RDT_TEST_SWEEP_SEED", "1"))
COVERED = 0.8  # of the phases, where enough points could have hit them all
POINTS_THAT_COVER = 20
# About as long as a phase lasts: what is later hits the next one.
LONGEST_DELAY_S = {"shm": 0.03, "tcp": 0.08}
WORST_S = 2.0  # from a death to the last survivor's error


@dataclass(frozen=True)
class Point:
    number: int
    transport: str
    phase: str
    how: str
    victim: int
    delay_s: float

    def __str__(self) -> str:
        return f"{self.number}-{self.transport}-{self.how} in {self.phase}"


def points() -> Iterator[Point]:
    chance = random.Random(SEED)
    phases = list(PHASES)
    for number in range(POINTS):
        if number % len(phases) == 0:  # each once before any twice
            chance.shuffle(phases)
        transport = ("shm", "tcp")[number % 2]
        yield Point(
            number,
            transport,
            phases[number % len(phases)],
            chance.choice(("killed", "killed", "exception")),
            chance.randrange(WORLD),
            chance.uniform(0, LONGEST_DELAY_S[transport]),
        )


@pytest.fixture(scope="module")
def plan_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plan") / "plan.json"
    path.write_text(plan_to_json(plan_of("mlp", WORLD)), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def hit() -> Iterator[Counter[str]]:
    """Phases in which somebody has died so far."""
    counter: Counter[str] = Counter()
    yield counter
    print("\ndeaths:", ", ".join(f"{phase} {counter[phase]}" for phase in PHASES))


def phase_of(folder: Path, rank: int) -> str:
    return list(PHASES)[(folder / f"phase-{rank}").read_bytes()[0]]


@pytest.mark.timeout(90)
@pytest.mark.parametrize("point", list(points()), ids=str)
def test_survivors_name_who_died_and_go_on(
    point: Point, plan_file: Path, tmp_path: Path, hit: Counter[str]
) -> None:
    ranks = jobs.run(
        "roles_sweep:a_rank_dies",
        WORLD,
        tmp_path / "out",
        timeout_s=45.0,
        environment={"RDMATENSOR_TRANSPORT": point.transport, PLAN_VARIABLE: str(plan_file)},
        victim=point.victim,
        phase=point.phase,
        how=point.how,
        delay_s=point.delay_s,
        folder=str(tmp_path),
    )

    died_in = phase_of(tmp_path, point.victim)
    hit[died_in] += 1
    assert ranks[point.victim].exit != 0
    died_at_s = float((tmp_path / "died_at").read_text(encoding="utf-8"))
    survivors = [rank for rank in ranks if rank.number != point.victim]
    for number, survivor in zip(
        [rank.number for rank in survivors], jobs.results(survivors), strict=True
    ):
        assert survivor["total"] == 1000.0 * (WORLD - 1)
        if not survivor["text"] and phase_of(tmp_path, number) == "teardown":
            continue  # the victim had given it all that it waited for
        assert f"rank {point.victim}" in survivor["text"], survivor
        # In set-up it is missed at that one's deadline; who raises leaves only when Python ends.
        if died_in != "set-up" and point.how == "killed":
            assert survivor["at_s"] - died_at_s < WORST_S, survivor


def test_the_deaths_cover_the_phases(hit: Counter[str]) -> None:
    expected = COVERED * len(PHASES) if POINTS >= POINTS_THAT_COVER else 1
    assert len(hit) >= expected, hit
