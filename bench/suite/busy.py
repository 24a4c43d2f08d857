"""Collectives, send and training steps on a busy machine: rdmatensor and Gloo.

A turn is a set of fresh processes in which both backends have a loop of each cell, one after the
other, with the same burners (bench/workers/busy.py). A sample is the mean of one loop, so the
samples of a cell are its rounds. A ratio is rdmatensor's figure over Gloo's.
"""

from __future__ import annotations

import functools
import itertools
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from bench.benchlib.pairs import run_ranks
from bench.benchlib.record import Record, number, text
from bench.benchlib.units import size_text, time_text
from bench.suite import rounds, samples
from bench.suite.collectives import OPERATIONS, by_key, over_ranks
from bench.suite.layout import geometric, layout
from bench.suite.peers import RDMATENSOR, Peer
from bench.suite.settings import KIB, Settings

TOPIC = "busy"
GLOO = "gloo"
DDP, WAIT = "ddp", "wait"
CALLS = (*OPERATIONS, DDP, WAIT)
KINDS = {"spin": "spinning", "nap": "napping", "matmul": "in matmul"}
IDLE = "no burners"
_QUICK_CALLS = ("all_reduce", WAIT)
_BURNERS = (0, 2, 4)
_KINDS = ("spin",)
_RANKS, _QUICK_RANKS = (2, 4), (2,)
_BETWEEN_MS, _QUICK_BETWEEN_MS = (0.0, 2.0), (0.0,)
_ROUNDS, _QUICK_ROUNDS = 5, 3
_LOOP_S = 0.25  # tens of time slices, so that a loop in which ranks wait for a core shows it
_AROUND_S = 0.15  # about, for the barriers and the comparison around a loop
_START_S = 10.0  # about, of a turn's processes and its burners
_SLACK = 3  # a run that takes so many times what was estimated begins no further round
_TURN_PATIENCE_S = 7200.0


def measure(settings: Settings, peers: list[Peer], progress: rounds.Progress) -> list[Record]:
    """Let all have their turns; return a record for each backend and cell.

    Raises RuntimeError if the options leave nothing to measure.
    """
    numbers = _RANKS if settings.ranks is None else (settings.ranks,)
    if settings.is_quick and settings.ranks is None:
        numbers = _QUICK_RANKS
    backends = [RDMATENSOR, *(peer.name for peer in peers)]
    turns, estimate_s = [], 0.0
    for ranks in numbers:
        words = words_of(settings, ranks)
        if not words:
            continue
        estimate_s += seconds_of(words, len(backends)) * len(settings.transports)
        for transport in settings.transports:
            more = {**words, "backends": backends}
            turn = functools.partial(_turn, ranks, transport, more, itertools.count(), progress)
            turns.append((f"{ranks} ranks, {transport}", turn))
    if not turns:
        raise RuntimeError("send is of two ranks: --ranks 2")
    count = settings.rounds or (_QUICK_ROUNDS if settings.is_quick else _ROUNDS)
    estimate_s *= count
    sys.stderr.write(f"{TOPIC}: about {estimate_s / 60:.0f} min: {count} rounds\n")
    found, failed = rounds.take(turns, count, _SLACK * estimate_s, progress)
    return [{**one, "cores": settings.cores} for one in samples.merge(found)] + failed


def words_of(settings: Settings, ranks: int) -> dict[str, Any]:
    """Return the options of a turn's workers; none for only a send, which is of two ranks."""
    default = _QUICK_CALLS if settings.is_quick else CALLS
    calls = [name for name in settings.calls or default if name != "send" or ranks == 2]
    if not calls:
        return {}
    between_ms = settings.between_ms or (_QUICK_BETWEEN_MS if settings.is_quick else _BETWEEN_MS)
    loads = [
        f"{kind}:{count}"
        for count in settings.burners or _BURNERS
        for kind in ((settings.kinds or _KINDS) if count else ("none",))
    ]
    sizes = settings.sizes_of(TOPIC)
    shared = {"ranks": ranks, "calls": calls, "loads": loads, "sizes": sizes}
    return {**shared, "between_ms": between_ms, "seconds": _LOOP_S}


def seconds_of(options: dict[str, Any], backends: int) -> float:
    """Return about how long a turn with these options takes."""
    calls = options["calls"]
    loads, sizes, between = (len(options[name]) for name in ("loads", "sizes", "between_ms"))
    alone = sum(name in (DDP, WAIT) for name in calls)
    barriers = calls.count("barrier")
    cells = alone + between * (barriers + sizes * (len(calls) - alone - barriers))
    return float(_START_S + loads * cells * backends * (_LOOP_S + _AROUND_S))


def _turn(
    ranks: int,
    transport: str,
    words: dict[str, Any],
    numbers: Iterator[int],
    progress: rounds.Progress,
) -> list[Record]:
    """Fresh processes of one number of ranks and one path; each turn is another round."""
    number_of = next(numbers)
    progress.say(f"round {number_of + 1}: {ranks} ranks, {transport}", is_round=True)
    printed = run_ranks(
        TOPIC,
        ranks,
        {**words, "round": number_of},
        environment={"RDMATENSOR_TRANSPORT": transport},
        timeout_s=_TURN_PATIENCE_S,
    )
    return [record_of(of_ranks, transport) for of_ranks in by_key(printed).values()]


def record_of(of_ranks: list[Record], transport: str) -> Record:
    """One turn of one cell: times of the slowest rank, processor time of all ranks together.

    Of a wait that is the processor time of the rank that used most: each waits for itself.
    """
    first = of_ranks[0]
    join = max if first["op"] == WAIT else sum
    middle = {
        name: samples.quantile(over_ranks(of_ranks, name, max), 0.5)
        for name in ("p50_ns", "p99_ns")
    }
    shared = ("name", "op", "size", "moved_bytes", "ranks", "kind", "burners", "between_ms")
    fields: Record = {
        "topic": TOPIC,
        "peer": first["name"],
        "transport": transport,
        "language": "torch",
        "timed": timed_of(first),
        **{name: first[name] for name in shared},
        **middle,
        "call_cpu_ns": samples.quantile(over_ranks(of_ranks, "cpu_ns", join), 0.5),
    }
    calls = {"samples": min(over_ranks(of_ranks, "calls", min))}
    record = samples.turn(fields, over_ranks(of_ranks, "raw_ns", max))
    return {**record, **calls}


def timed_of(record: Record) -> str:
    """Return what else used the cores: burners, and the ranks' computing between calls."""
    count, between_ms = int(number(record, "burners")), number(record, "between_ms")
    burners = f"{count} {KINDS[str(record['kind'])]}" if count else IDLE
    return f"{burners}, {between_ms:g} ms between" if between_ms else burners


# ---- Tables -------------------------------------------------------------------------------------

SMALL_BYTES = 64 * KIB  # up to here, ratios have a mean of their own
_WAIT_MOST_NS = 2e6  # processor time of a rank that waits for 100 ms
CELL_HEADS = ("call", "with", "mean", "Gloo's", "ratio", "worst", "p99", "CPU", "Gloo's")
LOAD_HEADS = ("ranks", "with", "cells", "to 64 KiB", "above", "slower", "slowest cell")
Pair = tuple[Record, Record]  # rdmatensor's record of a cell, and Gloo's


def pairs_of(records: Sequence[Record]) -> list[Pair]:
    """Return the cells that both backends have."""
    found: dict[tuple[object, ...], dict[str, Record]] = {}
    for one in records:
        key = tuple(one.get(name) for name in ("ranks", "transport", "op", "size", "timed"))
        found.setdefault(key, {})[text(one, "name")] = one
    return [(of[RDMATENSOR], of[GLOO]) for of in found.values() if {RDMATENSOR, GLOO} <= set(of)]


def _cell_name(record: Record) -> str:
    size = number(record, "size")
    return f"{text(record, 'op')} {size_text(size)}" if size else text(record, "op")


def _ratio(pair: Pair) -> float:
    return number(pair[0], "median_ns") / number(pair[1], "median_ns")


def cell_rows(pairs: Sequence[Pair]) -> list[tuple[str, ...]]:
    """Return a line for each cell; the mean, p99 and processor time are medians of its rounds."""
    return [
        (
            f"{_cell_name(own)}, {own['ranks']} ranks, {own['transport']}",
            text(own, "timed"),
            *(time_text(number(one, "median_ns")) for one in (own, gloo)),
            f"{_ratio((own, gloo)):.2f}",
            time_text(max(samples.raw_of(own))),
            time_text(number(own, "p99_ns")),
            *(time_text(number(one, "call_cpu_ns")) for one in (own, gloo)),
        )
        for own, gloo in pairs
    ]


def load_rows(pairs: Sequence[Pair]) -> list[tuple[str, ...]]:
    """Return a line for each load: geometric means of the ratios, and the slowest cell."""
    loads: dict[tuple[str, str], list[Pair]] = {}
    for pair in pairs:
        if pair[0]["op"] != WAIT:
            group = f"{pair[0]['ranks']} ranks, {pair[0]['transport']}"
            loads.setdefault((group, text(pair[0], "timed")), []).append(pair)
    lines = []
    for (group, timed), of_load in loads.items():
        sides: tuple[list[float], list[float]] = ([], [])
        for pair in of_load:
            sides[number(pair[0], "size") > SMALL_BYTES].append(_ratio(pair))
        worst = max(of_load, key=_ratio)
        slower = sum(ratio > 1 for side in sides for ratio in side)
        means = (f"{geometric(side):.2f}" if side else "-" for side in sides)
        last = f"{_cell_name(worst[0])}: {_ratio(worst):.2f}"
        lines.append((group, timed, str(len(of_load)), *means, str(slower), last))
    return lines


def show(records: Sequence[Record]) -> str:
    """All cells, means of each load, and what a rank spends while it waits."""
    pairs = pairs_of(records)
    waits = [
        f"a rank waits 100 ms in a barrier, {own['ranks']} ranks, {own['transport']}, "
        f"{own['timed']}: CPU {time_text(number(own, 'call_cpu_ns'))}, Gloo's "
        f"{time_text(number(gloo, 'call_cpu_ns'))}; wanted: at most {time_text(_WAIT_MOST_NS)}: "
        f"{'met' if number(own, 'call_cpu_ns') <= _WAIT_MOST_NS else 'NOT met'}"
        for own, gloo in pairs
        if own["op"] == WAIT
    ]
    if not pairs:
        alone = [
            (
                f"{_cell_name(one)}, {one['ranks']} ranks, {one['transport']}",
                text(one, "timed"),
                samples.tail_text(one, "median_ns"),
            )
            for one in records
        ]
        return layout(("call", "with", "mean"), alone)
    tables = [layout(CELL_HEADS, cell_rows(pairs)), layout(LOAD_HEADS, load_rows(pairs))]
    return "\n\n".join([*tables, "\n".join(waits)])
