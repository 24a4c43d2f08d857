"""Scale on paper: each algorithm of all_reduce, measured up to 16 ranks, predicted beyond.

model.py has the arithmetic. It is fitted to 2 to 8 ranks; 12 and 16 are measured to see its error.
The tables have the constants, the error, the fastest algorithm where each rank has a host and where
hosts have several ranks (model.py), and the connections of the busiest rank.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence
from dataclasses import dataclass

from bench.benchlib import programs
from bench.benchlib.pairs import run_ranks
from bench.benchlib.record import Record, number, summaries, text
from bench.benchlib.units import size_text, time_text
from bench.suite import collectives, model, rounds, samples
from bench.suite.layout import layout
from bench.suite.peers import OURS, Peer
from bench.suite.settings import KIB, MIB, Settings

TOPIC = "scale"
_QUICK_RANKS = (2, 4, 8, 12, 16)
_FULL_RANKS = (2, 3, 4, 6, 8, 12, 16)
_TURN_PATIENCE_S = 500.0
_SUM_ELEMENTS = 64 * KIB // 4  # in the cache, as the library sums
_SUMS = 200
FITTED_MOST = 8  # ranks
LADDER = (2, 8, 64, 512, 4096, 16384)
SIZES = (8, 4 * KIB, 64 * KIB, MIB, 16 * MIB, 256 * MIB)
HANDSHAKE_MESSAGES = 3  # on the side channel: HELLO, CHALLENGE, AUTH (docs/wire.md)
# KiB of a peer over a NIC: one QP by the sizes of mlx5's entries (docs/rdma.md); not measured.
QP_KIB = {"receive queue": 8, "send queue": 32, "completion queue": 64, "our records": 24}
CONSTANTS = ("call", "alpha", "alpha, shared core", "1/beta GB/s", "1/gamma GB/s")


def measure(settings: Settings, _: list[Peer], progress: rounds.Progress) -> list[Record]:
    """Measure each algorithm over each path; every record has all that the model needs."""
    numbers = _QUICK_RANKS if settings.is_quick else _FULL_RANKS
    turns = [
        (f"{transport}, {ranks} ranks", functools.partial(_turn, settings, transport, ranks))
        for transport in settings.transports
        for ranks in numbers
    ]
    known: Record = {"cores": settings.cores, "gamma_ns": gamma_ns()}
    if settings.nic is not None:
        known |= {"nic_latency_us": settings.nic[0], "nic_gbit": settings.nic[1]}
    if settings.nic_qp_kib is not None:
        known["nic_qp_bytes"] = settings.nic_qp_kib * KIB
    if settings.ranks_per_host:
        known["ranks_per_host"] = settings.ranks_per_host
    memory = {transport: connection_bytes(transport) for transport in settings.transports}
    times = 1 if settings.is_quick and not settings.rounds else settings.rounds_of()
    found, failed = rounds.take(turns, times, settings.seconds_of(TOPIC), progress)
    return [
        {**record, **known, "connection_bytes": memory[str(record["transport"])]}
        for record in samples.merge(found)
    ] + failed


def connection_bytes(transport: str) -> float:
    """Memory of a connection on which nothing moves, on one side."""
    (found,) = summaries(programs.run("idle_memory", "--transport", transport))
    return number(found, "private_bytes") + number(found, "arena_bytes")


def gamma_ns() -> float:
    """Nanoseconds to sum a byte of float32 in the cache: the least of many."""
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
        *("--forked", "--ranks", str(ranks), "--operations", "all_reduce"),
        *("--backends", ",".join(f"{OURS}:{name}" for name in model.ALGORITHMS)),
        *("--sizes", ",".join(map(str, settings.sizes_of(TOPIC)))),
        *("--rounds", "3" if settings.is_quick else "5"),
        environment={"RDMATENSOR_TRANSPORT": transport},
        timeout_s=_TURN_PATIENCE_S,
    )
    return [record_of(of_ranks, transport) for of_ranks in collectives.by_key(printed).values()]


def record_of(of_ranks: list[Record], transport: str) -> Record:
    """One turn of one algorithm: each sample is that of the slowest rank."""
    record = collectives.record_of(of_ranks, transport)
    algorithm = text(of_ranks[0], "contestant").removeprefix(f"{OURS}:")
    return {**record, "topic": TOPIC, "op": algorithm}


@dataclass(frozen=True, slots=True)
class Fit:
    """One path's constants and their samples; has_boards: over memory that all ranks share."""

    transport: str
    has_boards: bool
    constants: model.Constants
    fitted: tuple[model.Sample, ...]
    checked: tuple[model.Sample, ...]
    cores: int

    @property
    def name(self) -> str:
        """Whose constants they are."""
        return f"{self.transport}, {'memory of all ranks' if self.has_boards else 'messages'}"

    def predict(self, sample: model.Sample) -> float:
        """Nanoseconds of a sample by the model."""
        return model.predict(
            self.constants,
            sample.algorithm,
            sample.ranks,
            sample.size_bytes,
            cores=self.cores,
            has_boards=sample.has_boards,
        )

    def off_by(self, of: Sequence[model.Sample]) -> list[float]:
        """By which factor each prediction is off."""
        return [model.off_by(self.predict(sample), sample.took_ns) for sample in of]


def fits_of(records: Sequence[Record]) -> list[Fit]:
    """Fit the constants of each path; those with too few samples are left out."""
    found: dict[tuple[str, bool], list[model.Sample]] = {}
    for record in records:
        transport, algorithm = text(record, "transport"), text(record, "op")
        has_boards = transport == "shm" and algorithm == model.BOARDS
        sample = model.Sample(
            algorithm,
            int(number(record, "ranks")),
            int(number(record, "size")),
            has_boards,
            number(record, "median_ns"),
        )
        found.setdefault((transport, has_boards), []).append(sample)
    fits = []
    for (transport, has_boards), of_path in found.items():
        fitted = tuple(one for one in of_path if one.ranks <= FITTED_MOST)
        checked = tuple(one for one in of_path if one.ranks > FITTED_MOST)
        if len({(one.ranks, one.size_bytes) for one in fitted}) < 4:
            continue  # four constants
        cores = int(number(records[0], "cores"))
        constants = model.fit(fitted, cores, number(records[0], "gamma_ns"))
        fits.append(Fit(transport, has_boards, constants, fitted, checked, cores))
    return fits


def between_hosts(
    records: Sequence[Record], fits: Sequence[Fit]
) -> tuple[str, model.Constants] | None:
    """Return the path of ranks that have a host each: the NIC of the options, else our tcp."""
    messages = [fit for fit in fits if not fit.has_boards]
    if not messages:
        return None
    tcp = next((fit for fit in messages if fit.transport == "tcp"), messages[0])
    if "nic_gbit" not in records[0]:
        return f"{tcp.transport} as measured here, a core for each rank", tcp.constants
    latency_us, gbit = (number(records[0], name) for name in ("nic_latency_us", "nic_gbit"))
    name = f"a NIC of {latency_us:g} us and {gbit:g} Gbit/s; calls and sums as measured here"
    return name, model.of_nic(tcp.constants, latency_us, gbit)


def paths_of(fits: Sequence[Fit], between: model.Constants) -> model.Paths | None:
    """Return the paths of hosts with several ranks; None where shm was not measured."""
    of_shm = {fit.has_boards: fit.constants for fit in fits if fit.transport == "shm"}
    if len(of_shm) < 2:
        return None
    return model.Paths(between, inside=of_shm[False], boards=of_shm[True])


def show(records: Sequence[Record]) -> str:
    """Return all tables."""
    fits, ladder = fits_of(records), [f"{ranks} ranks" for ranks in LADDER]
    if not fits:
        return "too few numbers of ranks and sizes for a model"
    parts = [
        layout(("constants", "", *CONSTANTS), [(fit.name, "", *_constants(fit)) for fit in fits]),
        layout(
            ("the model is off by", "", "fitted, median", "worst", "12 and 16, median", "worst"),
            [(fit.name, "", *errors_of(fit)) for fit in fits],
        ),
    ]
    found = between_hosts(records, fits)
    if found is None:
        return "\n\n".join(parts)
    name, between = found
    lines = [(size, "", *cells) for size, *cells in winners(between)]
    parts.append(f"A host for each rank: {name}\n{layout(('fastest', '', *ladder), lines)}")
    paths = paths_of(fits, between)
    if paths is not None:
        per_host = model.RANKS_PER_HOST
        if "ranks_per_host" in records[0]:
            per_host = int(number(records[0], "ranks_per_host"))
        lines = [(size, "", *cells) for size, *cells in host_winners(paths, per_host)]
        what = f"Hosts of {per_host} ranks with a core each, which share the way out: {name}"
        parts.append(f"{what}\n{layout(('fastest', '', *ladder), lines)}")
    each, source = each_of(records)
    parts.append(f"{layout(('of the busiest rank', '', *ladder), needs(each))}\n{source}")
    most = max(one.ranks for fit in fits for one in (*fit.fitted, *fit.checked))
    parts.append(
        f"Up to {most} ranks were measured, on {fits[0].cores} cores; all beyond is the model. "
        "Beta and a call count as the same for any number, and no two ranks meet in a switch. "
        f"Groups of more than {model.TEAM_MOST} ranks have neither boards nor hosts."
    )
    return "\n\n".join(parts)


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


def winners(constants: model.Constants) -> list[tuple[str, ...]]:
    """Return which algorithm is the fastest of each size, and its time, for LADDER's ranks."""
    lines = []
    for size in SIZES:
        best = [model.best_of(constants, ranks, size) for ranks in LADDER]
        lines.append((size_text(size), *(f"{name} {time_text(ns)}" for name, ns in best)))
    return lines


def host_winners(paths: model.Paths, per_host: int) -> list[tuple[str, ...]]:
    """Return the same of hosts with several ranks."""
    lines = []
    for size in SIZES:
        cells = []
        for ranks in LADDER:
            costs = model.predicted(paths, ranks, per_host, size)
            best = min(costs, key=costs.__getitem__)
            cells.append(f"{best} {time_text(costs[best])}")
        lines.append((size_text(size), *cells))
    return lines


def beyond_rows(records: Sequence[Record]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return heads and rows of the fastest algorithms where each rank has a host."""
    found = between_hosts(records, fits_of(records))
    heads = ("all_reduce, by the model", *(f"{ranks} ranks" for ranks in LADDER))
    return heads, [] if found is None else winners(found[1])


def memory_text(size_bytes: float) -> str:
    """Bytes for people, rounded."""
    return f"{size_bytes / KIB:.1f} KiB" if size_bytes < MIB else f"{size_bytes / MIB:.1f} MiB"


def each_of(records: Sequence[Record]) -> tuple[float, str]:
    """Return the memory of a connection on one side, and where that is known from."""
    first = records[0]
    if "nic_qp_bytes" in first:
        each = number(first, "nic_qp_bytes")
        return each, f"A peer over the NIC takes {memory_text(each)} on a side, by --nic-qp-kib"
    if "nic_gbit" in first:
        parts = ", ".join(f"{kib} KiB of {what}" for what, kib in QP_KIB.items())
        each = sum(QP_KIB.values()) * KIB
        said = f"A peer over the NIC is assumed to take {memory_text(each)} on a side, not measured"
        return each, f"{said}: a QP with {parts}"
    each = max(number(record, "connection_bytes") for record in records)
    return each, f"An idle connection takes {memory_text(each)} on a side, as measured here"


def needs(each_bytes: float) -> list[tuple[str, ...]]:
    """Return the connections of the busiest rank, their memory and set-up, for LADDER's ranks."""
    ways = {
        name: [model.connections_of(name, ranks) for ranks in LADDER] for name in model.ALGORITHMS
    }
    ways["all pairs"] = [ranks - 1 for ranks in LADDER]
    return [
        (name, what, *map(tell, peers))
        for name, peers in ways.items()
        for what, tell in (
            ("connections", str),
            ("memory", lambda count: memory_text(count * each_bytes)),
            ("handshake messages", lambda count: str(count * HANDSHAKE_MESSAGES)),
        )
    ]
