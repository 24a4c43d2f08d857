"""Scale on paper: each algorithm of all_reduce, measured up to 16 ranks, predicted beyond.

bench/workers/scale.py has the measurement, model.py the arithmetic, scale_tables.py what comes of
it. The model is fitted to 2 to 8 ranks; 12 and 16 are measured to see by how much it errs.
"""

from __future__ import annotations

import functools
import time

from bench.benchlib import programs
from bench.benchlib.pairs import run_ranks
from bench.benchlib.record import Record, number, summaries
from bench.suite import collectives, model, rounds, samples
from bench.suite.peers import OURS, Peer
from bench.suite.settings import KIB, Settings

_QUICK_RANKS = (2, 4, 8, 12, 16)
_FULL_RANKS = (2, 3, 4, 6, 8, 12, 16)
_TURN_PATIENCE_S = 500.0
_SUM_ELEMENTS = 64 * KIB // 4  # in the cache, as the library sums
_SUMS = 200


def measure(settings: Settings, _: list[Peer], progress: rounds.Progress) -> list[Record]:
    """Measure each algorithm over each path; every record has what the model needs besides."""
    turns = [
        (transport, functools.partial(_turn, settings, transport))
        for transport in settings.transports
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
    found, failed = rounds.take(turns, times, settings.seconds_of("scale"), progress)
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


def _turn(settings: Settings, transport: str) -> list[Record]:
    printed = run_ranks(
        "scale",
        1,
        *("--ranks", ",".join(map(str, _QUICK_RANKS if settings.is_quick else _FULL_RANKS))),
        *("--algorithms", ",".join(model.ALGORITHMS)),
        *("--sizes", ",".join(map(str, settings.sizes_of("scale")))),
        *("--rounds", "3" if settings.is_quick else "5"),
        environment={"RDMATENSOR_TRANSPORT": transport},
        timeout_s=_TURN_PATIENCE_S,
    )
    return [record_of(of_ranks, transport) for of_ranks in collectives.by_key(printed).values()]


def record_of(of_ranks: list[Record], transport: str) -> Record:
    """One turn of one algorithm: each sample is that of the slowest rank."""
    first = of_ranks[0]
    fields: Record = {
        "topic": "scale",
        "contestant": OURS,
        "peer": OURS,
        "transport": transport,
        "op": first["op"],
        "size": first["size"],
        "ranks": first["ranks"],
        "language": "torch",
        "timed": "mean of calls in a row, slowest rank",
    }
    slowest = [max(several) for several in zip(*map(samples.raw_of, of_ranks), strict=True)]
    return samples.turn(fields, slowest)
