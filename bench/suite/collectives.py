"""Collectives of torch.distributed: rdmatensor, Gloo, and a backend that does nothing.

A turn is a set of fresh processes in which the backends alternate (bench/workers/collectives.py).
Bandwidths are nccl-tests': algbw is size / time; busbw is algbw times a factor that makes the
operations comparable with the speed of what connects the ranks.
"""

from __future__ import annotations

import functools

from bench.benchlib.pairs import run_ranks
from bench.benchlib.record import Record, number, text
from bench.suite import rounds, samples
from bench.suite.peers import OURS, Peer
from bench.suite.settings import Settings

OPERATIONS = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "broadcast",
    "all_to_all",
    "barrier",
)
_QUICK_RANKS = (2,)
_FULL_RANKS = (2, 4, 8)
_TURN_PATIENCE_S = 300.0
_BACKENDS = {"floor": "fake", "gloo": "gloo"}  # of a peer


def bus_factor(operation: str, ranks: int) -> float:
    """Return busbw / algbw by nccl-tests' definitions."""
    factors = {
        "all_reduce": 2 * (ranks - 1) / ranks,
        "all_gather": (ranks - 1) / ranks,
        "reduce_scatter": (ranks - 1) / ranks,
        "all_to_all": (ranks - 1) / ranks,
        "broadcast": 1.0,
    }
    return factors[operation]


def measure(settings: Settings, peers: list[Peer], progress: rounds.Progress) -> list[Record]:
    """Let all have their turns; return a record for each backend, operation, size and path."""
    default = _QUICK_RANKS if settings.is_quick else _FULL_RANKS
    numbers = default if settings.ranks is None else (settings.ranks,)
    backends = [OURS, *(_BACKENDS[peer.name] for peer in peers)]
    turns = [
        (
            f"{ranks} ranks, {transport}",
            functools.partial(_turn, settings, transport, ranks, backends),
        )
        for transport in settings.transports
        for ranks in numbers
    ]
    seconds = settings.seconds_of("collectives")
    found, failed = rounds.take(turns, settings.rounds_of(), seconds, progress)
    return [with_bandwidth(record) for record in samples.merge(found)] + failed


def with_bandwidth(record: Record) -> Record:
    """Add both bandwidths, in 10^9 bytes a second; a barrier has none."""
    if record["op"] == "barrier":
        return record
    algorithm = number(record, "moved_bytes") / number(record, "median_ns")
    bus = algorithm * bus_factor(text(record, "op"), int(number(record, "ranks")))
    return {**record, "algbw_gb_per_s": round(algorithm, 6), "busbw_gb_per_s": round(bus, 6)}


def _turn(settings: Settings, transport: str, ranks: int, backends: list[str]) -> list[Record]:
    printed = run_ranks(
        "collectives",
        ranks,
        *("--ranks", str(ranks)),
        *("--backends", ",".join(backends)),
        *("--operations", ",".join(OPERATIONS)),
        *("--sizes", ",".join(map(str, settings.sizes_of("collectives")))),
        *("--rounds", "8" if settings.is_quick else "20"),
        environment={"RDMATENSOR_TRANSPORT": transport},
        timeout_s=_TURN_PATIENCE_S,
    )
    return [_record(of_ranks, transport) for of_ranks in by_key(printed).values()]


def by_key(printed: list[Record]) -> dict[tuple[object, ...], list[Record]]:
    """Bring together what the ranks say of the same thing."""
    found: dict[tuple[object, ...], list[Record]] = {}
    for record in printed:
        key = tuple(record[name] for name in ("contestant", "op", "size", "ranks"))
        found.setdefault(key, []).append(record)
    return found


def _record(of_ranks: list[Record], transport: str) -> Record:
    """One turn of one thing: each sample is that of the slowest rank."""
    backend = text(of_ranks[0], "contestant")
    peer = {name: peer for peer, name in _BACKENDS.items()}.get(backend, OURS)
    fields: Record = {
        "topic": "collectives",
        "contestant": "does nothing" if peer == "floor" else backend,
        "peer": peer,
        "transport": transport,
        "op": of_ranks[0]["op"],
        "size": of_ranks[0]["size"],
        "moved_bytes": of_ranks[0]["moved_bytes"],
        "ranks": of_ranks[0]["ranks"],
        "language": "torch",
        "timed": "mean of calls in a row, slowest rank",
    }
    slowest = [max(several) for several in zip(*map(samples.raw_of, of_ranks), strict=True)]
    return samples.turn(fields, slowest)
