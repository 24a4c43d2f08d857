"""Messages in a row: with 1 and 16 in flight, one way and both, and what processors spend on them.

bench/core/streams.c says what a sample is, and what its floor does. Apart from them the cold start:
a context, a connection, memory, and the first write into it (bench/core/registration.c).
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence

from bench.benchlib import programs
from bench.benchlib.record import Record, number, text
from bench.benchlib.units import size_text
from bench.suite import rounds, samples
from bench.suite.peers import OURS
from bench.suite.settings import KIB, MIB, Settings

DEPTHS = (1, 16)
WAYS = ("one way", "both ways")
COLD = "cold: "
_QUICK_SIZES = (4 * KIB, MIB)
_FULL_SIZES = (8, 4 * KIB, 64 * KIB, MIB, 16 * MIB, 64 * MIB, 256 * MIB, 1024 * MIB)
DEEP_MOST_BYTES = 64 * MIB  # a larger message is a stream by itself
_COPIES = 6  # of a message in memory: source and target of each side, and the floor's
_SHARE_OF_FREE = 0.7
_COLD_BYTES, _COLD_QUICK_BYTES = 256 * MIB, 64 * MIB
_COLD_OTHER_SIZES = (8, 64 * KIB, 16 * MIB, 1024 * MIB)
_COLD_COPIES = 3  # of the memory: what the arena keeps, what is registered, the floor's
_OF_ANY_SIZE = ("open", "connect")  # steps that know no size: told once
_COLD_STEPS = {
    "open": "a context",
    "connect": "a connection",
    "alloc": "memory in the arena",
    "alloc again": "the same memory again",
    "register": "memory that exists, registered",
    "first write": "first write of 8 B into it",
    "second write": "second write",
    "populate": "memory of the system's",
}


def is_stream(record: Record) -> bool:
    """Whether a record is of messages in a row."""
    return " in flight, " in str(record.get("timed"))


def is_cold(record: Record) -> bool:
    """Whether a record is of a cold start."""
    return text(record, "timed").startswith(COLD)


def sizes_of(settings: Settings, free_bytes: int) -> tuple[list[int], list[Record]]:
    """Return the sizes in bytes that find room, and a record for each of the others."""
    wanted = settings.sizes or (_QUICK_SIZES if settings.is_quick else _FULL_SIZES)
    return _with_room(wanted, _COPIES, free_bytes, "messages of {} in a row")


def cold_sizes(settings: Settings, free_bytes: int) -> tuple[list[int], list[Record]]:
    """Return the sizes of memory of a cold start, the first of which has all steps.

    One where it has to be quick, and where --sizes chose those of messages: what is asked for
    there is no memory to register.
    """
    wanted: tuple[int, ...] = (_COLD_QUICK_BYTES if settings.is_quick else _COLD_BYTES,)
    if not (settings.is_quick or settings.sizes):
        wanted += _COLD_OTHER_SIZES
    return _with_room(wanted, _COLD_COPIES, free_bytes, "cold start with {}")


def _with_room(
    wanted: Sequence[int], copies: int, free_bytes: int, what: str
) -> tuple[list[int], list[Record]]:
    found: list[int] = []
    without: list[Record] = []
    for size in wanted:
        if size * copies <= free_bytes * _SHARE_OF_FREE:
            found.append(size)
            continue
        room = f"{size_text(size * copies)} of memory, {size_text(free_bytes)} are free"
        without.append(
            {
                "topic": "p2p",
                "peer": what.format(size_text(size)),
                "missing": f"needs {room}",
                "get": "",
            }
        )
    return found, without


def turns(
    settings: Settings,
    transport: str,
    sizes: Sequence[int],
    cold: Sequence[int],
    *,
    has_floor: bool,
) -> Iterator[tuple[str, rounds.Turn]]:
    """Return a turn for each size, depth and direction, and one for each cold start."""
    has_sleep = transport == "tcp" and not settings.is_quick
    for size in sizes:
        for depth in DEPTHS if size <= DEEP_MOST_BYTES else DEPTHS[:1]:
            for is_both in (False, True):
                for wait in samples.WAITS if has_sleep and size <= DEEP_MOST_BYTES else ("spin",):
                    words = words_of(transport, size, depth, wait, is_quick=settings.is_quick)
                    words += ["--both"] if is_both else []
                    turn = functools.partial(_turn, words, has_floor=has_floor)
                    yield f"{depth} in flight, {transport} {size_text(size)}", turn
    for size in cold:
        start = functools.partial(
            _cold,
            transport,
            size,
            is_first=size == cold[0],
            is_quick=settings.is_quick,
            has_floor=has_floor,
        )
        yield f"cold start, {transport} {size_text(size)}", start


def timed_of(depth: float, ways: str) -> str:
    """Return what a record of messages in a row says was timed."""
    return f"{depth:.0f} in flight, {ways}"


def counts_of(size: int, depth: int, *, is_quick: bool) -> tuple[int, int]:
    """Return the messages of a sample, at least as many as are in flight, and a turn's samples."""
    most, volume = (200, 32 * MIB) if is_quick else (2000, 256 * MIB)
    # of the largest a sample lasts seconds
    times = 2 if size > DEEP_MOST_BYTES else 3 if is_quick else 5
    return max(depth, min(most, volume // size)), times


def words_of(transport: str, size: int, depth: int, wait: str, *, is_quick: bool) -> list[str]:
    """Return the program's arguments."""
    count, samples_of_turn = counts_of(size, depth, is_quick=is_quick)
    return [
        *("--transport", transport, "--size", str(size), "--depth", str(depth)),
        *("--wait", wait, "--count", str(count), "--rounds", str(samples_of_turn)),
    ]


def _turn(words: list[str], *, has_floor: bool) -> list[Record]:
    return [
        record_of(found)
        for found in programs.run("streams", *words)
        if has_floor or found["contestant"] == "ours"
    ]


def record_of(found: Record) -> Record:
    """Return the record of one turn from what the program printed."""
    transport, is_ours = text(found, "transport"), found["contestant"] == "ours"
    ways = WAYS[found["both"] is True]
    fields = samples.p2p_fields(
        OURS if is_ours else samples.floor_name(transport),
        OURS if is_ours else "floor",
        transport,
        number(found, "size"),
        language="C",
        wait=samples.WAITS[text(found, "wait")],
        timed=timed_of(number(found, "depth"), ways),
    )
    costs = {name: number(found, name) for name in samples.COSTS}
    more = {"depth": int(number(found, "depth")), "ways": ways, **costs}
    return samples.turn({**fields, **more}, samples.raw_of(found), found)


def _cold(
    transport: str, size: int, *, is_first: bool, is_quick: bool, has_floor: bool
) -> list[Record]:
    times = 1 if is_quick or size > _COLD_BYTES else 3
    words = ("--transport", transport, "--size", str(size), "--rounds", str(times))
    return [
        samples.turn(
            samples.p2p_fields(
                "memfd, populated" if is_floor else OURS,
                "floor" if is_floor else OURS,
                transport,
                size,
                language="C",
                wait=samples.WAITS["spin"],
                timed=COLD + _COLD_STEPS[step],
            ),
            samples.raw_of(found),
        )
        for found in programs.run("registration", *words)
        for step in [text(found, "contestant")]
        for is_floor in [step == "populate"]
        if (has_floor or not is_floor) and (is_first or step not in _OF_ANY_SIZE)
    ]
