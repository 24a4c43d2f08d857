"""Set-up: how long ranks take until they can work together, against their number.

bench/workers/setup.py says what is timed. The curve is fitted as time = a * ranks^b, which is a
line in logarithms: b tells how it grows.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

from bench.benchlib.pairs import run_ranks
from bench.benchlib.record import Record, number, text
from bench.suite import rounds, samples
from bench.suite.peers import OURS, Peer
from bench.suite.settings import Settings

_QUICK_MOST = 8
_FULL_MOST = 32
_TURN_PATIENCE_S = 300.0


def ladder(most: int) -> list[int]:
    """Return 2, 4, 8 and so on, and `most` at the end."""
    steps = [2**power for power in range(1, 8) if 2**power < most]
    return [*steps, most]


def measure(settings: Settings, peers: list[Peer], progress: rounds.Progress) -> list[Record]:
    """Let all have their turns; return a record for each backend, number of ranks and step."""
    most = settings.ranks or (_QUICK_MOST if settings.is_quick else _FULL_MOST)
    backends = [OURS, *(peer.name for peer in peers)]
    turns = [
        (f"{transport}", functools.partial(_turn, transport, ladder(most), backends))
        for transport in settings.transports
    ]
    seconds = settings.seconds_of("setup")
    found, failed = rounds.take(turns, settings.rounds_of(), seconds, progress)
    return samples.merge(found) + failed


def _turn(transport: str, numbers: list[int], backends: list[str]) -> list[Record]:
    printed = run_ranks(
        "setup",
        1,
        *("--ranks", ",".join(map(str, numbers))),
        *("--backends", ",".join(backends)),
        environment={"RDMATENSOR_TRANSPORT": transport},
        timeout_s=_TURN_PATIENCE_S,
    )
    found: dict[tuple[object, ...], list[float]] = {}
    for record in printed:
        key = (record["contestant"], record["op"], record["ranks"])
        found.setdefault(key, []).append(number(record, "took_ns"))
    return [
        samples.turn(
            {
                "topic": "setup",
                "contestant": backend,
                "peer": backend,
                "transport": transport,
                "op": step,
                "size": 0,
                "ranks": ranks,
                "language": "torch",
                "timed": f"store connected, until the first {step}",
            },
            took_ns,
        )
        for (backend, step, ranks), took_ns in found.items()
    ]


def exponent(records: Sequence[Record]) -> float | None:
    """Fit time = a * ranks^b by least squares in logarithms; return b, None below 3 points."""
    points = [
        (math.log(number(record, "ranks")), math.log(number(record, "median_ns")))
        for record in records
    ]
    if len(points) < 3:
        return None
    mean_x, mean_y = (sum(axis) / len(points) for axis in zip(*points, strict=True))
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    together = sum((x - mean_x) * (y - mean_y) for x, y in points)
    return float(together / spread)


def curves(records: Sequence[Record]) -> dict[str, list[Record]]:
    """Return the records of each curve, by its name, with growing numbers of ranks."""
    found: dict[str, list[Record]] = {}
    for record in records:
        name = f"{text(record, 'transport')}, {record['contestant']}, {record['timed']}"
        found.setdefault(name, []).append(record)
    return {
        name: sorted(curve, key=lambda one: number(one, "ranks")) for name, curve in found.items()
    }
