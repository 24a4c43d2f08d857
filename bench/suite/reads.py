"""One-sided reads: each alone, and in a row with 16 under way, and what processors spend on them.

bench/core/reads.c says what a sample is, and what its floor does. ucx_perftest has its get beside
it: of one at a time what is typical of a run, of several the mean of all.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

from bench.benchlib import programs
from bench.benchlib.record import Record, number, text
from bench.benchlib.units import size_text
from bench.suite import rounds, samples, streams_rivals
from bench.suite.peers import OURS
from bench.suite.settings import KIB, MIB, MOST_BYTES, Settings

DEPTHS = (1, 16)
ALONE = "a read alone"
UCX = "UCX get"
FLOORS = {"shm": "memcpy", "tcp": "plain socket"}
_QUICK_SIZES = (8, MIB)
_FULL_SIZES = (8, 4 * KIB, 64 * KIB, MIB, 16 * MIB, 64 * MIB)
_ROUNDS = 3
_UCX_LEAST = 10  # reads: of two ucx_perftest calls something else typical


def timed_of(depth: float) -> str:
    """Return what a record of reads says was timed."""
    return ALONE if depth == 1 else f"{depth:.0f} reads under way"


def is_read(record: Record) -> bool:
    """Whether a record is of one-sided reads."""
    return record.get("timed") in [timed_of(depth) for depth in DEPTHS]


def sizes_of(settings: Settings) -> tuple[int, ...]:
    """Return the sizes in bytes."""
    if settings.sizes:
        return tuple(size for size in settings.sizes if size <= MOST_BYTES)
    return _QUICK_SIZES if settings.is_quick else _FULL_SIZES


def count_of(size: int, depth: int, *, is_quick: bool) -> int:
    """Return the reads of a round, at least as many as are under way."""
    most, volume = (200, 16 * MIB) if is_quick else (2000, 128 * MIB)
    return max(depth, min(most, volume // size))


def turns(
    settings: Settings, transport: str, *, has_floor: bool
) -> Iterator[tuple[str, rounds.Turn]]:
    """Return a turn for each size, depth and way of waiting."""
    has_sleep = transport == "tcp" and not settings.is_quick
    for size in sizes_of(settings):
        for depth in DEPTHS:
            count = count_of(size, depth, is_quick=settings.is_quick)
            for wait in samples.WAITS if has_sleep else ("spin",):
                words = ["--transport", transport, "--size", str(size), "--depth", str(depth)]
                words += ["--wait", wait, "--count", str(count), "--rounds", str(_ROUNDS)]
                turn = functools.partial(_turn, words, has_floor=has_floor)
                what = f"{timed_of(depth)}, {transport} {size_text(size)}, {samples.WAITS[wait]}"
                yield what, turn


def _turn(words: list[str], *, has_floor: bool) -> list[Record]:
    return [
        record_of(found)
        for found in programs.run("reads", *words)
        if has_floor or found["contestant"] == "ours"
    ]


def _fields(who: str, peer: str, transport: str, size: float, depth: float, wait: str) -> Record:
    how = {"language": "C", "wait": samples.WAITS[wait], "timed": timed_of(depth)}
    return {**samples.p2p_fields(who, peer, transport, size, **how), "depth": int(depth)}


def record_of(found: Record) -> Record:
    """Return the record of one turn from what the program printed."""
    transport, is_ours = text(found, "transport"), found["contestant"] == "ours"
    fields = _fields(
        OURS if is_ours else FLOORS[transport],
        OURS if is_ours else "floor",
        transport,
        number(found, "size"),
        number(found, "depth"),
        text(found, "wait"),
    )
    costs = {name: number(found, name) for name in samples.COSTS}
    return samples.turn({**fields, **costs}, samples.raw_of(found), found)


def ucx_turns(settings: Settings, transport: str, path: str) -> Iterator[tuple[str, rounds.Turn]]:
    """Return the turns of ucx_perftest; path: UCX_TLS."""
    for size in sizes_of(settings):
        for depth in DEPTHS:
            fields = _fields(UCX, "ucx", transport, size, depth, "spin")
            count = _ROUNDS * count_of(size, depth, is_quick=settings.is_quick)
            words = ["-t", "ucp_get", "-s", str(size), "-O", str(depth)]
            column = streams_rivals.TYPICAL if depth == 1 else streams_rivals.OVERALL
            turn = functools.partial(
                streams_rivals.ucx_turn,
                words,
                fields,
                path,
                max(_UCX_LEAST, count),
                column,
                is_quick=settings.is_quick,
            )
            yield f"{UCX}, {timed_of(depth)}, {transport} {size_text(size)}", turn
