"""A parameter server next to torch RPC, Redis, gRPC and a local table, in turns.

Rows: pulls and pushes of 4,096 rows of 64 floats; a push ends when it is applied. Redis only stores
what is pushed. Dense: a sync step of two workers and one server, with the backward pass that has
the gradients. Keys: pulls and pushes of 4,096 of a million random keys, after each has shown its
own row. Drive: batches of one process for two workers. A ratio is of means of one run. `--calls
crossover` is crossover.py.
"""

from __future__ import annotations

import functools
import os
import socket
from collections.abc import Mapping, Sequence
from typing import cast

from bench.benchlib import machine
from bench.benchlib.pairs import run_ranks
from bench.benchlib.record import Record, number, text
from bench.benchlib.units import size_text, time_text
from bench.suite import crossover, rounds, samples
from bench.suite.layout import layout
from bench.suite.peers import RDMATENSOR, Peer
from bench.suite.settings import MIB, Settings

TOPIC = "ps"
GRPC = "grpc-cpp"
ROWS, DENSE, KEYS, DRIVE = "rows", "dense", "keys", "drive"
CALLS = (ROWS, DENSE, KEYS, DRIVE, crossover.CROSSOVER)
_ROUNDS = 3
_LOADS, _QUICK_LOADS = (0, 2), (0,)
_SIZES, _QUICK_SIZES = (MIB, 16 * MIB, 64 * MIB), (MIB,)
_RANKS = {"redis": 1, "floor": 1}  # of rows; others have a server
_RANKS_OF = {DENSE: 3, DRIVE: 4}
_NAMES = {"rpc": "torch RPC", "redis": "Redis", "floor": "local table", GRPC: "gRPC C++"}
_TURN_PATIENCE_S = 200.0
# What another's mean over rdmatensor's has to be at least.
WANTED = {
    ("pull", "shm", "rpc"): 20.0,
    ("pull", "shm", "redis"): 50.0,
    ("pull", "shm", "floor"): 1 / 1.5,
    ("push", "shm", "rpc"): 5.0,
    ("push", "shm", "redis"): 15.0,
    ("pull", "tcp", "rpc"): 4.0,
    ("push", "tcp", "rpc"): 4.0,
    ("dense step", "shm", GRPC): 3.0,
    ("dense step", "tcp", GRPC): 1.5,
}
HEADS = ("", "who", "mean", "p50", "p99", "CPU", "servers' CPU", "over rdmatensor", "wanted", "")


def measure(settings: Settings, peers: list[Peer], progress: rounds.Progress) -> list[Record]:
    """Let all have their turns; return a record for each that is measured."""
    calls = settings.calls or (ROWS, DENSE, KEYS, DRIVE)
    present = [RDMATENSOR, *(peer.name for peer in peers)]
    loads = settings.burners or (_QUICK_LOADS if settings.is_quick else _LOADS)
    sizes = settings.sizes or (_QUICK_SIZES if settings.is_quick else _SIZES)
    contests = [(ROWS, who) for who in present if who != GRPC]
    contests += [(DENSE, who) for who in present if who in (RDMATENSOR, GRPC)]
    contests += [(KEYS, RDMATENSOR), (DRIVE, RDMATENSOR)]
    options = {"loads": loads, "sizes": sizes}
    turns: list[tuple[str, rounds.Turn]] = [
        (f"{who}, {what}, {path}", functools.partial(_turn, who, what, path, options))
        for path in settings.transports
        for what, who in contests
        if what in calls
    ]
    if crossover.CROSSOVER in calls:
        turns += crossover.turns_of(settings)
    if not turns:
        raise RuntimeError(f"--calls of {TOPIC} are {', '.join(CALLS)}")
    count = settings.rounds or _ROUNDS
    found, failed = rounds.take(turns, count, settings.seconds_of(TOPIC), progress)
    return [{**one, "cores": settings.cores} for one in samples.merge(found)] + failed


def _turn(who: str, what: str, transport: str, options: Mapping[str, object]) -> list[Record]:
    ranks = _RANKS_OF.get(what, _RANKS.get(who, 2))
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]  # of Redis: free a moment ago
    printed = run_ranks(
        TOPIC,
        ranks,
        {**options, "who": who, "what": what, "ranks": ranks, "transport": transport, "port": port},
        environment={"RDMATENSOR_TRANSPORT": transport},
        timeout_s=_TURN_PATIENCE_S,
    )
    return [_record(who, transport, ranks, one) for one in printed]


def _record(who: str, transport: str, ranks: int, printed: Record) -> Record:
    load = int(number(printed, "load"))
    own_ns, servers_ns = cast("list[float]", printed["cpu_ns"])
    link = os.environ.get(machine.LINK)  # the wanted ratios are of plain loopback
    fields: Record = {
        "topic": TOPIC,
        "name": _NAMES.get(who, who),
        "peer": who,
        "transport": transport if link is None else f"{transport} {link}",
        "op": printed["op"],
        "size": printed["size"],
        "ranks": ranks if printed["op"] in ("dense step", "driven batch") else 0,
        "timed": f"{load} burners" if load else "quiet",
        "call_cpu_ns": own_ns,
        "cpu_ns": servers_ns,
    }
    return samples.turn(fields, cast("list[int]", printed["raw_ns"]))


def mean_ns(record: Record) -> float:
    """Return the mean of all samples."""
    raw = samples.raw_of(record)
    return sum(raw) / len(raw)


def rows_of(records: Sequence[Record]) -> list[tuple[str, ...]]:
    """Return a line for each record; each cell has rdmatensor first."""
    cells: dict[tuple[object, ...], list[Record]] = {}
    for one in records:
        key = tuple(one[name] for name in ("op", "transport", "size", "timed"))
        cells.setdefault(key, []).append(one)
    lines: list[tuple[str, ...]] = []
    for (op, transport, size, timed), of_cell in cells.items():
        own = next((mean_ns(one) for one in of_cell if one["peer"] == RDMATENSOR), None)
        for one in sorted(of_cell, key=lambda one: one["peer"] != RDMATENSOR):
            ratio = None if own is None or one["peer"] == RDMATENSOR else mean_ns(one) / own
            wanted = WANTED.get((str(op), str(transport), text(one, "peer")))
            lines.append(
                (
                    f"{op}, {transport}, {size_text(float(str(size)))}, {timed}",
                    text(one, "name"),
                    time_text(mean_ns(one)),
                    time_text(number(one, "median_ns")),
                    samples.tail_text(one, "p99"),
                    time_text(number(one, "call_cpu_ns")),
                    time_text(number(one, "cpu_ns")),
                    "-" if ratio is None else f"{ratio:.2f}",
                    "-" if wanted is None or ratio is None else f">= {wanted:.3g}",
                    ""
                    if wanted is None or ratio is None
                    else ("met" if ratio >= wanted else "NOT met"),
                )
            )
    return lines


def show(records: Sequence[Record]) -> str:
    """A line for each record."""
    return layout(HEADS, rows_of(records))
