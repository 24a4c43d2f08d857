"""One transfer between two processes of this machine: rdtperf, gRPC, UCX, NIXL.

All but reads, the cold start and what says so is half a round trip of write and notification, so
that it compares with a round trip of gRPC and ucx_perftest's halved one. Nothing reads what arrives
but gRPC, whose receiver copies it, and the tensors, whose receivers read them. Of gRPC in a row a
sample is the time for each message of one direction, with an answer to each. ucx_perftest prints
one figure a run, and its processor time includes its start: that of a run of one message is
subtracted, and where it is more than half of all, none is given. From Python: 8 B by half a round
trip, and 64 MiB until the answer to it is here. All but ucx_perftest compare what arrives in a pass
of their own, before anything is timed.
"""

from __future__ import annotations

import functools
import os
import select
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from bench.benchlib import children, machine, programs
from bench.benchlib.pairs import run_ranks
from bench.benchlib.record import Record, number, text
from bench.benchlib.units import size_text
from bench.suite import peers as peers_of
from bench.suite import rounds, samples, transfers, verbs
from bench.suite.peers import COPIES, GRPC_PROGRAM, RDMATENSOR, Peer
from bench.suite.settings import KIB, MIB, MOST_BYTES, VERBS, Settings

ANSWERED = "until it is answered"
_READ_FROM_BYTES = 64 * KIB  # sizes whose state in the caches matters
_PATIENCE_S = 120.0
_SMALL_BYTES = 8  # of the workers in Python
GRPC_MOST_BYTES = 256 * MIB  # its copies of a larger one would need many times as much memory
UCX_PATHS = {"shm": "sm,self", "tcp": "tcp,self"}
_UCX_LEAST_TRIPS = 10  # of two round trips ucx_perftest 1.13 calls half of one typical
# Columns of ucx_perftest's row: what is typical of a message, and the mean of all.
_TYPICAL, _OVERALL = 1, 3
Turns = Iterator[tuple[str, rounds.Turn]]


def measure(settings: Settings, peers: list[Peer], progress: rounds.Progress) -> list[Record]:
    """Let all have their turns; return a record for each peer, path and size."""
    present = {peer.name for peer in peers}
    free_bytes = machine.available_bytes()
    sizes, without = transfers.row_sizes(settings, free_bytes)
    cold, no_room = transfers.cold_sizes(settings, free_bytes)
    without += no_room
    is_verbs = VERBS in settings.transports
    with ExitStack() as stack:
        address = None
        if "grpc-cpp" in present:
            try:
                address = stack.enter_context(_grpc_server())
            except (RuntimeError, OSError) as error:  # the others go on
                without.append(progress.failure("gRPC C++", error))
        if address is not None:
            why = f"gRPC C++ sends no message of more than {size_text(GRPC_MOST_BYTES)} here"
            large = [size for size in sizes if size > GRPC_MOST_BYTES]
            without += [
                transfers.missing(f"gRPC C++, {size_text(size)} in a row", why) for size in large
            ]
        turns: list[tuple[str, rounds.Turn]] = []
        wanted = {*settings.sizes_of("p2p"), *transfers.read_sizes(settings), *sizes}
        for size in sorted(settings.sizes_of("p2p") if is_verbs else wanted):
            turns += _turns_of(size, settings, address, present, sizes)
        has_floor = transfers.FLOOR in present
        for transport in settings.transports if not is_verbs else ():
            turns += transfers.cold_turns(settings, transport, cold, has_floor=has_floor)
        turns += _python_turns(settings, present) if not is_verbs else ()
        found, failed = rounds.take(
            turns,
            settings.rounds_of(),
            settings.seconds_of("p2p"),
            progress,
            is_strict=settings.is_quick,
        )
    return samples.merge(found) + failed + without


def _turns_of(
    size: int, settings: Settings, address: str | None, present: set[str], in_a_row: Sequence[int]
) -> Turns:
    """All that moves one size, what is compared side by side: the machine changes in minutes."""
    alone = replace(settings, sizes=(size,))
    if VERBS in settings.transports:
        yield from verbs.turns(settings, size, present)
        yield from _grpc_turns(alone, address, size) if address is not None else ()
        return
    if size in settings.sizes_of("p2p"):
        for transport in settings.transports:
            yield from _latency_turns(alone, transport, size, present)
            yield from _ucx_turns(alone, transport, size, present)
        yield from _grpc_turns(alone, address, size) if address is not None else ()
        if 4 * KIB <= size <= MOST_BYTES:
            for path in settings.transports:
                turn = functools.partial(
                    transfers.tensors, settings, path, size, has_copies=COPIES in present
                )
                yield f"tensors, {path} {size_text(size)}", turn
    if size in in_a_row:
        for transport in settings.transports:
            yield from _row_turns(alone, transport, size, present)
        yield from _grpc_row_turns(settings, address, size) if address is not None else ()
    if size in transfers.read_sizes(settings):
        for transport in settings.transports:
            yield from _read_turns(alone, transport, size, present)


# ---- rdtperf and UCX ----------------------------------------------------------------------------


def _latency_turns(settings: Settings, transport: str, size: int, present: set[str]) -> Turns:
    has_floor = transfers.FLOOR in present
    name = f"rdmatensor and floor, {transport} {size_text(size)}"
    if transport == "shm" and size >= _READ_FROM_BYTES:
        known = functools.partial(
            transfers.shm_write, size, has_floor=has_floor, is_quick=settings.is_quick
        )
        yield f"{name}, {transfers.KNOWN}", known
    trips = transfers.trips_of(size, is_quick=settings.is_quick)
    for wait in transfers.waits_of(settings, transport):
        words = transfers.words_of(transport, size, trips, 3, "--wait", wait)
        yield f"{name}, {wait}", functools.partial(transfers.latency, words, has_floor=has_floor)


def _row_turns(settings: Settings, transport: str, size: int, present: set[str]) -> Turns:
    waits = (
        transfers.waits_of(settings, transport) if size <= transfers.DEEP_MOST_BYTES else ("spin",)
    )
    for depth in transfers.depths_of(size):
        count, times = transfers.counts_of(size, depth, is_quick=settings.is_quick)
        what = f"{depth} in flight, {transport} {size_text(size)}"
        for ways in transfers.WAYS:
            for wait in waits:
                more = ["--depth", str(depth), "--wait", wait]
                more += ["--both"] if ways == transfers.WAYS[1] else []
                words = transfers.words_of(transport, size, count, times, *more)
                yield (
                    f"{what}, {ways}, {wait}",
                    functools.partial(
                        transfers.row, "streams", words, has_floor=transfers.FLOOR in present
                    ),
                )
        for name, test in {"UCX put": "ucp_put_bw", "UCX tag": "tag_bw"}.items():
            if "ucx" in present:
                timed = transfers.timed_of(depth, transfers.WAYS[0])
                fields = _ucx_fields(
                    name, transport, size, timed, depth=depth, ways=transfers.WAYS[0]
                )
                words = ("-t", test, "-s", str(size), "-O", str(depth))
                yield (
                    f"{name}, {what}",
                    functools.partial(
                        ucx_turn, words, fields, count * times, is_quick=settings.is_quick
                    ),
                )


def _read_turns(settings: Settings, transport: str, size: int, present: set[str]) -> Turns:
    for depth in transfers.DEPTHS:
        most, volume = (200, 16 * MIB) if settings.is_quick else (2000, 128 * MIB)
        count = max(depth, min(most, volume // size))
        what = f"{transfers.timed_read(depth)}, {transport} {size_text(size)}"
        for wait in transfers.waits_of(settings, transport):
            words = transfers.words_of(
                transport, size, count, 3, "--depth", str(depth), "--wait", wait
            )
            turn = functools.partial(
                transfers.row, "reads", words, has_floor=transfers.FLOOR in present
            )
            yield f"{what}, {wait}", turn
        if "ucx" in present:
            fields = _ucx_fields(
                "UCX get", transport, size, transfers.timed_read(depth), depth=depth
            )
            yield (
                f"UCX get, {what}",
                functools.partial(
                    ucx_turn,
                    ("-t", "ucp_get", "-s", str(size), "-O", str(depth)),
                    fields,
                    max(_UCX_LEAST_TRIPS, 3 * count),
                    _TYPICAL if depth == 1 else _OVERALL,
                    is_quick=settings.is_quick,
                ),
            )


# ---- gRPC C++ -----------------------------------------------------------------------------------


@contextmanager
def _grpc_server(program: Path = GRPC_PROGRAM, patience_s: float = _PATIENCE_S) -> Iterator[str]:
    """Serve on a port of loopback that was free; yields ADDRESS:PORT. Raises RuntimeError."""
    address = f"127.0.0.1:{programs.free_port()}"
    server = subprocess.Popen(
        [str(program), "serve", address],
        stdout=subprocess.PIPE,
        preexec_fn=children.tied(),  # noqa: PLW1509  one system call
    )
    try:
        assert server.stdout is not None
        has_word, _, _ = select.select([server.stdout], [], [], patience_s)
        if not has_word or os.read(server.stdout.fileno(), 64).strip() != b"ready":
            raise RuntimeError("gRPC's server did not start")
        yield address
    finally:
        server.kill()
        server.wait()
        if server.stdout is not None:
            server.stdout.close()


def _grpc_turns(settings: Settings, address: str, size: int) -> Turns:
    """It has TCP only, so one turn counts with each of rdmatensor's paths."""
    trips = transfers.trips_of(size, is_quick=settings.is_quick)
    for kind, name in (("echo", "gRPC C++ unary"), ("echo-all", "gRPC C++ stream")):
        words = [kind, address, str(size), str(trips)]
        turn = functools.partial(_grpc, words, name, settings.transports)
        yield f"{name}, {size_text(size)}", turn


def _grpc_row_turns(settings: Settings, address: str, size: int) -> Turns:
    for depth in transfers.depths_of(size) if size <= GRPC_MOST_BYTES else ():
        count, times = transfers.counts_of(size, depth, is_quick=settings.is_quick)
        for ways in transfers.WAYS:
            words = ["row", address, *map(str, (size, count, depth, times))]
            words.append("both" if ways == transfers.WAYS[1] else "one")
            turn = functools.partial(_grpc, words, "gRPC C++ stream", settings.transports)
            yield f"gRPC C++ stream, {transfers.timed_of(depth, ways)}, {size_text(size)}", turn


def _grpc(
    words: list[str], name: str, transports: Sequence[str], program: Path = GRPC_PROGRAM
) -> list[Record]:
    printed = programs.run_words([str(program), *words], timeout_s=_PATIENCE_S)
    raw_us = printed[0].get("raw_us") if len(printed) == 1 else None
    if not isinstance(raw_us, list):
        raise RuntimeError(f"{program} is of another version: bash bench/peers/grpc/setup.sh")
    return [grpc_record(printed[0], name, transport) for transport in transports]


def grpc_record(found: Record, name: str, transport: str) -> Record:
    """Return the record of a turn next to one path from what the program printed."""
    raw_us = found["raw_us"]
    assert isinstance(raw_us, list)
    is_row = "depth" in found
    depth, ways = (
        (number(found, "depth"), transfers.WAYS[found["both"] is True]) if is_row else (1, "")
    )
    fields = samples.p2p_fields(
        name,
        "grpc-cpp",
        transport,
        number(found, "size"),
        language="C++",
        wait=samples.WAITS["sleep"],
        timed=transfers.timed_of(depth, ways) if is_row else samples.HALF,
        over="tcp",
    )
    if not is_row:
        return samples.turn(fields, [us * 1000 / 2 for us in raw_us])
    more: Record = {"depth": int(depth), "ways": ways}
    costs = {one: number(found, one) for one in samples.COSTS}
    return samples.turn({**fields, **more, **costs}, [us * 1000 for us in raw_us])


# ---- UCX ----------------------------------------------------------------------------------------


def _ucx_fields(name: str, transport: str, size: int, timed: str, **more: object) -> Record:
    how = {"language": "C", "wait": samples.WAITS["spin"], "timed": timed}
    return {**samples.p2p_fields(name, "ucx", transport, size, **how), **more}


def _ucx_turns(settings: Settings, transport: str, size: int, present: set[str]) -> Turns:
    trips = max(_UCX_LEAST_TRIPS, transfers.trips_of(size, is_quick=settings.is_quick))
    for name, test in {"UCX put": "ucp_put_lat", "UCX tag": "tag_lat"}.items():
        if "ucx" in present:
            fields = _ucx_fields(name, transport, size, samples.HALF)
            words = ("-t", test, "-s", str(size))
            turn = functools.partial(ucx_turn, words, fields, trips, _TYPICAL, is_quick=True)
            yield f"{name}, {transport} {size_text(size)}", turn


def ucx_turn(
    words: Sequence[str],
    fields: Record,
    count: int,
    column: int = _OVERALL,
    *,
    is_quick: bool = False,
) -> list[Record]:
    """Return the record of a turn of so many messages; is_quick: without processor time."""
    path = UCX_PATHS[text(fields, "transport")]

    def run(messages: int, warm: int) -> programs.Spent:
        many = [*words, "-n", str(messages), "-w", str(warm)]
        return programs.run_ucx(many, path, programs.free_port(), _PATIENCE_S)

    one = None if is_quick else run(1, 0)
    warm = max(int(number(fields, "depth")), transfers.warm_up_of(count))
    return [ucx_record(fields, one, run(count, warm), count + warm, column)]


def ucx_record(
    fields: Record,
    one: programs.Spent | None,
    many: programs.Spent,
    count: int,
    column: int = _OVERALL,
) -> Record:
    """Return the record of a turn; one: what a run of one message spent; count: of the other."""
    gb = number(fields, "size") * count / 1e9
    single_s = one.cpu_s if one is not None else many.cpu_s
    spent = [several - single for several, single in zip(many.cpu_s, single_s, strict=True)]
    is_known = all(own > single for own, single in zip(spent, single_s, strict=True))
    costs = zip(samples.COSTS, (own / gb for own in spent), strict=True) if is_known else ()
    took_us = programs.ucx_figures(many.output)[column]
    return samples.turn({**fields, **dict(costs)}, [took_us * 1000])


# ---- Python -------------------------------------------------------------------------------------

# Worker's name -> peer, and the name in tables of each way of writing that counts.
_PYTHON = {
    RDMATENSOR: (
        RDMATENSOR,
        {"write": f"{RDMATENSOR}, Python", "prepared": f"{RDMATENSOR}, Python, one handle"},
    ),
    "nixl": ("nixl", {"prepared": "NIXL, one handle"}),
    "nixl tuned": ("nixl", {"write": "NIXL tuned", "prepared": "NIXL tuned, one handle"}),
}


def _python_turns(settings: Settings, present: set[str]) -> Turns:
    counts = (3, 60, 2) if settings.is_quick else (10, 300, 3)
    words = dict(zip(("rounds", "trips", "larges"), counts, strict=True))
    for worker, (peer, ways) in _PYTHON.items():
        if peer != RDMATENSOR and peer not in present:
            continue
        for transport in settings.transports:
            turn = functools.partial(_python, worker, transport, words)
            yield f"{', '.join(ways.values())}, {transport}", turn


def name_of(worker: str, way: str, transport: str, size: float) -> str:
    """Return a worker's name in tables.

    NIXL on one host, with its error handling between peers, has shared memory for large messages
    only, whatever is asked for: what goes over TCP then says so.
    """
    name = _PYTHON[worker][1][way]
    is_tcp = (worker, transport, size) == ("nixl", "shm", _SMALL_BYTES)
    return f"{name}, over TCP" if is_tcp else name


def _python(worker: str, transport: str, words: dict[str, int]) -> list[Record]:
    """A turn: two fresh processes."""
    peer, ways = _PYTHON[worker]
    python, environment = None, {"RDMATENSOR_TRANSPORT": transport}
    if peer == "nixl":
        python, _ = peers_of.find_nixl()
        environment = peers_of.nixl_environment(worker, transport)
    options = {"peer": worker, **words}
    printed = run_ranks("p2p", 2, options, python=python, environment=environment)
    return [
        samples.turn(
            samples.p2p_fields(
                name_of(worker, text(record, "way"), transport, number(record, "size")),
                peer,
                transport,
                number(record, "size"),
                language="Python",
                wait=samples.WAITS["spin"],
                timed=samples.HALF if number(record, "size") == _SMALL_BYTES else ANSWERED,
            ),
            samples.raw_of(record),
        )
        for record in printed
        if record["way"] in ways
    ]
