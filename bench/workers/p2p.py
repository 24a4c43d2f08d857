"""One of two processes that write to each other from Python: rdmatensor, or NIXL.

Rank 0 prints lines of JSON: one way of 8 B write + notification (half of the median trip of a
ping-pong, a sample for each round), and 64 MiB write + notification into memory that the other side
has read since it was written last, until an answer of 8 B is back. NIXL runs without its progress
thread: with it, it is slower on two cores. Before anything is timed each side compares what arrived
with what the other sent.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from bench.workers import harness
from bench.workers.harness import PATIENCE_S, Folder

LARGE_BYTES = 64 << 20
SMALL_BYTES = 8
OPTIONS = {"peer": "rdmatensor", "rounds": 20, "trips": 500, "larges": 3}
# Way of writing -> (write 8 B + notify, write 64 MiB + notify), each until it is done.
Ways = dict[str, tuple[Callable[[], object], Callable[[], object]]]


class Side(Protocol):
    """This process's end: what it writes goes to the other's end."""

    ways: Ways
    landing: NDArray[np.uint8]
    path: str

    def wait(self) -> None:
        """Wait for one notification of the other side."""

    def close(self) -> None:
        """Both sides are done."""


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


class Nixl:
    """NIXL over UCX; UCX_TLS in the environment may choose the path.

    "write" makes a transfer handle for each write, from descriptor lists that were made once;
    "prepared" posts one handle again and again.

    is_default: with error handling between peers, by default. Without it UCX has shared memory for
        small messages too, and no process learns of a peer's death.
    """

    def __init__(self, folder: Folder, *, is_default: bool) -> None:
        nixl = importlib.import_module("nixl_cu12")
        config = nixl.nixl_agent_config(enable_prog_thread=False, backends=[])
        agent = self._agent = nixl.nixl_agent(f"rank{folder.rank}", config)
        agent.create_backend("UCX", {} if is_default else {"ucx_error_handling_mode": "none"})
        self.landing: NDArray[np.uint8] = np.zeros(LARGE_BYTES, dtype=np.uint8)
        large = self._large = np.ones(LARGE_BYTES, dtype=np.uint8)
        where = (self.landing.ctypes.data, LARGE_BYTES, 0, "")
        agent.register_memory([where, (large.ctypes.data, LARGE_BYTES, 0, "")], "DRAM")
        other = agent.add_remote_agent(folder.swap("agent", agent.get_agent_metadata()))
        self._other = other if isinstance(other, str) else other.decode()
        address = int(folder.swap("address", str(self.landing.ctypes.data).encode()))
        pair = (SMALL_BYTES, LARGE_BYTES)
        source, descriptors = large.ctypes.data, agent.get_xfer_descs
        lists = [
            [descriptors([(start, length, 0)], "DRAM") for start in (source, address)]
            for length in pair
        ]
        fresh = [functools.partial(self._write_fresh, *both) for both in lists]
        handles = [agent.initialize_xfer("WRITE", *both, self._other, b"n") for both in lists]
        prepared = [functools.partial(self._post, handle) for handle in handles]
        self.ways: Ways = {"write": (fresh[0], fresh[1]), "prepared": (prepared[0], prepared[1])}
        self.path = os.environ.get("UCX_TLS", "any")
        self._arrived = 0

    def _post(self, handle: object) -> None:
        agent = self._agent
        state = agent.transfer(handle, b"n")
        while state == "PROC":
            state = agent.check_xfer_state(handle)
        if state != "DONE":
            raise RuntimeError(f"the transfer ended in state {state}")

    def _write_fresh(self, local: object, remote: object) -> None:
        handle = self._agent.initialize_xfer("WRITE", local, remote, self._other, b"n")
        self._post(handle)
        self._agent.release_xfer_handle(handle)

    def wait(self) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while self._arrived == 0:  # several may come at once
            self._arrived = sum(map(len, self._agent.get_new_notifs().values()))
            if time.monotonic() > deadline_s:
                raise TimeoutError("no notification")
        self._arrived -= 1

    def close(self) -> None:
        """The process ends without Python's own end, in which this version of NIXL crashes."""


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


def take_turns(arguments: SimpleNamespace, side: Side, way: str) -> None:
    """Both ranks; rank 0 measures and prints."""
    rank, trips = arguments.rank, arguments.trips
    small, large = side.ways[way]
    latency_ns, large_ns = [], []
    for _ in range(arguments.rounds + 1):
        trips_ns = [one_trip(side, rank, small) for _ in range(trips)]
        latency_ns.append(sorted(trips_ns)[trips // 2] // 2)
        large_ns += [large_turn(side, rank, small, large) for _ in range(arguments.larges)]
    if rank == 0:  # without the first round
        report(arguments.peer, side, way, SMALL_BYTES, latency_ns[1:])
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
    harness.emit(name=peer, way=way, path=side.path, size=size, raw_ns=samples_ns)


PEERS: dict[str, Callable[[Folder], Side]] = {
    "rdmatensor": Rdmatensor,
    "nixl": functools.partial(Nixl, is_default=True),
    "nixl tuned": functools.partial(Nixl, is_default=False),
}


def main(arguments: SimpleNamespace) -> None:
    cores = sorted(os.sched_getaffinity(0))
    folder = Folder(arguments.folder, arguments.rank)
    side = PEERS[arguments.peer](folder)
    os.sched_setaffinity(0, {cores[arguments.rank % len(cores)]})  # this thread only
    for act in (functools.partial(verify, folder), functools.partial(take_turns, arguments)):
        for way in side.ways:
            act(side, way)
    folder.swap("done", b"")
    side.close()
    sys.stdout.flush()
    if isinstance(side, Nixl):
        os._exit(0)
