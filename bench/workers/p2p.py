"""One of two processes that write to each other from Python: rdmatensor, or a rival.

Rank 0 prints lines of JSON: one way of 8 B write + notification (half of the median trip of a
ping-pong, a sample for each round), and 64 MiB write + notification into memory that the other side
has read since it was written last, until an answer of 8 B is back. NIXL runs without its progress
thread: with it, it is slower on two cores. Before anything is timed each side compares what arrived
with what the other sent.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

sys.path.append(str(Path(__file__).resolve().parents[2]))
from bench.workers import harness
from bench.workers.harness import PATIENCE_S, Folder
from bench.workers.p2p_rivals import (
    LARGE_BYTES,
    SMALL_BYTES,
    Grpc,
    Mooncake,
    Nixl,
    Side,
    Ways,
)


class Rdmatensor:
    """rdmatensor, through its public Python interface and with its defaults.

    "write" checks its arguments at each call; "prepared" was checked once (prepare_write()).
    """

    def __init__(self, folder: Folder) -> None:
        rdmatensor = importlib.import_module("rdmatensor")
        store = rdmatensor.FileStore(folder.path / "store")
        self._world = rdmatensor.join(store, folder.rank, 2)
        context = self._world.context
        endpoint = self._endpoint = self._world.endpoint(1 - folder.rank)
        endpoint.wait_ready(PATIENCE_S)
        self.landing: NDArray[np.uint8] = context.zeros(LARGE_BYTES, "uint8")
        remote = rdmatensor.RemoteRegion.decode(
            folder.swap("region", context.export(self.landing).encode())
        )
        large = self._large = np.ones(LARGE_BYTES, dtype=np.uint8)
        small = large[:SMALL_BYTES]
        prepared_small = endpoint.prepare_write(small, remote, notify=1)
        prepared_large = endpoint.prepare_write(large, remote, notify=1)
        self.ways: Ways = {
            "write": (
                lambda: endpoint.write(small, remote, notify=1).wait(),
                lambda: endpoint.write(large, remote, notify=1).wait(),
            ),
            "prepared": (
                lambda: prepared_small.post().wait(),
                lambda: prepared_large.post().wait(),
            ),
        }
        self.path = str(endpoint.transport)

    def wait(self) -> None:
        self._endpoint.wait_notify(PATIENCE_S)

    def close(self) -> None:
        self._world.close()


def verify(folder: Folder, side: Side, way: str) -> None:
    """A pass of its own: what each side finds is what the other wrote, by its content."""
    for length, write in zip((SMALL_BYTES, LARGE_BYTES), side.ways[way], strict=True):
        side.landing.fill(0)
        folder.swap(f"clean {way} {length}", b"")
        write()
        side.wait()
        if not bool((side.landing[:length] == 1).all()) or bool(side.landing[length:].any()):
            raise RuntimeError(f"{way}: what arrived is not what was sent")
        folder.swap(f"seen {way} {length}", b"")


def take_turns(arguments: argparse.Namespace, side: Side, way: str) -> None:
    """Both ranks; rank 0 measures and prints."""
    rank: int = arguments.rank
    if isinstance(side, Grpc):
        if rank == 0:
            call(arguments, side, way)
        else:
            side.serve()
        return
    small, large = side.ways[way]
    trips: int = arguments.trips
    latency_ns, large_ns = [], []
    for _ in range(arguments.rounds + 1):
        trips_ns = [one_trip(side, rank, small) for _ in range(trips)]
        latency_ns.append(sorted(trips_ns)[trips // 2] // 2)
        large_ns += [large_turn(side, rank, small, large) for _ in range(arguments.larges)]
    if rank == 0:  # without the first round
        report(arguments.peer, side, way, SMALL_BYTES, latency_ns[1:])
        report(arguments.peer, side, way, LARGE_BYTES, large_ns[arguments.larges :])


def call(arguments: argparse.Namespace, side: Grpc, way: str) -> None:
    """Rank 0 of a rival whose call is a round trip; the first round does not count."""
    small_ns, large_ns = [], []
    for _ in range(arguments.rounds + 1):
        trips_ns = sorted(side.trip(way, is_large=False) for _ in range(arguments.trips))
        small_ns.append(trips_ns[arguments.trips // 2] // 2)
        large_ns += [side.trip(way, is_large=True) for _ in range(arguments.larges)]
    side.end()
    report(arguments.peer, side, way, SMALL_BYTES, small_ns[1:])
    report(arguments.peer, side, way, LARGE_BYTES, large_ns[arguments.larges :])


def one_trip(side: Side, rank: int, small: Callable[[], object]) -> int:
    """There and back; timed alone, so that a median ignores moments that others had."""
    started_ns = time.perf_counter_ns()
    if rank == 0:
        small()
        side.wait()
    else:
        side.wait()
        small()
    return time.perf_counter_ns() - started_ns


def large_turn(
    side: Side, rank: int, small: Callable[[], object], large: Callable[[], object]
) -> int:
    """Rank 0 writes and gets an answer; then rank 1 reads, and says so."""
    started_ns = time.perf_counter_ns()
    if rank == 0:
        large()
        side.wait()
        took_ns = time.perf_counter_ns() - started_ns
        side.wait()
        return took_ns
    side.wait()
    small()
    side.landing.view(np.uint64).sum()
    small()
    return 0


def report(peer: str, side: Side, way: str, size: int, samples_ns: list[int]) -> None:
    """Print one record."""
    record: dict[str, object] = {
        "name": peer,
        "way": way,
        "path": side.path,
        "size": size,
        "raw_ns": samples_ns,
    }
    harness.emit(record)


PEERS: dict[str, Callable[[Folder], Side]] = {
    "rdmatensor": Rdmatensor,
    "nixl": partial(Nixl, is_default=True),
    "nixl tuned": partial(Nixl, is_default=False),
    "mooncake": Mooncake,
    "grpc": Grpc,
}


def main() -> None:
    parser = harness.parser_of(__doc__)
    parser.add_argument("--peer", choices=PEERS, required=True)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--trips", type=int, default=500)
    parser.add_argument("--larges", type=int, default=3)
    arguments = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    folder = Folder(arguments.folder, arguments.rank)
    side = PEERS[arguments.peer](folder)
    os.sched_setaffinity(0, {cores[arguments.rank % len(cores)]})  # this thread only
    for way in side.ways:
        verify(folder, side, way)
    for way in side.ways:
        take_turns(arguments, side, way)
    folder.swap("done", b"")
    side.close()
    sys.stdout.flush()
    if isinstance(side, Nixl | Mooncake):
        os._exit(0)


if __name__ == "__main__":
    main()
