"""Scale on paper: each algorithm of all_reduce, measured up to 16 ranks, predicted beyond.

Every algorithm of csrc/collectives is a number of messages, bytes and sums on its longest path, and
in all. Where ranks share cores, bytes take at least what all ranks do of them, over the cores; and
a message has to wait until its receiver, which sleeps, has its turn at a core: alpha is another one
there, and counts once for each rank of a core.

    time = call + alpha x messages + beta x bytes + gamma x bytes summed

Gamma is measured apart. The others are fitted to what was measured with 2 to 8 ranks, none of them
below zero; 12 and 16 ranks are measured to see the error. What goes through memory that all ranks
share is fitted apart from messages. The tables have the constants, the error, and the fastest
algorithm where each rank has a host of its own.
"""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Sequence
from dataclasses import astuple, dataclass

from bench.benchlib.pairs import run_ranks
from bench.benchlib.record import Record, number, text
from bench.benchlib.units import size_text, time_text
from bench.suite import collectives, rounds, samples
from bench.suite.layout import layout
from bench.suite.peers import RDMATENSOR, Peer
from bench.suite.settings import KIB, MIB, Settings

TOPIC = "scale"
ALGORITHMS = ("ring", "halving-doubling", "tree", "direct")
BOARDS = "direct"  # over shared memory; over messages "direct" is recursive doubling
SHARES_STAGE_BYTES = (1 << 20) - 4096  # RDTI_STAGE_BYTES of csrc/collectives/team/team.h
ONE_SHOT_MAX_BYTES = 64 << 10  # as csrc/collectives/board/operations.c
LADDER = (2, 8, 64, 512, 4096, 16384)
SIZES = (8, 4 * KIB, 64 * KIB, MIB, 16 * MIB, 256 * MIB)
FITTED_MOST = 8  # ranks
_QUICK_RANKS, _FULL_RANKS = (2, 4, 8, 12, 16), (2, 3, 4, 6, 8, 12, 16)
_TURN_PATIENCE_S = 500.0
_SUM_ELEMENTS, _SUMS = 64 * KIB // 4, 200  # in the cache, as the library sums
_REPEATS = 20  # of a fit: it stands after a handful


@dataclass(frozen=True, slots=True)
class Work:
    """Messages, bytes that move, bytes that are summed."""

    messages: float
    moved: float
    summed: float

    def plus(self, other: Work, times: float = 1.0) -> Work:
        """Return this and so many times the other."""
        pairs = zip(astuple(self), astuple(other), strict=True)
        return Work(*(one + times * more for one, more in pairs))


NOTHING = Work(0, 0, 0)


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


def work_of(
    algorithm: str, ranks: int, size_bytes: float, *, has_boards: bool = False
) -> tuple[Work, Work]:
    """Return what lies on the longest path, and what all ranks do together.

    has_boards: "direct" goes through memory that all ranks share.
    """
    players = 1 << (ranks.bit_length() - 1)  # the others join before, and receive it after
    rounds_of = players.bit_length() - 1
    if algorithm == "ring":
        share = size_bytes * (ranks - 1) / ranks
        each = Work(2 * (ranks - 1), 2 * share, share)
        return each, NOTHING.plus(each, ranks)
    if algorithm == "tree":
        each, depth = Work(2, 2 * size_bytes, size_bytes), (ranks - 1).bit_length()
        return NOTHING.plus(each, depth), NOTHING.plus(each, ranks - 1)
    if algorithm == BOARDS and has_boards:
        each = _boards(ranks, size_bytes)
        return each, NOTHING.plus(each, ranks)
    if algorithm == "halving-doubling":
        kept = size_bytes * (players - 1) / players
        each = Work(2 * rounds_of, 2 * kept, kept)
    elif algorithm == BOARDS:
        each = Work(rounds_of, rounds_of * size_bytes, rounds_of * size_bytes)
    else:
        raise ValueError(f"no algorithm {algorithm!r}")
    total = NOTHING.plus(each, players)
    if players == ranks:
        return each, total
    joining = Work(2, 2 * size_bytes, size_bytes)
    return each.plus(joining), total.plus(joining, ranks - players)


def _boards(ranks: int, size_bytes: float) -> Work:
    """One shot: all read all; two: a share each, then the sums. A message is a tick."""
    others = ranks - 1
    if size_bytes * others <= ONE_SHOT_MAX_BYTES:
        return Work(1, size_bytes * ranks, size_bytes * others)
    share = SHARES_STAGE_BYTES / (ranks + 1) * ranks
    ticks = -(-size_bytes // share) + 1
    moved = size_bytes + size_bytes / ranks + 2 * size_bytes * others / ranks
    return Work(ticks, moved, size_bytes * others / ranks)


def columns_of(works: tuple[Work, Work], ranks: int, cores: int) -> tuple[float, ...]:
    """Return what each constant is multiplied with; works: of the longest path, and of all."""
    path, total = works
    usable, turns = min(cores, ranks), max(1.0, ranks / cores)
    is_shared = ranks > cores
    return (
        turns,
        0.0 if is_shared else path.messages,
        path.messages * turns if is_shared else 0.0,
        max(path.moved, total.moved / usable),
        max(path.summed, total.summed / usable),
    )


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
    return float(sum(a * b for a, b in zip(factors, astuple(constants), strict=True)))


def fit(found: Sequence[Sample], cores: int, gamma_ns: float) -> Constants:
    """Return the constants that fit best, none below zero; gamma_ns: measured.

    What counts is by which factor a prediction is off, either way: the squares are of the error
    over the geometric mean of both, and so depend on the fit, which is repeated until it stands.
    Of so few constants every set can be tried that are above zero.
    """
    import numpy as np

    works = [
        work_of(one.algorithm, one.ranks, one.size_bytes, has_boards=one.has_boards)
        for one in found
    ]
    pairs = zip(works, found, strict=True)
    factors = np.array([columns_of(of, one.ranks, cores) for of, one in pairs])
    took = np.array([one.took_ns for one in found])
    summing = gamma_ns * factors[:, -1]
    predicted, best = took, np.zeros(4)
    sets = [list(s) for k in range(1, 5) for s in itertools.combinations(range(4), k)]
    for _ in range(_REPEATS):
        weights = 1 / np.sqrt(took * predicted)
        table, wanted = factors[:, :-1] * weights[:, None], (took - summing) * weights
        largest = table.max(axis=0)
        scale = np.where(largest > 0, largest, 1.0)
        best, best_error = np.zeros(4), float((wanted**2).sum())
        for chosen in sets:
            picked = (table / scale)[:, chosen]
            values = np.linalg.lstsq(picked, wanted, rcond=None)[0]
            error = float(((picked @ values - wanted) ** 2).sum())
            if (values >= 0).all() and error < best_error:
                best, best_error = np.zeros(4), error
                best[chosen] = values / scale[chosen]
        predicted = np.maximum(factors[:, :-1] @ best + summing, 1.0)
    call, alpha, shared, beta = map(float, best)
    return Constants(call, alpha, shared, beta, gamma_ns)


def measure(settings: Settings, _: list[Peer], progress: rounds.Progress) -> list[Record]:
    """Measure each algorithm over each path; every record has all that the model needs."""
    turns = [
        (f"{transport}, {ranks} ranks", functools.partial(_turn, settings, transport, ranks))
        for transport in settings.transports
        for ranks in (_QUICK_RANKS if settings.is_quick else _FULL_RANKS)
    ]
    known: Record = {"cores": settings.cores, "gamma_ns": gamma_ns()}
    if settings.nic is not None:
        known |= {"nic_latency_us": settings.nic[0], "nic_gbit": settings.nic[1]}
    times = 1 if settings.is_quick and not settings.rounds else settings.rounds_of()
    found, failed = rounds.take(turns, times, settings.seconds_of(TOPIC), progress)
    return [{**record, **known} for record in samples.merge(found)] + failed


def gamma_ns() -> float:
    """Return nanoseconds to sum a byte of float32 in the cache: the least of many."""
    import numpy as np

    one, other = (np.ones(_SUM_ELEMENTS, dtype=np.float32) for _ in range(2))
    least_ns = float("inf")
    for _ in range(_SUMS):
        started_ns = time.perf_counter_ns()
        np.add(one, other, out=one)
        least_ns = min(least_ns, time.perf_counter_ns() - started_ns)
    return least_ns / one.nbytes


def _turn(settings: Settings, transport: str, ranks: int) -> list[Record]:
    printed = run_ranks(
        "collectives",
        1,
        {
            "forked": True,
            "ranks": ranks,
            "operations": ["all_reduce"],
            "backends": [f"{RDMATENSOR}:{name}" for name in ALGORITHMS],
            "sizes": settings.sizes_of(TOPIC),
            "rounds": 3 if settings.is_quick else 5,
        },
        environment={"RDMATENSOR_TRANSPORT": transport},
        timeout_s=_TURN_PATIENCE_S,
    )
    return [record_of(of_ranks, transport) for of_ranks in collectives.by_key(printed).values()]


def record_of(of_ranks: list[Record], transport: str) -> Record:
    """One turn of one algorithm: each sample is that of the slowest rank."""
    record = collectives.record_of(of_ranks, transport)
    algorithm = text(of_ranks[0], "name").removeprefix(f"{RDMATENSOR}:")
    return {**record, "topic": TOPIC, "op": algorithm}


@dataclass(frozen=True, slots=True)
class Fit:
    """One path's constants and their samples; has_boards: over memory that all ranks share."""

    transport: str
    has_boards: bool
    constants: Constants
    fitted: tuple[Sample, ...]
    checked: tuple[Sample, ...]
    cores: int

    @property
    def name(self) -> str:
        """Whose constants they are."""
        return f"{self.transport}, {'memory of all ranks' if self.has_boards else 'messages'}"

    def off_by(self, of: Sequence[Sample]) -> list[float]:
        """Return by which factor each prediction is off, either way; 1 is exact."""
        found = []
        for one in of:
            ns = predict(
                self.constants,
                one.algorithm,
                one.ranks,
                one.size_bytes,
                cores=self.cores,
                has_boards=one.has_boards,
            )
            found.append(max(ns / one.took_ns, one.took_ns / ns))
        return found


def fits_of(records: Sequence[Record]) -> list[Fit]:
    """Fit the constants of each path; those with too few samples are left out."""
    found: dict[tuple[str, bool], list[Sample]] = {}
    for record in records:
        transport, algorithm = text(record, "transport"), text(record, "op")
        has_boards = transport == "shm" and algorithm == BOARDS
        ranks, size = int(number(record, "ranks")), int(number(record, "size"))
        sample = Sample(algorithm, ranks, size, has_boards, number(record, "median_ns"))
        found.setdefault((transport, has_boards), []).append(sample)
    fits = []
    for (transport, has_boards), of_path in found.items():
        fitted = tuple(one for one in of_path if one.ranks <= FITTED_MOST)
        checked = tuple(one for one in of_path if one.ranks > FITTED_MOST)
        if len({(one.ranks, one.size_bytes) for one in fitted}) < 4:
            continue  # four constants
        cores = int(number(records[0], "cores"))
        constants = fit(fitted, cores, number(records[0], "gamma_ns"))
        fits.append(Fit(transport, has_boards, constants, fitted, checked, cores))
    return fits


def between_hosts(records: Sequence[Record], fits: Sequence[Fit]) -> tuple[str, Constants] | None:
    """Return the path of ranks that have a host each: the NIC of the options, else tcp."""
    messages = [fit for fit in fits if not fit.has_boards]
    if not messages:
        return None
    tcp = next((fit for fit in messages if fit.transport == "tcp"), messages[0])
    if "nic_gbit" not in records[0]:
        return f"{tcp.transport} as measured here, a core for each rank", tcp.constants
    latency_us, gbit = (number(records[0], name) for name in ("nic_latency_us", "nic_gbit"))
    name = f"a NIC of {latency_us:g} us and {gbit:g} Gbit/s; calls and sums as measured here"
    alpha_ns, of = latency_us * 1000, tcp.constants
    return name, Constants(of.call_ns, alpha_ns, alpha_ns, 8 / gbit, of.gamma_ns)


def winners(constants: Constants) -> list[tuple[str, ...]]:
    """Return which algorithm is the fastest of each size, and its time, for LADDER's ranks."""
    lines = []
    for size in SIZES:
        cells = []
        for ranks in LADDER:
            costs = {name: predict(constants, name, ranks, size) for name in ALGORITHMS}
            best = min(costs, key=costs.__getitem__)
            cells.append(f"{best} {time_text(costs[best])}")
        lines.append((size_text(size), *cells))
    return lines


def beyond_rows(records: Sequence[Record]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return heads and rows of the fastest algorithms where each rank has a host."""
    found = between_hosts(records, fits_of(records))
    heads = ("all_reduce, by the model", *(f"{ranks} ranks" for ranks in LADDER))
    return heads, [] if found is None else winners(found[1])


def _constants(fit: Fit) -> tuple[str, ...]:
    of = fit.constants
    times = (time_text(value) for value in (of.call_ns, of.alpha_ns, of.alpha_shared_ns))
    rates = (f"{1 / value:.2f}" if value > 0 else "-" for value in (of.beta_ns, of.gamma_ns))
    return (*times, *rates)


def errors_of(fit: Fit) -> list[str]:
    """Return the median factor and the worst, of the fitted samples and of the others."""
    cells: list[str] = []
    for of in (fit.fitted, fit.checked):
        off = fit.off_by(of)
        cells += [f"x {samples.quantile(off, 0.5):.2f}", f"x {max(off):.2f}"] if off else ["-", "-"]
    return cells


def show(records: Sequence[Record]) -> str:
    """Return all tables."""
    fits = fits_of(records)
    if not fits:
        return "too few numbers of ranks and sizes for a model"
    constants = ("call", "alpha", "alpha, shared core", "1/beta GB/s", "1/gamma GB/s")
    errors = ("fitted, median", "worst", "12 and 16, median", "worst")
    parts = [
        layout(("constants", "", *constants), [(fit.name, "", *_constants(fit)) for fit in fits]),
        layout(("off by", "", *errors), [(fit.name, "", *errors_of(fit)) for fit in fits]),
    ]
    found = between_hosts(records, fits)
    if found is not None:
        heads, rows = beyond_rows(records)
        parts.append(f"A host for each rank: {found[0]}\n{layout(heads, rows)}")
    most = max(one.ranks for fit in fits for one in (*fit.fitted, *fit.checked))
    parts.append(
        f"Up to {most} ranks were measured, on {fits[0].cores} cores; all beyond is the model. "
        "Beta and a call count as the same for any number, and no two ranks meet in a switch."
    )
    return "\n\n".join(parts)
