"""One of two processes that write to each other from Python, through rdmatensor, NIXL or gRPC.

Rank 0 prints lines of JSON: one way of 8 B write + notification (half of the median trip of a
ping-pong, a sample for each round), and 64 MiB write + notification into memory that the other side
has read since it was written last, until an answer of 8 B is back. NIXL runs without its progress
thread: with it, it is slower on two cores. Before anything is timed each side compares what arrived
with what the other sent.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

LARGE_BYTES = 64 << 20
SMALL_BYTES = 8
PATIENCE_S = 60.0
STREAM_S = 110.0  # of all turns of one way


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


class Folder:
    """Values of the two ranks, in files."""

    def __init__(self, path: Path, rank: int) -> None:
        self.path, self.rank = path, rank

    def swap(self, key: str, mine: bytes) -> bytes:
        """Give mine, return the other rank's; both call it."""
        draft = self.path / f"{key}.{self.rank}.draft"
        draft.write_bytes(mine)
        draft.rename(self.path / f"{key}.{self.rank}")
        other = self.path / f"{key}.{1 - self.rank}"
        deadline_s = time.monotonic() + PATIENCE_S
        while not other.exists():
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"the other rank has no {key}")
            time.sleep(0.001)
        return other.read_bytes()


class Ours:
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
            "prepared": (lambda: prepared_small().wait(), lambda: prepared_large().wait()),
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

    is_default: with error handling between peers, as it comes. Without it UCX has shared memory for
        small messages too, and nobody learns of a peer's death.
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
        fresh = [partial(self._write_fresh, *both) for both in lists]
        handles = [agent.initialize_xfer("WRITE", *both, self._other, b"n") for both in lists]
        prepared = [partial(self._post, handle) for handle in handles]
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


class Grpc:
    """gRPC: a call, or a message of a stream, brings shape, dtype and bytes of a tensor.

    The bytes are copied to where the tensor lives before anything is answered; limits on messages
    are lifted. Small tensors come back with the answer, so that one call is a round trip; large
    ones are answered without. "write" has a unary call for each, "stream" one stream for all.
    """

    _SERVICE = "rival.Transfer"
    _HEADER = struct.Struct("<8sQ")  # dtype, elements

    def __init__(self, folder: Folder) -> None:
        grpc = importlib.import_module("grpc")
        lifted = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
        self.landing: NDArray[np.uint8] = np.zeros(LARGE_BYTES, dtype=np.uint8)
        self._returned: NDArray[np.uint8] = np.zeros(SMALL_BYTES, dtype=np.uint8)
        self._arrived = threading.Semaphore(0)
        self._is_over = threading.Event()
        server = self._server = grpc.server(ThreadPoolExecutor(4), options=lifted)
        handlers = {
            "Put": grpc.unary_unary_rpc_method_handler(self._put),
            "PutAll": grpc.stream_stream_rpc_method_handler(
                lambda requests, context: (self._put(one, context) for one in requests)
            ),
            "Read": grpc.unary_unary_rpc_method_handler(lambda *_: self.landing.sum().tobytes()),
            "End": grpc.unary_unary_rpc_method_handler(self._end),
        }
        service = grpc.method_handlers_generic_handler(self._SERVICE, handlers)
        server.add_generic_rpc_handlers([service])
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        other = int(folder.swap("port", str(port).encode()))
        self._channel = grpc.insecure_channel(f"127.0.0.1:{other}", options=lifted)
        self._call = self._channel.unary_unary(f"/{self._SERVICE}/Put")
        self._out: SimpleQueue[bytes | None] = SimpleQueue()
        stream = self._channel.stream_stream(f"/{self._SERVICE}/PutAll")
        self._answers: Iterator[bytes] = stream(iter(self._out.get, None), timeout=STREAM_S)
        self._tensors = [np.ones(size, dtype=np.uint8) for size in (SMALL_BYTES, LARGE_BYTES)]
        self._sends = {"write": self._send, "stream": self._stream}
        self.ways: Ways = {
            way: (partial(send, self._tensors[0]), partial(send, self._tensors[1]))
            for way, send in self._sends.items()
        }
        self.path = "tcp"

    def _take(self, message: bytes, into: NDArray[np.uint8]) -> int:
        name, count = self._HEADER.unpack_from(message)
        dtype = np.dtype(name.rstrip(b"\0").decode())
        tensor = np.frombuffer(message, dtype, count, self._HEADER.size)
        into[: tensor.nbytes] = tensor.view(np.uint8)
        return int(tensor.nbytes)

    def _put(self, request: bytes, _: object) -> bytes:
        is_small = self._take(request, self.landing) == SMALL_BYTES
        self._arrived.release()
        return self._message(self.landing[: SMALL_BYTES if is_small else 0])

    def _end(self, _request: bytes, _: object) -> bytes:
        self._is_over.set()
        return b""

    def _message(self, tensor: NDArray[np.uint8]) -> bytes:
        header = self._HEADER.pack(tensor.dtype.str.encode(), tensor.size)
        return b"".join((header, tensor.data))

    def _send(self, tensor: NDArray[np.uint8]) -> None:
        self._take(self._call(self._message(tensor), timeout=PATIENCE_S), self._returned)

    def _stream(self, tensor: NDArray[np.uint8]) -> None:
        self._out.put(self._message(tensor))
        self._take(next(self._answers), self._returned)

    def trip(self, way: str, *, is_large: bool) -> int:
        """Send a tensor until it is answered; return the nanoseconds."""
        self._returned.fill(0)
        started_ns = time.perf_counter_ns()
        self._sends[way](self._tensors[is_large])
        took_ns = time.perf_counter_ns() - started_ns
        if not is_large and not bool((self._returned == 1).all()):
            raise RuntimeError(f"{way}: what came back is not what was sent")
        if is_large:  # as the others' receivers do between two of them
            self._channel.unary_unary(f"/{self._SERVICE}/Read")(b"", timeout=PATIENCE_S)
        return took_ns

    def end(self) -> None:
        """Tell the other side that it need not serve any more."""
        self._channel.unary_unary(f"/{self._SERVICE}/End")(b"", timeout=PATIENCE_S)

    def serve(self) -> None:
        """Until the other side calls end()."""
        if not self._is_over.wait(STREAM_S):
            raise TimeoutError("the other side has not ended")
        self._is_over.clear()

    def wait(self) -> None:
        if not self._arrived.acquire(timeout=PATIENCE_S):
            raise TimeoutError("no call")

    def close(self) -> None:
        self._out.put(None)
        self._channel.close()
        self._server.stop(None).wait(PATIENCE_S)


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
        report(arguments.contestant, side, way, SMALL_BYTES, latency_ns[1:])
        report(arguments.contestant, side, way, LARGE_BYTES, large_ns[arguments.larges :])


def call(arguments: argparse.Namespace, side: Grpc, way: str) -> None:
    """Rank 0 of a rival whose call is a round trip; the first round does not count."""
    small_ns, large_ns = [], []
    for _ in range(arguments.rounds + 1):
        trips_ns = sorted(side.trip(way, is_large=False) for _ in range(arguments.trips))
        small_ns.append(trips_ns[arguments.trips // 2] // 2)
        large_ns += [side.trip(way, is_large=True) for _ in range(arguments.larges)]
    side.end()
    report(arguments.contestant, side, way, SMALL_BYTES, small_ns[1:])
    report(arguments.contestant, side, way, LARGE_BYTES, large_ns[arguments.larges :])


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


def report(contestant: str, side: Side, way: str, size: int, samples_ns: list[int]) -> None:
    """Print one record."""
    ordered = sorted(samples_ns)
    record = {
        "contestant": contestant,
        "way": way,
        "path": side.path,
        "size": size,
        "median_ns": ordered[len(ordered) // 2],
        "p10": ordered[len(ordered) // 10],
        "p90": ordered[-1 - len(ordered) // 10],
        "samples": len(ordered),
        "raw_ns": samples_ns,
    }
    sys.stdout.write(json.dumps(record) + "\n")


CONTESTANTS: dict[str, Callable[[Folder], Side]] = {
    "ours": Ours,
    "nixl": partial(Nixl, is_default=True),
    "nixl tuned": partial(Nixl, is_default=False),
    "grpc": Grpc,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--contestant", choices=CONTESTANTS, required=True)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--trips", type=int, default=500)
    parser.add_argument("--larges", type=int, default=3)
    arguments = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    folder = Folder(arguments.folder, arguments.rank)
    side = CONTESTANTS[arguments.contestant](folder)
    os.sched_setaffinity(0, {cores[arguments.rank % len(cores)]})  # this thread only
    for way in side.ways:
        verify(folder, side, way)
    for way in side.ways:
        take_turns(arguments, side, way)
    folder.swap("done", b"")
    side.close()
    sys.stdout.flush()
    if isinstance(side, Nixl):
        os._exit(0)


if __name__ == "__main__":
    main()
