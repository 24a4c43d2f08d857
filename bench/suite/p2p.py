"""Point to point: one transfer at a time between two processes of this machine, size by size.

Compiled programs have half a round trip of the same bytes, over TCP beside a plain socket, over
shared memory beside a memcpy and a flag; there nobody reads what arrives but gRPC, whose receiver
has to copy it. What a reader costs a writer is in a second figure of larger writes over shared
memory: the time until the other process knows, which has read the last ones, beside the best of
several copies (`shm_write`). What a tensor gains by what is in tensors.py,
messages in a row and one-sided reads in streams.py. From Python, and apart
from the others: 8 B by half a round trip, and 64 MiB until the answer to it is here. All but
ucx_perftest compare what arrives in a pass of their own, before anything is timed.
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
from bench.benchlib.pairs import run_pair
from bench.benchlib.record import Record, number, text
from bench.benchlib.units import size_text
from bench.suite import peers as peers_of
from bench.suite import rounds, samples, streams, tensors, verbs
from bench.suite.peers import COPIES, GRPC_PROGRAM, OURS, Peer
from bench.suite.settings import KIB, MIB, VERBS, Settings

KNOWN = "until the peer knows"
ANSWERED = "until it is answered"
_READ_FROM_BYTES = 64 * KIB  # sizes whose state in the caches matters
_PATIENCE_S = 60.0
_SMALL_BYTES = 8  # of the workers in Python


def measure(settings: Settings, peers: list[Peer], progress: rounds.Progress) -> list[Record]:
    """Let all have their turns; return a record for each contestant, path and size."""
    present = {peer.name for peer in peers}
    free_bytes = machine.available_bytes()
    sizes, without = streams.sizes_of(settings, free_bytes)
    cold, no_room = streams.cold_sizes(settings, free_bytes)
    without += no_room
    with ExitStack() as stack:
        address = None
        if "grpc-cpp" in present:
            try:
                address = stack.enter_context(_grpc_server())
            except (RuntimeError, OSError) as error:  # the others go on
                without.append(progress.failure("gRPC C++", error))
        if address is not None:
            without += streams.without_room(sizes)
        has_floor = "floor" in present
        turns: list[tuple[str, rounds.Turn]] = []
        wanted = {*settings.sizes_of("p2p"), *streams.read_sizes(settings), *sizes}
        for size in sorted(settings.sizes_of("p2p") if VERBS in settings.transports else wanted):
            turns += _turns_of(size, settings, address, present, sizes)
        for transport in settings.transports if VERBS not in settings.transports else ():
            turns += streams.cold_turns(settings, transport, cold, has_floor=has_floor)
        if VERBS not in settings.transports or "grpc-python" in (settings.peers or ()):
            turns += _python_turns(settings, present)
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
) -> Iterator[tuple[str, rounds.Turn]]:
    """All that moves one size, what is compared side by side: the machine changes in minutes."""
    alone = replace(settings, sizes=(size,))
    if VERBS in settings.transports:
        yield from verbs.turns(settings, size, present)
        yield from _grpc_turns(alone, address) if address is not None else ()
        return
    if size in settings.sizes_of("p2p"):
        for transport in settings.transports:
            yield from _c_turns(alone, transport, present)
            yield from _ucx_turns(alone, transport, present)
        yield from _grpc_turns(alone, address) if address is not None else ()
        for transport in settings.transports:
            yield from tensors.turns(alone, transport, has_copies=COPIES in present)
    if size in in_a_row:
        for transport in settings.transports:
            yield from _row_turns(alone, transport, present)
        yield from streams.grpc_turns(settings, address, [size]) if address is not None else ()
    if size in streams.read_sizes(settings):
        for transport in settings.transports:
            yield from _read_turns(alone, transport, present)


def _row_turns(
    settings: Settings, transport: str, present: set[str]
) -> Iterator[tuple[str, rounds.Turn]]:
    path = UCX_PATHS[transport]
    yield from streams.turns(settings, transport, settings.sizes, has_floor="floor" in present)
    yield from (
        streams.ucx_turns(settings, transport, path, settings.sizes) if "ucx" in present else ()
    )


def _read_turns(
    settings: Settings, transport: str, present: set[str]
) -> Iterator[tuple[str, rounds.Turn]]:
    path = UCX_PATHS[transport]
    yield from streams.read_turns(settings, transport, has_floor="floor" in present)
    yield from streams.ucx_read_turns(settings, transport, path) if "ucx" in present else ()


def _c_turns(
    settings: Settings, transport: str, present: set[str]
) -> Iterator[tuple[str, rounds.Turn]]:
    has_floor = "floor" in present
    for size in settings.sizes_of("p2p"):
        name = f"rdmatensor and floor, {transport} {size_text(size)}"
        if transport == "shm" and size >= _READ_FROM_BYTES:
            known = functools.partial(_shm_write, settings, size, has_floor=has_floor)
            yield f"{name}, {KNOWN}", known
        for wait in _waits(settings, transport):
            latency = functools.partial(
                _latency, settings, transport, size, wait, has_floor=has_floor
            )
            yield f"{name}, {samples.WAITS[wait]}", latency


def _waits(settings: Settings, transport: str) -> tuple[str, ...]:
    """Sleeping has a floor on tcp only; the quick suite has no time for both."""
    return ("spin", "sleep") if transport == "tcp" and not settings.is_quick else ("spin",)


def trips_of(size: int, *, is_quick: bool) -> int:
    """Round trips of one turn: fewer of larger messages."""
    least, most = (4, 400) if is_quick else (10, 2000)
    return max(least, min(most, (8 if is_quick else 64) * MIB // max(size, 1)))


def warm_up_of(trips: int) -> int:
    """Untimed round trips before timed ones: as many as our programs and gRPC have."""
    return max(5, trips // 5)


def _latency(
    settings: Settings, transport: str, size: int, wait: str, *, has_floor: bool
) -> list[Record]:
    trips = trips_of(size, is_quick=settings.is_quick)
    words = ("--transport", transport, "--wait", wait, "--size", str(size))
    found = programs.run("latency", *words, "--rounds", "3", "--count", str(trips))
    names = {"ours": (OURS, OURS), "floor": (samples.floor_name(transport), "floor")}
    return [
        samples.turn(
            {
                **samples.p2p_fields(
                    *names[text(record, "contestant")],
                    transport,
                    size,
                    language="C",
                    wait=samples.WAITS[wait],
                    timed=samples.HALF,
                ),
                **{name: number(record, name) for name in samples.SLEPT},
            },
            samples.raw_of(record),
            record,
        )
        for record in found
        if has_floor or record["contestant"] == "ours"
    ]


def _shm_write(settings: Settings, size: int, *, has_floor: bool) -> list[Record]:
    seconds = 0.25 if settings.is_quick else 1.0
    found = programs.run("shm_write", "--size", str(size), "--seconds", str(seconds))
    seen = [record for record in found if record.get("timed") == "seen"]
    return [
        samples.turn(
            samples.p2p_fields(
                OURS if name == "ours" else f"copy: {name}",
                OURS if name == "ours" else "floor",
                "shm",
                size,
                language="C",
                wait=samples.WAITS["spin"],
                timed=KNOWN,
            ),
            samples.raw_of(record),
            record,
        )
        for record in seen
        for name in [text(record, "contestant")]
        if has_floor or name == "ours"
    ]


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


def _grpc_turns(settings: Settings, address: str) -> Iterator[tuple[str, rounds.Turn]]:
    """It has TCP only, so one turn counts beside each of our paths."""
    for size in settings.sizes_of("p2p"):
        for kind, name in (("echo", "gRPC C++ unary"), ("echo-all", "gRPC C++ stream")):
            trips = trips_of(size, is_quick=settings.is_quick)
            words = [str(GRPC_PROGRAM), kind, address, str(size), str(trips)]
            turn = functools.partial(_grpc, words, name, size, settings.transports)
            yield f"{name}, {size_text(size)}", turn


def _grpc(words: list[str], name: str, size: int, transports: Sequence[str]) -> list[Record]:
    printed = programs.run_words(words, timeout_s=_PATIENCE_S)
    raw_us = printed[0].get("raw_us") if len(printed) == 1 else None
    if not isinstance(raw_us, list):
        raise RuntimeError(f"{words[0]} is of another version: bash bench/rivals/grpc/setup.sh")
    how = {"language": "C++", "wait": samples.WAITS["sleep"], "timed": samples.HALF, "over": "tcp"}
    return [
        samples.turn(
            samples.p2p_fields(name, "grpc-cpp", transport, size, **how),
            [us * 1000 / 2 for us in raw_us],
        )
        for transport in transports
    ]


# Of two round trips ucx_perftest 1.13 calls half of one typical: 7 ms where both took 13.
_UCX_LEAST_TRIPS = 10
_UCX_TESTS = {"UCX put": "ucp_put_lat", "UCX tag": "tag_lat"}
UCX_PATHS = {"shm": "sm,self", "tcp": "tcp,self"}


def _ucx_turns(
    settings: Settings, transport: str, present: set[str]
) -> Iterator[tuple[str, rounds.Turn]]:
    if "ucx" not in present:
        return
    for size in settings.sizes_of("p2p"):
        trips = max(_UCX_LEAST_TRIPS, trips_of(size, is_quick=settings.is_quick))
        for name, test in _UCX_TESTS.items():
            fields = samples.p2p_fields(
                name,
                "ucx",
                transport,
                size,
                language="C",
                wait=samples.WAITS["spin"],
                timed=samples.HALF,
            )
            words = ["-t", test, "-s", str(size), "-n", str(trips), "-w", str(warm_up_of(trips))]
            turn = functools.partial(_ucx, words, fields, UCX_PATHS[transport])
            yield f"{name}, {transport} {size_text(size)}", turn


def _ucx(words: list[str], fields: Record, path: str) -> list[Record]:
    """One sample: ucx_perftest prints no others. Its line of CSV begins with what is typical."""
    output = programs.run_ucx(words, path, programs.free_port(), _PATIENCE_S)
    typical_us = programs.ucx_figures(output)[1]
    return [samples.turn(fields, [typical_us * 1000])]


# Worker's name of it -> peer, and the contestant of each way of writing that counts.
_PYTHON = {
    "ours": (OURS, {"write": f"{OURS}, Python", "prepared": f"{OURS}, Python, one handle"}),
    "grpc": ("grpc-python", {"write": "gRPC Python unary", "stream": "gRPC Python stream"}),
    "nixl": ("nixl", {"prepared": "NIXL, one handle"}),
    "nixl tuned": ("nixl", {"write": "NIXL tuned", "prepared": "NIXL tuned, one handle"}),
    "mooncake": ("mooncake", {"write": "Mooncake, over TCP"}),
}


def _python_words(settings: Settings) -> list[str]:
    counts = ("3", "60", "2") if settings.is_quick else ("10", "300", "3")
    names = ("--rounds", "--trips", "--larges")
    return [word for pair in zip(names, counts, strict=True) for word in pair]


def _python_turns(settings: Settings, present: set[str]) -> Iterator[tuple[str, rounds.Turn]]:
    words = _python_words(settings)
    for transport in settings.transports:
        for worker in ("ours", "nixl", "nixl tuned"):
            peer, ways = _PYTHON[worker]
            if peer == OURS or peer in present:
                turn = functools.partial(_python, worker, [transport], words)
                yield f"{', '.join(ways.values())}, {transport}", turn
    for worker, name in (("grpc", "gRPC Python"), ("mooncake", "Mooncake")):  # over TCP alone
        if _PYTHON[worker][0] in present:
            yield name, functools.partial(_python, worker, settings.transports, words)


def contestant_of(worker: str, way: str, transport: str, size: float) -> str:
    """Return a worker's name in tables.

    NIXL on one host, with its error handling between peers, has shared memory for large messages
    only, whatever is asked for: what goes over TCP then says so.
    """
    name = _PYTHON[worker][1][way]
    return (
        f"{name}, over TCP" if (worker, transport, size) == ("nixl", "shm", _SMALL_BYTES) else name
    )


def _python(worker: str, transports: Sequence[str], words: list[str]) -> list[Record]:
    """A turn: two fresh processes, over the first of the paths beside which it counts."""
    peer, ways = _PYTHON[worker]
    python, environment = None, {"RDMATENSOR_TRANSPORT": transports[0]}
    if peer == "nixl":
        python, _ = peers_of.NIXL.find()
        environment = peers_of.nixl_environment(worker, transports[0])
    elif worker == "mooncake":
        python, _ = peers_of.MOONCAKE.find()
    printed = run_pair(
        "p2p", "--contestant", worker, *words, python=python, environment=environment
    )
    wait = samples.WAITS["sleep" if worker == "grpc" else "spin"]
    return [
        samples.turn(
            samples.p2p_fields(
                contestant_of(worker, text(record, "way"), transport, number(record, "size")),
                peer,
                transport,
                number(record, "size"),
                language="Python",
                wait=wait,
                timed=samples.HALF if number(record, "size") == _SMALL_BYTES else ANSWERED,
            ),
            samples.raw_of(record),
        )
        for transport in transports
        for record in printed
        if record["way"] in ways
    ]
