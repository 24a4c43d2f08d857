"""Set-up: how long ranks take until they can work together, and the memory, against their number.

bench/workers/setup.py says what is timed and counted. Time is fitted as a * ranks^b: b is how it
grows. A rank's memory is fitted as a + b * (ranks - 1), what it costs alone and what for each other
rank: where each rank reaches at most two, b is what a peer costs that is not talked to.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

from bench.benchlib.pairs import run_ranks
from bench.benchlib.record import Record, number, text
from bench.suite import rounds, samples
from bench.suite.peers import RDMATENSOR, Peer
from bench.suite.settings import Settings

_QUICK_MOST, _FULL_MOST = 8, 128
_TURN_PATIENCE_S = 1500.0
FITTED_RANKS = 64  # RDTI_TEAM_MAX: up to here a group of one host has boards in shared memory
TIMED = {
    "neighbours": "store connected, until each heard from a neighbour",
    "barrier": "store connected, until the first barrier",
    "all_to_all": "store connected, until the first all_to_all",
}


def ladder(most: int) -> list[int]:
    """Return 2, 4, 8 and so on, and `most` at the end."""
    steps = [2**power for power in range(1, 8) if 2**power < most]
    return [*steps, most]


def measure(settings: Settings, peers: list[Peer], progress: rounds.Progress) -> list[Record]:
    """Let all have their turns; return a record for each backend, number of ranks and step.

    The paths share the time, and none begins a number of ranks that is expected to end after its
    share, unless settings.ranks asks for it: a record for each that was left out says so.
    """
    numbers = ladder(settings.ranks or (_QUICK_MOST if settings.is_quick else _FULL_MOST))
    backends = [RDMATENSOR, *(peer.name for peer in peers)]
    seconds = settings.seconds_of("setup")
    share_s = math.inf if settings.ranks else seconds / len(settings.transports)
    turns = [
        (path, functools.partial(_turn, path, numbers, backends, share_s, progress))
        for path in settings.transports
    ]
    found, failed = rounds.take(
        turns, settings.rounds_of(), seconds, progress, is_strict=settings.is_quick
    )
    return samples.merge(found) + failed + left_out(found, numbers, share_s)


def left_out(found: Sequence[Record], numbers: Sequence[int], share_s: float) -> list[Record]:
    """Return a record for each number of ranks that no round began on a path with others."""
    reached: dict[str, set[object]] = {}
    for record in found:
        reached.setdefault(text(record, "transport"), set()).add(record["ranks"])
    return [
        {
            "topic": "setup",
            "peer": f"{ranks} ranks over {transport}",
            "missing": f"not begun, as it would have ended after {share_s:.0f} s",
            "get": f"--ranks {ranks}, however long it takes",
            "left_out": True,
        }
        for transport, of_path in reached.items()
        for ranks in numbers
        if ranks not in of_path
    ]


def _turn(
    transport: str,
    numbers: list[int],
    backends: list[str],
    share_s: float,
    progress: rounds.Progress,
) -> list[Record]:
    printed = run_ranks(
        "setup",
        1,
        {"ranks": numbers, "backends": backends, "seconds": share_s},
        environment={"RDMATENSOR_TRANSPORT": transport},
        timeout_s=_TURN_PATIENCE_S,
    )
    found: dict[tuple[object, ...], list[Record]] = {}
    for record in printed:
        found.setdefault((record["name"], record["op"], record["ranks"]), []).append(record)
    most = max(int(number(record, "ranks")) for record in printed)
    if most < numbers[-1]:
        progress.say(f"{transport}: {most} ranks, and no time for more", is_round=True)
    return [
        samples.turn(
            {
                "topic": "setup",
                "name": backend,
                "peer": backend,
                "transport": transport,
                "op": step,
                "size": 0,
                "ranks": ranks,
                "language": "torch",
                "timed": TIMED[str(step)],
                "rank_bytes": samples.quantile([number(one, "rank_bytes") for one in several], 0.5),
            },
            [number(one, "took_ns") for one in several],
        )
        for (backend, step, ranks), several in found.items()
    ]


def _line(points: Sequence[tuple[float, float]]) -> tuple[float, float] | None:
    """Return a and b of y = a + b x by least squares; None below 3 points."""
    if len(points) < 3:
        return None
    mean_x, mean_y = (sum(axis) / len(points) for axis in zip(*points, strict=True))
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    together = sum((x - mean_x) * (y - mean_y) for x, y in points)
    return mean_y - together / spread * mean_x, together / spread


def power(records: Sequence[Record]) -> tuple[float, float] | None:
    """Fit time = a * ranks^b in logarithms; return a in ns and b, None below 3 points."""
    fitted = [one for one in records if number(one, "ranks") <= FITTED_RANKS]
    line = _line(
        [(math.log(number(one, "ranks")), math.log(number(one, "median_ns"))) for one in fitted]
    )
    return None if line is None else (math.exp(line[0]), line[1])


def memory(records: Sequence[Record]) -> tuple[float, float] | None:
    """Fit a rank's bytes = a + b * (ranks - 1); return a and b, None below 3 points."""
    fitted = [one for one in records if number(one, "ranks") <= FITTED_RANKS]
    fitted = [one for one in fitted if "rank_bytes" in one]
    points = [(number(one, "ranks") - 1, number(one, "rank_bytes")) for one in fitted]
    return _line(points)


def curves(records: Sequence[Record]) -> dict[str, list[Record]]:
    """Return the records of each curve, by its name, with growing numbers of ranks."""
    found: dict[str, list[Record]] = {}
    for record in sorted(records, key=lambda one: number(one, "ranks")):
        name = f"{text(record, 'transport')}, {record['name']}, {record['timed']}"
        found.setdefault(name, []).append(record)
    return found
