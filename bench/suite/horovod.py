"""Horovod's API on rdmatensor, with Gloo as its data path, and DDP: one run, in turns.

Times are of the slower of two ranks (bench/workers/horovod.py).
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence

from bench.benchlib.pairs import run_ranks
from bench.benchlib.record import Record, number, text
from bench.benchlib.units import time_text
from bench.suite import rounds, samples
from bench.suite.layout import layout
from bench.suite.peers import RDMATENSOR, Peer
from bench.suite.settings import Settings

TOPIC = "horovod"
SMALL, MANY = "allreduce of 8 B", "1,000 tensors of 4 KiB"
_RANKS = 2
_ROUNDS, _QUICK_ROUNDS = 4, 1
_PATIENCE_S = 300.0
_MOST_US = 12.0  # of the small one on shm
_MOST_OF_DDP = {MANY: 1.3}  # of others 1.15
_LEAST_OF_GLOO = 3.0


def measure(settings: Settings, _: list[Peer], progress: rounds.Progress) -> list[Record]:
    """Let all have their turns on each path; return a record for each contender and cell."""
    turns = [
        (path, functools.partial(_turn, path, itertools.count(), progress))
        for path in settings.transports
    ]
    count = settings.rounds or (_QUICK_ROUNDS if settings.is_quick else _ROUNDS)
    found, failed = rounds.take(turns, count, float("inf"), progress)
    return [{**one, "cores": settings.cores} for one in samples.merge(found)] + failed


def _turn(path: str, numbers: Iterator[int], progress: rounds.Progress) -> list[Record]:
    of_round = next(numbers)
    progress.say(f"round {of_round + 1}: {_RANKS} ranks, {path}", is_round=True)
    printed = run_ranks(
        TOPIC,
        _RANKS,
        {"ranks": _RANKS, "round": of_round},
        environment={"RDMATENSOR_TRANSPORT": path},
        timeout_s=_PATIENCE_S,
    )
    of_cell: dict[tuple[str, str], list[Record]] = {}
    for one in printed:
        of_cell.setdefault((text(one, "name"), text(one, "op")), []).append(one)
    return [
        samples.turn(
            {
                "topic": TOPIC,
                "name": name,
                "peer": RDMATENSOR,
                "op": op,
                "size": number(both[0], "size"),
                "ranks": _RANKS,
                "transport": path,
                "language": "torch",
                "timed": op,
            },
            [max(pair) for pair in zip(*map(samples.raw_of, both), strict=True)],
        )
        for (name, op), both in of_cell.items()
    ]


def show(records: Sequence[Record]) -> str:
    """Return a line for each contender and cell, with the goals."""
    own = {
        (text(one, "transport"), text(one, "op")): one
        for one in records
        if one["name"] == RDMATENSOR
    }
    lines = []
    for one in records:
        name, place = text(one, "name"), (text(one, "transport"), text(one, "op"))
        lines.append(
            (
                " ".join(place),
                name,
                time_text(number(one, "median_ns")),
                time_text(min(samples.raw_of(one))),
                _ratio(one, own.get(place)),
                _goal(name, *place),
            )
        )
    heads = ("", "who", "p50", "least", "rdmatensor over it", "goal")
    return layout(heads, lines)


def _ratio(one: Record, own: Record | None) -> str:
    if own is None or one is own:
        return "-"
    return f"{number(own, 'median_ns') / number(one, 'median_ns'):.2f}"


def _goal(name: str, path: str, op: str) -> str:
    if name == "gloo":
        return f"<= {1 / _LEAST_OF_GLOO:.2f}"
    if name == "ddp":
        return f"<= {_MOST_OF_DDP.get(op, 1.15):.2f}"
    return f"<= {_MOST_US:.0f} us" if (name, path, op) == (RDMATENSOR, "shm", SMALL) else "-"
