"""What an all_reduce costs on paper: alpha a message, beta a byte that moves, gamma one summed.

Every algorithm of csrc/collectives is a number of messages, bytes and sums on its longest path, and
in all. Where ranks share cores, bytes take at least what all ranks do of them, over the cores; and
a message waits until its receiver, which sleeps, has its turn at a core: alpha is another one
there, and counts once for each rank of a core. Each call also costs something.

    time = call + alpha x messages + beta x bytes + gamma x bytes summed

Gamma is measured apart: bytes that move and those that are summed go together in most algorithms.
The others are fitted to what was measured with 2 to 8 ranks, none of them below zero. What goes
through memory that all ranks share is fitted apart from messages.

Where hosts have several ranks, the way by hosts (csrc/collectives/team/hierarchical.c) has three
parts: up and down over the boards of each host, and between hosts by messages. Either one rank of
each host speaks for it, or each has a share of its own (a rail) and speaks with its like. Boards
cost what was measured of memory that all ranks share, messages what connects hosts does; of both
ways, and of the algorithms between, the cheapest by the model counts.

The other algorithms send among all ranks, of which neighbours share a host: rounds whose partners
are on one host cost its messages, the others those between hosts. Each rank has a core; ranks of a
host that speak at the same time share its NIC.
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
BY_HOSTS = "by hosts"
RANKS_PER_HOST = 8
HOST_SIZES = (1, 2, 4, 8, 16, 32, 64)  # so that each round of the others is of one kind
SMALL_BYTES = 16 << 10  # RDT_COLL_PART_MAX_BYTES: one rail, and no algorithm but these two
_FOR_SMALL = (BOARDS, "halving-doubling")
TEAM_MOST = 64  # RDTI_TEAM_MAX: larger groups have no boards, and no way by hosts


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
    """Return the largest power of two of ranks: the others join before, and receive it after."""
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


@dataclass(frozen=True, slots=True)
class Paths:
    """What connects ranks: hosts, ranks of a host by messages, and by memory that all share."""

    between: Constants
    inside: Constants
    boards: Constants


@dataclass(frozen=True, slots=True)
class Way:
    """What an all_reduce takes; rails: ranks of a host that speak, 0: none has to."""

    took_ns: float
    rails: int
    between: str


def _ns(constants: Constants, path: Work) -> float:
    """Return what a path takes each of whose ranks has a core; the call has been counted."""
    _, *factors = columns_of((path, path), 1, 1)
    costs = (
        *(constants.alpha_ns, constants.alpha_shared_ns),
        *(constants.beta_ns, constants.gamma_ns),
    )
    return sum(factor * cost for factor, cost in zip(factors, costs, strict=True))


def boards_of(per_host: int, rails: int, size_bytes: float) -> Work:
    """Return up and down: the longest path of a rank.

    Up all store all of it, and a rail reads and sums its share of the others'; down it stores the
    sum, and all read what they have not. A tick has as much as fits a stage, of each rank.
    """
    if per_host == 1:
        return Work(0, 0, 0)
    share, others = size_bytes / rails, per_host - 1
    ticks = sum(max(1, -(-size // SHARES_STAGE_BYTES)) for size in (size_bytes, share))
    read = size_bytes if rails < per_host else size_bytes - share  # by who has the most to read
    return Work(ticks, size_bytes + share * others + share + read, share * others)


def by_hosts(paths: Paths, hosts: int, per_host: int, size_bytes: float) -> Way:
    """Return the cheapest way by hosts; of one host it is what that does alone, over its boards."""
    if hosts == 1:
        alone_ns = predict(paths.boards, BOARDS, per_host, size_bytes, has_boards=True)
        return Way(alone_ns, 0, "")
    is_small = size_bytes <= SMALL_BYTES
    rails_of = dict.fromkeys((1,) if is_small else (1, per_host))
    names = _FOR_SMALL if is_small else ALGORITHMS
    ways = (
        Way(_by_hosts_ns(paths, (hosts, per_host, rails), size_bytes, name), rails, name)
        for rails in rails_of
        for name in names
    )
    return min(ways, key=lambda way: way.took_ns)


def _by_hosts_ns(paths: Paths, of: tuple[int, int, int], size_bytes: float, name: str) -> float:
    """Nanoseconds; of: hosts, ranks of each, and rails."""
    hosts, per_host, rails = of
    across, _ = work_of(name, hosts, size_bytes / rails)
    boards_ns = _ns(paths.boards, boards_of(per_host, rails, size_bytes))
    return paths.between.call_ns + boards_ns + _ns(paths.between, _over_one_nic(across, rails))


def _over_one_nic(work: Work, speakers: int) -> Work:
    return Work(work.messages, work.moved * speakers, work.summed)


def flat(paths: Paths, algorithm: str, hosts: int, per_host: int, size_bytes: float) -> float:
    """Return what an algorithm among all ranks takes, each of which has a core.

    hosts, per_host: powers of two, so that each round is of one kind. A ring and a tree cross with
    one rank of each host at a time, the others with all.
    """
    ranks = hosts * per_host
    if ranks & (ranks - 1) != 0 or per_host & (per_host - 1) != 0:
        raise ValueError(f"{hosts} hosts of {per_host} ranks: these are no powers of two")
    path, _ = work_of(algorithm, ranks, size_bytes)
    if hosts == 1:
        return paths.inside.call_ns + _ns(paths.inside, path)
    call_ns = paths.between.call_ns
    if algorithm == "ring":  # each step has messages of both kinds, and waits for the slower
        kinds = [paths.between, paths.inside] if per_host > 1 else [paths.between]
        return call_ns + max(_ns(of, path) for of in kinds)
    # What crosses is what as many ranks as hosts would do: of halving, the first rounds, which have
    # the most bytes; of doubling and of a tree, where each has as many, whichever these are.
    across, _ = work_of(algorithm, hosts, size_bytes)
    inside = Work(
        path.messages - across.messages, path.moved - across.moved, path.summed - across.summed
    )
    speakers = 1 if algorithm == "tree" else per_host
    across = _over_one_nic(across, speakers)
    return call_ns + _ns(paths.inside, inside) + _ns(paths.between, across)


def predicted(paths: Paths, ranks: int, per_host: int, size_bytes: float) -> dict[str, float]:
    """Return nanoseconds of each algorithm, that by hosts first.

    Where ranks are fewer than a host may have, they are on one.
    """
    of_host = min(ranks, per_host)
    hosts = ranks // of_host
    return {
        BY_HOSTS: by_hosts(paths, hosts, of_host, size_bytes).took_ns,
        **{name: flat(paths, name, hosts, of_host, size_bytes) for name in ALGORITHMS},
    }
