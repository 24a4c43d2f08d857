"""Points of a sweep with torch: who ends, how, when and over what; and what all must have seen."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jobs
from meeting import SCALE
from roles_sweep import OPERATIONS, PHASES, SET_UP_LIMIT, STOPPED_IN

WORLD = 3
# In which a rank may end, with what is left of it then: who was stopped ends as the others do.
EXITS = {"killed": -signal.SIGALRM, "stopped": 0, "exception": 1}
COVERED = 0.8  # of the phases, where enough points could have hit them all
POINTS_THAT_COVER = 20
# About as long as a phase lasts: what is later hits the next one.
LONGEST_DELAY_S = {"shm": 0.03, "tcp": 0.08, "verbs": 0.1 * SCALE}
WORST_S = 2.0 * SCALE  # from a death to the last survivor's error
# Silence that counts as death, of who is stopped. It is waited out, so that it grows by half only.
SILENCE_S = 2.0 * (1.0 + SCALE)
HEARTBEAT_S = 1.0  # the last was heard so long before, at the most
JOB_LIMIT_S = 45.0 * SCALE


@dataclass(frozen=True)
class Point:
    """One rank that ends, so long after a phase has begun."""

    number: int
    transport: str
    phase: str
    how: str
    victim: int
    delay_s: float

    def __str__(self) -> str:
        return f"{self.number}-{self.transport}-{self.how} in {self.phase}"

    def environment(self) -> dict[str, str]:
        """Return the settings of the job."""
        forced = {"RDMATENSOR_TRANSPORT": self.transport}
        if self.how == "stopped":
            forced["RDMATENSOR_PEER_TIMEOUT_S"] = str(SILENCE_S)
        return forced

    def arguments(self, folder: Path) -> dict[str, Any]:
        """Return those of roles_sweep.a_rank_dies()."""
        return {
            "victim": self.victim,
            "phase": self.phase,
            "how": self.how,
            "delay_s": self.delay_s,
            "folder": str(folder),
        }


def _every_end(chance: random.Random) -> list[tuple[str, int]]:
    """Every way to end of every rank: each way once before any twice."""
    victims = {how: chance.sample(range(WORLD), WORLD) for how in EXITS}
    return [
        (how, victims[how][turn])
        for turn in range(WORLD)
        for how in chance.sample(list(EXITS), len(EXITS))
    ]


def points(
    count: int, seed: int, transports: Sequence[str], among: Sequence[str] = tuple(PHASES)
) -> Iterator[Point]:
    """Yield so many points; each phase comes once before any comes twice."""
    chance = random.Random(seed)
    phases = list(among)
    ends: list[tuple[str, int]] = []
    for number in range(count):
        if number % len(phases) == 0:
            chance.shuffle(phases)
        if not ends:
            ends = _every_end(chance)
        how, victim = ends.pop(0)
        transport = transports[number % len(transports)]
        delay_s = chance.uniform(0, LONGEST_DELAY_S[transport])
        yield Point(number, transport, phases[number % len(phases)], how, victim, delay_s)


def phase_of(folder: Path, rank: int) -> str:
    """Return the phase in which a rank was last."""
    return list(PHASES)[(folder / f"phase-{rank}").read_bytes()[0]]


def phase_of_the_end(point: Point, folder: Path) -> str:
    """Return that in which the victim was when it ended, or was stopped."""
    if point.how == "stopped":
        return list(PHASES)[(folder / STOPPED_IN).read_bytes()[0]]
    return phase_of(folder, point.victim)


def _longest_s(point: Point, died_in: str) -> float:
    """How long after the end a survivor may raise."""
    if point.how == "exception":  # who raises leaves only when Python ends, however long that takes
        return JOB_LIMIT_S
    if died_in == "set-up":  # it is missed at that one's deadlines: of the group, and of a sum
        return 2 * SET_UP_LIMIT.total_seconds() + WORST_S
    return WORST_S + (SILENCE_S + HEARTBEAT_S if point.how == "stopped" else 0.0)


def judge(point: Point, folder: Path, ranks: Sequence[jobs.Rank]) -> tuple[str, float]:
    """Check what everybody saw.

    Returns the phase that was hit, and the seconds from the end to the last survivor's error; 0.0
    where none had one.
    """
    victim = ranks[point.victim]
    assert victim.exit == EXITS[point.how], f"the victim ended with {victim.exit}:\n{victim.log}"
    died_in = phase_of_the_end(point, folder)
    died_at_s = float((folder / "died_at").read_text(encoding="utf-8"))
    survivors = [rank for rank in ranks if rank.number != point.victim]
    last_s = 0.0
    for rank, seen in zip(survivors, jobs.results(survivors), strict=True):
        assert seen["total"] == 1000.0 * (WORLD - 1)
        assert not seen["left"], seen
        if not seen["text"] and phase_of(folder, rank.number) == "teardown":
            continue  # the victim had given it all that it waited for
        # Before rank 0 has told that it hosts the store nobody knows.
        is_store = point.how == "stopped" and point.victim == 0 and died_in == "set-up"
        names = [f"rank {point.victim}"] + ["the store did not answer"] * is_store
        assert any(name in seen["text"] for name in names), seen
        assert any(name in seen["text"] for name in OPERATIONS[seen["phase"]]), seen
        last_s = max(last_s, seen["at_s"] - died_at_s)
    assert last_s < _longest_s(point, died_in), f"{last_s:.2f} s: {ranks}"
    return died_in, last_s


def bare_end_s() -> float:
    """How long it takes here and now to begin a process, kill it and hear of it."""
    begun_s = time.monotonic()
    pid = os.posix_spawnp("sleep", ["sleep", "60"], os.environ)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return time.monotonic() - begun_s


def _median_and_worst(took_s: list[float]) -> str:
    ordered = sorted(took_s) or [0.0]
    return f"median {ordered[len(ordered) // 2]:.4f} s, worst {ordered[-1]:.4f} s"


class Tally:
    """What the points of a sweep hit, and how long kills took to be heard of."""

    def __init__(self) -> None:
        self.phases: Counter[str] = Counter()
        self.hows: Counter[str] = Counter()
        self._killed_s: list[float] = []
        self._bare_s: list[float] = []  # as many, each right behind one: the floor

    def add(self, point: Point, died_in: str, last_s: float) -> None:
        """Count one."""
        self.phases[died_in] += 1
        self.hows[point.how] += 1
        if point.how == "killed" and died_in != "set-up" and last_s > 0:
            self._killed_s.append(last_s)
            self._bare_s.append(bare_end_s())

    def __str__(self) -> str:
        hows = ", ".join(f"{how} {self.hows[how]}" for how in EXITS)
        phases = ", ".join(f"{phase} {self.phases[phase]}" for phase in PHASES)
        return (
            f"{hows}\nphases hit: {phases}\nfrom the kill to the last error: "
            f"{_median_and_worst(self._killed_s)}, of {len(self._killed_s)}; "
            f"a bare end of a process: {_median_and_worst(self._bare_s)}"
        )

    def check(self, count: int, among: Sequence[str] = tuple(PHASES)) -> None:
        """Raise where so many points hit too few of the phases."""
        wanted = COVERED * len(among) if count >= POINTS_THAT_COVER else 1
        hit = [phase for phase in among if self.phases[phase] > 0]
        assert len(hit) >= wanted, f"only {len(hit)} of {len(among)} phases were hit: {self}"
