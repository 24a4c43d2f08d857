"""Messages in a row and one-sided reads: time, rate, processor time of both sides; the cold start.

bench/core/streams.c, reads.c and registration.c say what a sample is, and what its floor does. Of
gRPC a sample is the time for each message of one direction, with an answer to each; the other
direction is asked for by the same client. ucx_perftest prints one figure a run, and its processor
time has its start in it: that of a run of one message is taken off, and where it is more than half
of all nothing is said.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence

from bench.benchlib import programs
from bench.benchlib.record import Record, number, text
from bench.benchlib.units import size_text
from bench.suite import rounds, samples
from bench.suite.peers import GRPC_PROGRAM, OURS
from bench.suite.settings import KIB, MIB, MOST_BYTES, Settings

DEPTHS = (1, 16)
WAYS = ("one way", "both ways")
ALONE = "a read alone"
UCX_GET = "UCX get"
COLD = "cold: "
_QUICK_SIZES, _QUICK_READS = (4 * KIB, MIB), (8, MIB)
_FULL_SIZES = (8, 4 * KIB, 64 * KIB, MIB, 16 * MIB, 64 * MIB, 256 * MIB, 1024 * MIB)
_FULL_READS = tuple(size for size in _FULL_SIZES if size <= MOST_BYTES)
DEEP_MOST_BYTES = 64 * MIB  # a larger message is a stream by itself
GRPC_MOST_BYTES = 256 * MIB  # its copies of a larger one would need many times as much memory
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
_READ_FLOORS = {"shm": "memcpy", "tcp": "plain socket"}
_READ_ROUNDS = 3
_UCX_LEAST_READS = 10  # of two ucx_perftest calls something else typical
_GRPC_KINDS = {"row": "gRPC C++ unary", "row-each": "gRPC C++ stream"}
_UCX_TESTS = {"UCX put": "ucp_put_bw", "UCX tag": "tag_bw"}
# Columns of its row, of a test that measures rates: iterations, then a message's typical, average
# and overall time, then rates.
TYPICAL, OVERALL = 1, 3
_PATIENCE_S = 120.0
Turns = Iterator[tuple[str, rounds.Turn]]


def timed_of(depth: float, ways: str) -> str:
    """Return what a record of messages in a row says was timed."""
    return f"{depth:.0f} in flight, {ways}"


def timed_read(depth: float) -> str:
    """Return the same of reads."""
    return ALONE if depth == 1 else f"{depth:.0f} reads under way"


def is_stream(record: Record) -> bool:
    """Whether a record is of messages in a row."""
    return " in flight, " in str(record.get("timed"))


def is_read(record: Record) -> bool:
    """Whether a record is of one-sided reads."""
    return record.get("timed") in [timed_read(depth) for depth in DEPTHS]


def is_cold(record: Record) -> bool:
    """Whether a record is of a cold start."""
    return text(record, "timed").startswith(COLD)


def sizes_of(settings: Settings, free_bytes: int) -> tuple[list[int], list[Record]]:
    """Return the sizes in bytes that find room, and a record for each of the others."""
    wanted = settings.sizes or (_QUICK_SIZES if settings.is_quick else _FULL_SIZES)
    return _with_room(wanted, _COPIES, free_bytes, "messages of {} in a row")


def read_sizes(settings: Settings) -> tuple[int, ...]:
    """Return the sizes of reads in bytes."""
    if settings.sizes:
        return tuple(size for size in settings.sizes if size <= MOST_BYTES)
    return _QUICK_READS if settings.is_quick else _FULL_READS


def cold_sizes(settings: Settings, free_bytes: int) -> tuple[list[int], list[Record]]:
    """Return the sizes of memory of a cold start, the first of which has all steps.

    One in a quick run, and where --sizes chose those of messages, which are no memory to register.
    """
    wanted: tuple[int, ...] = (_COLD_QUICK_BYTES if settings.is_quick else _COLD_BYTES,)
    if not (settings.is_quick or settings.sizes):
        wanted += _COLD_OTHER_SIZES
    return _with_room(wanted, _COLD_COPIES, free_bytes, "cold start with {}")


def _with_room(
    wanted: Sequence[int], copies: int, free_bytes: int, what: str
) -> tuple[list[int], list[Record]]:
    found = [size for size in wanted if size * copies <= free_bytes * _SHARE_OF_FREE]
    free = size_text(free_bytes)
    return found, [
        _missing(
            what.format(size_text(size)),
            f"needs {size_text(size * copies)} of memory, {free} are free",
        )
        for size in wanted
        if size not in found
    ]


def _missing(peer: str, why: str) -> Record:
    return {"topic": "p2p", "peer": peer, "missing": why, "get": ""}


def without_room(sizes: Sequence[int]) -> list[Record]:
    """Return a record for each size that gRPC is not asked for."""
    why = f"no message of more than {size_text(GRPC_MOST_BYTES)} is sent by it here"
    return [
        _missing(f"gRPC C++, messages of {size_text(size)} in a row", why)
        for size in sizes
        if size > GRPC_MOST_BYTES
    ]


def depths_of(size: int) -> tuple[int, ...]:
    """Return how many messages of a size are in flight."""
    return DEPTHS if size <= DEEP_MOST_BYTES else DEPTHS[:1]


def counts_of(size: int, depth: int, *, is_quick: bool) -> tuple[int, int]:
    """Return the messages of a sample, at least as many as are in flight, and a turn's samples."""
    most, volume = (200, 32 * MIB) if is_quick else (2000, 256 * MIB)
    # of the largest a sample lasts seconds
    times = 2 if size > DEEP_MOST_BYTES else 3 if is_quick else 5
    return max(depth, min(most, volume // size)), times


def read_count(size: int, depth: int, *, is_quick: bool) -> int:
    """Return the reads of a round, at least as many as are under way."""
    most, volume = (200, 16 * MIB) if is_quick else (2000, 128 * MIB)
    return max(depth, min(most, volume // size))


def words_of(transport: str, size: int, depth: int, wait: str, count: int, times: int) -> list[str]:
    """Return the program's arguments."""
    return [
        *("--transport", transport, "--size", str(size), "--depth", str(depth)),
        *("--wait", wait, "--count", str(count), "--rounds", str(times)),
    ]


def turns(settings: Settings, transport: str, sizes: Sequence[int], *, has_floor: bool) -> Turns:
    """Return a turn for each size, depth, direction and way of waiting."""
    has_sleep = transport == "tcp" and not settings.is_quick
    for size in sizes:
        for depth in depths_of(size):
            count, times = counts_of(size, depth, is_quick=settings.is_quick)
            for both in ([], ["--both"]):
                for wait in samples.WAITS if has_sleep and size <= DEEP_MOST_BYTES else ("spin",):
                    words = words_of(transport, size, depth, wait, count, times)
                    turn = functools.partial(_turn, "streams", words + both, has_floor=has_floor)
                    yield f"{depth} in flight, {transport} {size_text(size)}", turn


def read_turns(settings: Settings, transport: str, *, has_floor: bool) -> Turns:
    """Return the same of reads."""
    has_sleep = transport == "tcp" and not settings.is_quick
    for size in read_sizes(settings):
        for depth in DEPTHS:
            count = read_count(size, depth, is_quick=settings.is_quick)
            for wait in samples.WAITS if has_sleep else ("spin",):
                words = words_of(transport, size, depth, wait, count, _READ_ROUNDS)
                turn = functools.partial(_turn, "reads", words, has_floor=has_floor)
                what = f"{timed_read(depth)}, {transport} {size_text(size)}, {samples.WAITS[wait]}"
                yield what, turn


def _turn(command: str, words: list[str], *, has_floor: bool) -> list[Record]:
    return [
        record_of(found, is_of_reads=command == "reads")
        for found in programs.run(command, *words)
        if has_floor or found["contestant"] == "ours"
    ]


def record_of(found: Record, *, is_of_reads: bool = False) -> Record:
    """Return the record of one turn from what the program printed."""
    transport, is_ours = text(found, "transport"), found["contestant"] == "ours"
    depth = number(found, "depth")
    ways = WAYS[found.get("both") is True]
    floor = _READ_FLOORS[transport] if is_of_reads else samples.floor_name(transport)
    fields = samples.p2p_fields(
        OURS if is_ours else floor,
        OURS if is_ours else "floor",
        transport,
        number(found, "size"),
        language="C",
        wait=samples.WAITS[text(found, "wait")],
        timed=timed_read(depth) if is_of_reads else timed_of(depth, ways),
    )
    more: Record = {"depth": int(depth), **({} if is_of_reads else {"ways": ways})}
    costs = {name: number(found, name) for name in samples.COSTS}
    return samples.turn({**fields, **more, **costs}, samples.raw_of(found), found)


def cold_turns(
    settings: Settings, transport: str, sizes: Sequence[int], *, has_floor: bool
) -> Turns:
    """Return a turn for each cold start; the first has the steps that know no size."""
    for size in sizes:
        times = 1 if settings.is_quick or size > _COLD_BYTES else 3
        words = ("--transport", transport, "--size", str(size), "--rounds", str(times))
        is_first = size == sizes[0]
        turn = functools.partial(_cold, words, transport, size, is_first, has_floor=has_floor)
        yield f"cold start, {transport} {size_text(size)}", turn


def _cold(
    words: Sequence[str], transport: str, size: int, is_first: bool, *, has_floor: bool
) -> list[Record]:
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


def grpc_turns(settings: Settings, address: str, sizes: Sequence[int]) -> Turns:
    """Return gRPC's turns: it has TCP only, so that each counts next to all of our paths."""
    for size in sizes:
        for depth in depths_of(size) if size <= GRPC_MOST_BYTES else ():
            for ways in WAYS:
                for kind, name in _GRPC_KINDS.items():
                    words = grpc_words(kind, address, size, depth, ways, is_quick=settings.is_quick)
                    turn = functools.partial(_grpc, words, name, settings.transports)
                    yield f"{name}, {timed_of(depth, ways)}, {size_text(size)}", turn


def grpc_words(
    kind: str, address: str, size: int, depth: int, ways: str, *, is_quick: bool
) -> list[str]:
    """Return the program's arguments."""
    count, times = counts_of(size, depth, is_quick=is_quick)
    both = "both" if ways == "both ways" else "one"
    return [kind, address, *map(str, (size, count, depth, times)), both]


def _grpc(words: list[str], name: str, transports: Sequence[str]) -> list[Record]:
    (found,) = programs.run_words([str(GRPC_PROGRAM), *words], timeout_s=_PATIENCE_S)
    return [grpc_record(found, name, transport) for transport in transports]


def grpc_record(found: Record, name: str, transport: str) -> Record:
    """Return the record of a turn next to one of our paths from what the program printed."""
    depth, ways = int(number(found, "depth")), WAYS[found["both"] is True]
    how = {"language": "C++", "wait": samples.WAITS["sleep"], "timed": timed_of(depth, ways)}
    fields = samples.p2p_fields(
        name, "grpc-cpp", transport, number(found, "size"), **how, over="tcp"
    )
    costs = {name: number(found, name) for name in samples.COSTS}
    raw_us = found["raw_us"]
    assert isinstance(raw_us, list)
    more: Record = {"depth": depth, "ways": ways, **costs}
    return samples.turn({**fields, **more}, [us * 1000 for us in raw_us])


def ucx_turns(settings: Settings, transport: str, path: str, sizes: Sequence[int]) -> Turns:
    """Return the turns of ucx_perftest, which has messages one way only; path: UCX_TLS."""
    for size in sizes:
        for depth in depths_of(size):
            for name, test in _UCX_TESTS.items():
                timed = timed_of(depth, WAYS[0])
                fields = _ucx_fields(name, transport, size, depth, timed, ways=WAYS[0])
                count, times = counts_of(size, depth, is_quick=settings.is_quick)
                words = ["-t", test, "-s", str(size), "-O", str(depth)]
                turn = functools.partial(
                    ucx_turn, words, fields, path, count * times, is_quick=settings.is_quick
                )
                yield f"{name}, {timed}, {size_text(size)}", turn


def ucx_read_turns(settings: Settings, transport: str, path: str) -> Turns:
    """Return the same of its get: of one at a time the typical of a run, else the mean of all."""
    for size in read_sizes(settings):
        for depth in DEPTHS:
            fields = _ucx_fields(UCX_GET, transport, size, depth, timed_read(depth))
            count = _READ_ROUNDS * read_count(size, depth, is_quick=settings.is_quick)
            turn = functools.partial(
                ucx_turn,
                ["-t", "ucp_get", "-s", str(size), "-O", str(depth)],
                fields,
                path,
                max(_UCX_LEAST_READS, count),
                TYPICAL if depth == 1 else OVERALL,
                is_quick=settings.is_quick,
            )
            yield f"{UCX_GET}, {timed_read(depth)}, {transport} {size_text(size)}", turn


def _ucx_fields(
    name: str, transport: str, size: int, depth: int, timed: str, **more: object
) -> Record:
    how = {"language": "C", "wait": samples.WAITS["spin"], "timed": timed}
    return {**samples.p2p_fields(name, "ucx", transport, size, **how), "depth": depth, **more}


def ucx_turn(
    words: list[str],
    fields: Record,
    path: str,
    count: int,
    column: int = OVERALL,
    *,
    is_quick: bool = False,
) -> list[Record]:
    """Return the record of a turn of so many messages; column: of its row, what a message takes.

    is_quick: without processor time, of whose messages most would be its start's.
    """

    def run(messages: int, warm: int) -> programs.Spent:
        many = [*words, "-n", str(messages), "-w", str(warm)]
        return programs.run_ucx_spent(many, path, programs.free_port(), _PATIENCE_S)

    warm = max(int(number(fields, "depth")), count // 10)
    one = None if is_quick else run(1, 0)
    all_of_them = run(count, warm)
    return [ucx_record(fields, one, all_of_them, count + warm, column)]


def ucx_record(
    fields: Record,
    one: programs.Spent | None,
    many: programs.Spent,
    count: int,
    column: int = OVERALL,
) -> Record:
    """Return the record of a turn; one: what a run of one message spent; count: of the other."""
    gb = number(fields, "size") * count / 1e9
    single_s = one.cpu_s if one is not None else many.cpu_s
    spent = [several - single for several, single in zip(many.cpu_s, single_s, strict=True)]
    is_told = all(own > single for own, single in zip(spent, single_s, strict=True))
    costs = zip(samples.COSTS, (own / gb for own in spent), strict=True) if is_told else ()
    took_us = programs.ucx_figures(many.output)[column]
    return samples.turn({**fields, **dict(costs)}, [took_us * 1000])
