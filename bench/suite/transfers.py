"""One transfer by rdtperf, its records, and how much of each size is measured.

bench/core says what a sample of each command of rdtperf is.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence

from bench.benchlib import programs
from bench.benchlib.record import Record, number, text
from bench.benchlib.units import size_text
from bench.suite import rounds, samples
from bench.suite.peers import COPIES, RDMATENSOR
from bench.suite.settings import KIB, MIB, MOST_BYTES, VERBS, Settings

KNOWN = "until the peer knows"
TENSOR = "half a round trip of a tensor, read"
SLOT, DYNAMIC = f"{RDMATENSOR} slot", f"{RDMATENSOR} dynamic"
COPY, SERIALISED = "ring and copy out", "packed, ring, copy out"
ALONE = "a read alone"
COLD = "cold: "
DEPTHS = (1, 16)
WAYS = ("one way", "both ways")
FLOOR = "floor"
DEEP_MOST_BYTES = 64 * MIB  # a larger message is a stream by itself
_SHARE_OF_FREE = 0.7
_ROW_COPIES = 6  # of a message in memory: source and target of each side, and the floor's
_COLD_COPIES = 3  # of the memory: what the arena keeps, what is registered, the floor's
_ROW_SIZES = (8, 4 * KIB, 64 * KIB, MIB, 16 * MIB, 64 * MIB, 256 * MIB, 1024 * MIB)
_QUICK_ROWS, _QUICK_READS = (4 * KIB, MIB), (8, MIB)
COLD_BYTES, _QUICK_COLD_BYTES = 256 * MIB, 64 * MIB
_COLD_SIZES = (8, 64 * KIB, 16 * MIB, 1024 * MIB)
_ONCE = ("open", "connect")  # steps of a cold start that know no size
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
_TENSORS = {
    "slot": (SLOT, RDMATENSOR),
    "dynamic": (DYNAMIC, RDMATENSOR),
    "copy": (COPY, COPIES),
    "serialised": (SERIALISED, COPIES),
}


def timed_of(depth: float, ways: str) -> str:
    """Return what a record of messages in a row says was timed."""
    return f"{depth:.0f} in flight, {ways}"


def timed_read(depth: float) -> str:
    """Return the same of reads."""
    return ALONE if depth == 1 else f"{depth:.0f} reads under way"


def kind_of(record: Record) -> str:
    """Return which table a record stands in."""
    timed = text(record, "timed")
    if timed.startswith(COLD):
        return "cold start"
    if timed in map(timed_read, DEPTHS):
        return "one-sided reads"
    return "messages in a row" if " in flight, " in timed else "one transfer"


def trips_of(size: int, *, is_quick: bool) -> int:
    """Return the round trips of a turn: fewer of larger messages."""
    least, most = (4, 400) if is_quick else (10, 2000)
    return max(least, min(most, (8 if is_quick else 64) * MIB // max(size, 1)))


def warm_up_of(trips: int) -> int:
    """Return untimed round trips before timed ones: as many as rdtperf and gRPC have."""
    return max(5, trips // 5)


def counts_of(size: int, depth: int, *, is_quick: bool) -> tuple[int, int]:
    """Return the messages of a sample, at least as many as are in flight, and a turn's samples."""
    most, volume = (200, 32 * MIB) if is_quick else (2000, 256 * MIB)
    times = 2 if size > DEEP_MOST_BYTES else 3 if is_quick else 5
    return max(depth, min(most, volume // size)), times


def depths_of(size: int) -> tuple[int, ...]:
    """Return how many messages of a size are in flight."""
    return DEPTHS if size <= DEEP_MOST_BYTES else DEPTHS[:1]


def read_sizes(settings: Settings) -> tuple[int, ...]:
    """Return the sizes of reads in bytes."""
    default = _QUICK_READS if settings.is_quick else _ROW_SIZES
    return tuple(size for size in settings.sizes or default if size <= MOST_BYTES)


def row_sizes(settings: Settings, free_bytes: int) -> tuple[list[int], list[Record]]:
    """Return the sizes in bytes that find room, and a record for each of the others."""
    wanted = settings.sizes or (_QUICK_ROWS if settings.is_quick else _ROW_SIZES)
    return _with_room(wanted, _ROW_COPIES, free_bytes, "messages of {} in a row")


def cold_sizes(settings: Settings, free_bytes: int) -> tuple[list[int], list[Record]]:
    """Return the sizes of memory of a cold start; one where quick or --sizes chose messages'."""
    wanted: tuple[int, ...] = (_QUICK_COLD_BYTES if settings.is_quick else COLD_BYTES,)
    if not (settings.is_quick or settings.sizes):
        wanted += _COLD_SIZES
    return _with_room(wanted, _COLD_COPIES, free_bytes, "cold start with {}")


def _with_room(
    wanted: Sequence[int], copies: int, free_bytes: int, what: str
) -> tuple[list[int], list[Record]]:
    found = [size for size in wanted if size * copies <= free_bytes * _SHARE_OF_FREE]
    free = size_text(free_bytes)
    return found, [
        missing(
            what.format(size_text(size)),
            f"needs {size_text(size * copies)} of memory, {free} are free",
        )
        for size in wanted
        if size not in found
    ]


def missing(peer: str, why: str) -> Record:
    return {"topic": "p2p", "peer": peer, "missing": why, "get": ""}


def record_of(one: Record, name: str, peer: str, timed: str) -> Record:
    """Return the record of a turn from what a program printed."""
    wait = samples.WAITS[str(one.get("wait", "spin"))]
    how = {"language": "C", "wait": wait, "timed": timed}
    path, size = text(one, "transport"), number(one, "size")
    fields = samples.p2p_fields(name, peer, path, size, **how)
    return samples.turn(fields, samples.raw_of(one), one if "samples" in one else None)


def _of_program(one: Record, timed: str, floor: str, **more: object) -> Record:
    """The same of the library, or of what the program's floor does."""
    who = (floor, FLOOR) if one["name"] == FLOOR else (RDMATENSOR, RDMATENSOR)
    return {**record_of(one, *who, timed), **more}


def floor_of(transport: str) -> str:
    return "plain socket" if transport == "tcp" else "memcpy and flag"


def waits_of(settings: Settings, transport: str) -> tuple[str, ...]:
    """Sleeping has a floor on tcp only; the quick suite has no time for both."""
    return ("spin", "sleep") if transport == "tcp" and not settings.is_quick else ("spin",)


def words_of(transport: str, size: int, count: int, times: int, *more: str) -> tuple[str, ...]:
    sized = ("--transport", transport, "--size", str(size))
    return (*sized, "--count", str(count), "--rounds", str(times), *more)


def latency(words: Sequence[str], *, has_floor: bool) -> list[Record]:
    return [
        _of_program(
            one,
            samples.HALF,
            floor_of(text(one, "transport")),
            **{name: number(one, name) for name in samples.SLEPT},
        )
        for one in programs.run("latency", *words)
        if has_floor or one["name"] == RDMATENSOR
    ]


def shm_write(size: int, *, has_floor: bool, is_quick: bool) -> list[Record]:
    times = max(3, min(100, (32 if is_quick else 256) * MIB // size))
    return [
        record_of(one, RDMATENSOR, RDMATENSOR, KNOWN)
        if one["name"] == RDMATENSOR
        else record_of(one, f"copy: {one['name']}", FLOOR, KNOWN)
        for one in programs.run("shm_write", "--size", str(size), "--rounds", str(times))
        if has_floor or one["name"] == RDMATENSOR
    ]


def tensors(
    settings: Settings,
    transport: str,
    size: int,
    *,
    has_copies: bool = True,
    environment: Mapping[str, str] | None = None,
) -> list[Record]:
    """Return the records of one turn of all ways of a tensor."""
    is_short = settings.is_quick or transport == VERBS
    most, volume = (100, 4 * MIB) if is_short else (500, 32 * MIB)
    words = words_of(transport, size, max(2, min(most, volume // size)), 3)
    return [
        record_of({**one, "transport": transport, "size": size}, name, peer, TENSOR)
        for one in programs.run("tensors", *words, environment=environment)
        for name, peer in [_TENSORS[text(one, "name")]]
        if has_copies or peer == RDMATENSOR
    ]


def row(command: str, words: Sequence[str], *, has_floor: bool) -> list[Record]:
    return [
        row_record(one, is_read=command == "reads")
        for one in programs.run(command, *words)
        if has_floor or one["name"] == RDMATENSOR
    ]


def row_record(one: Record, *, is_read: bool = False) -> Record:
    """Return the record of one turn of messages in a row, or of reads."""
    transport, depth = text(one, "transport"), number(one, "depth")
    more: Record = {"depth": int(depth), **{name: number(one, name) for name in samples.COSTS}}
    if is_read:
        floor = "plain socket" if transport == "tcp" else "memcpy"
        return _of_program(one, timed_read(depth), floor, **more)
    ways = WAYS[one.get("both") is True]
    return _of_program(one, timed_of(depth, ways), floor_of(transport), **more, ways=ways)


def cold(words: Sequence[str], is_first: bool, *, has_floor: bool) -> list[Record]:
    records = []
    for one in programs.run("registration", *words):
        step = text(one, "name")
        who = ("memfd, populated", FLOOR) if step == "populate" else (RDMATENSOR, RDMATENSOR)
        if (has_floor or who[1] != FLOOR) and (is_first or step not in _ONCE):
            at = {**one, "transport": words[1], "size": int(words[3])}
            records.append(record_of(at, *who, COLD + _COLD_STEPS[step]))
    return records


def cold_turns(
    settings: Settings, transport: str, sizes: Sequence[int], *, has_floor: bool
) -> Iterator[tuple[str, rounds.Turn]]:
    """Return a turn for each cold start; the first has the steps that know no size."""
    for size in sizes:
        times = 1 if settings.is_quick or size > COLD_BYTES else 3
        words = ("--transport", transport, "--size", str(size), "--rounds", str(times))
        turn = functools.partial(cold, words, size == sizes[0], has_floor=has_floor)
        yield f"cold start, {transport} {size_text(size)}", turn
