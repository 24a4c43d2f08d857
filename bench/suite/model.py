"""What an all_reduce costs on paper: alpha a message, beta a byte that moves, gamma one summed.

Every algorithm of csrc/collectives is a number of messages, bytes and sums on its longest path, and
in all. Where ranks share cores, bytes take at least what all ranks do of them, over the cores; and
a message waits until its receiver, which sleeps, has its turn at a core: alpha is another one
there, and counts once for each rank of a core. Each call costs something besides.

    time = call + alpha x messages + beta x bytes + gamma x bytes summed

Gamma is measured apart: bytes that move and those that are summed go together in most algorithms.
The others are fitted to what was measured with 2 to 8 ranks, none of them below zero. What goes
through memory that all ranks share is fitted apart from messages.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

SHARES_STAGE_BYTES = (1 << 20) - 4096  # RDTI_STAGE_BYTES of csrc/collectives/team/team.h
ONE_SHOT_MAX_BYTES = 64 << 10  # as csrc/collectives/board/operations.c
ALGORITHMS = ("ring", "halving-doubling", "tree", "direct")
_REPEATS = 20  # it stands after a handful
BOARDS = "direct"  # over shared memory; over messages "direct" is recursive doubling


@dataclass(frozen=True, slots=True)
class Work:
    """Messages, bytes that move, bytes that are summed."""

    messages: float
    moved: float
    summed: float

    def __add__(self, other: Work) -> Work:
        return Work(
            self.messages + other.messages, self.moved + other.moved, self.summed + other.summed
        )

    def times(self, factor: float) -> Work:
        """Return so many of it."""
        return Work(self.messages * factor, self.moved * factor, self.summed * factor)


@dataclass(frozen=True, slots=True)
class Constants:
    """What each thing costs, in nanoseconds; beta and gamma for a byte.

    alpha_shared_ns: of a message where ranks share cores, for each rank of a core.
    """

    call_ns: float
    alpha_ns: float
    alpha_shared_ns: float
    beta_ns: float
    gamma_ns: float


@dataclass(frozen=True, slots=True)
class Sample:
    """A measured median; has_boards: over memory that all ranks share."""

    algorithm: str
    ranks: int
    size_bytes: int
    has_boards: bool
    took_ns: float


def rounds_of(ranks: int) -> int:
    """Return ceil(log2(ranks))."""
    return (ranks - 1).bit_length()


def _players(ranks: int) -> int:
    """Return the largest power of two of ranks: the others join before, and are told after."""
    return 1 << (ranks.bit_length() - 1)


def _joined(ranks: int, size_bytes: float, work: Work) -> tuple[Work, Work]:
    """Return the longest path and all of it, where `work` is what each player does."""
    players = _players(ranks)
    total = work.times(players)
    if players == ranks:
        return work, total
    joining = Work(2, 2 * size_bytes, size_bytes)
    return work + joining, total + joining.times(ranks - players)


def work_of(
    algorithm: str, ranks: int, size_bytes: float, *, has_boards: bool = False
) -> tuple[Work, Work]:
    """Return what lies on the longest path, and what all ranks do together.

    has_boards: "direct" goes through memory that all ranks share.
    """
    shares = size_bytes * (ranks - 1) / ranks
    players = _players(ranks)
    rounds = players.bit_length() - 1
    if algorithm == "ring":
        each = Work(2 * (ranks - 1), 2 * shares, shares)
        return each, each.times(ranks)
    if algorithm == "halving-doubling":
        kept = size_bytes * (players - 1) / players
        return _joined(ranks, size_bytes, Work(2 * rounds, 2 * kept, kept))
    if algorithm == "tree":
        each = Work(2, 2 * size_bytes, size_bytes)
        return each.times(rounds_of(ranks)), each.times(ranks - 1)
    if algorithm == BOARDS and has_boards:
        each = _boards(ranks, size_bytes)
        return each, each.times(ranks)
    if algorithm == BOARDS:
        return _joined(ranks, size_bytes, Work(rounds, rounds * size_bytes, rounds * size_bytes))
    raise ValueError(f"no algorithm {algorithm!r}")


def _boards(ranks: int, size_bytes: float) -> Work:
    """One shot: all read all; two: a share each, then the sums. A message is a tick."""
    others = ranks - 1
    if size_bytes * others <= ONE_SHOT_MAX_BYTES:
        return Work(1, size_bytes * (1 + others), size_bytes * others)
    share = SHARES_STAGE_BYTES / (ranks + 1) * ranks
    ticks = -(-size_bytes // share) + 1
    moved = size_bytes + size_bytes / ranks + 2 * size_bytes * others / ranks
    return Work(ticks, moved, size_bytes * others / ranks)


def connections_of(algorithm: str, ranks: int) -> int:
    """Return how many peers the busiest rank has."""
    if algorithm == "ring":
        return min(2, ranks - 1)
    if algorithm == "tree":
        return rounds_of(ranks)
    players = _players(ranks)
    return players.bit_length() - 1 + (players != ranks)


def columns(sample: Sample, cores: int) -> tuple[float, ...]:
    """Return what each constant is multiplied with, in the order of Constants."""
    return columns_of(
        work_of(sample.algorithm, sample.ranks, sample.size_bytes, has_boards=sample.has_boards),
        sample.ranks,
        cores,
    )


def columns_of(works: tuple[Work, Work], ranks: int, cores: int) -> tuple[float, ...]:
    """Return what each constant is multiplied with; works: of the longest path, and of all."""
    path, total = works
    usable = min(cores, ranks)
    is_shared = ranks > cores
    turns = max(1.0, ranks / cores)
    return (
        turns,
        0.0 if is_shared else path.messages,
        path.messages * turns if is_shared else 0.0,
        max(path.moved, total.moved / usable),
        max(path.summed, total.summed / usable),
    )


def fit(samples: Sequence[Sample], cores: int, gamma_ns: float) -> Constants:
    """Return the constants that fit best, none below zero; gamma_ns: measured.

    What counts is by which factor a prediction is off, either way: the squares are of the error
    over the geometric mean of both, and so depend on the fit, which is repeated until it stands.
    """
    factors = np.array([columns(sample, cores) for sample in samples])
    took = np.array([sample.took_ns for sample in samples])
    summing = gamma_ns * factors[:, -1]
    predicted = took
    for _ in range(_REPEATS):
        weights = 1 / np.sqrt(took * predicted)
        found = _least_squares(factors[:, :-1] * weights[:, None], (took - summing) * weights)
        predicted = np.maximum(factors[:, :-1] @ found + summing, 1.0)
    call, alpha, shared, beta = (float(value) for value in found)
    return Constants(call, alpha, shared, beta, gamma_ns)


def _least_squares(table: NDArray[np.float64], wanted: NDArray[np.float64]) -> NDArray[np.float64]:
    """Least squares without a value below zero: of so few every set can be tried that are above."""
    count = table.shape[1]
    largest = table.max(axis=0)
    scale = np.where(largest > 0, largest, 1.0)
    best, best_error = np.zeros(count), float((wanted**2).sum())
    for chosen in (
        list(one) for k in range(1, count + 1) for one in itertools.combinations(range(count), k)
    ):
        picked = (table / scale)[:, chosen]
        found = np.linalg.lstsq(picked, wanted, rcond=None)[0]
        error = float(((picked @ found - wanted) ** 2).sum())
        if (found >= 0).all() and error < best_error:
            best, best_error = np.zeros(count), error
            best[chosen] = found / scale[chosen]
    return best


def predict(
    constants: Constants,
    algorithm: str,
    ranks: int,
    size_bytes: float,
    *,
    cores: int | None = None,
    has_boards: bool = False,
) -> float:
    """Return nanoseconds; cores: that all ranks share, None: each has one of its own."""
    works = work_of(algorithm, ranks, size_bytes, has_boards=has_boards)
    factors = columns_of(works, ranks, ranks if cores is None else cores)
    values = (
        constants.call_ns,
        constants.alpha_ns,
        constants.alpha_shared_ns,
        constants.beta_ns,
        constants.gamma_ns,
    )
    return float(sum(factor * value for factor, value in zip(factors, values, strict=True)))


def off_by(predicted_ns: float, took_ns: float) -> float:
    """Return by which factor a prediction is off, either way; 1 is exact."""
    return max(predicted_ns / took_ns, took_ns / predicted_ns)


def of_nic(constants: Constants, latency_us: float, gbit: float) -> Constants:
    """Return constants with a NIC's latency of a message, one way, and its rate in 10^9 bit/s."""
    return Constants(
        constants.call_ns, latency_us * 1000, latency_us * 1000, 8 / gbit, constants.gamma_ns
    )


def best_of(constants: Constants, ranks: int, size_bytes: float) -> tuple[str, float]:
    """Return who wins where every rank has a host of its own, and its nanoseconds."""
    costs = {name: predict(constants, name, ranks, size_bytes) for name in ALGORITHMS}
    name = min(costs, key=lambda one: costs[one])
    return name, costs[name]
