"""The ends of p2p.py of NIXL, Mooncake's transfer engine and gRPC, and where its ranks meet."""

from __future__ import annotations

import importlib
import math
import os
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from queue import SimpleQueue
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from bench.workers.harness import PATIENCE_S, Folder

LARGE_BYTES = 64 << 20
SMALL_BYTES = 8
# Way of writing -> (write 8 B + notify, write 64 MiB + notify), each until it is done.
Ways = dict[str, tuple[Callable[[], object], Callable[[], object]]]
STREAM_S = 110.0  # of all turns of one way
LIFTED = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
_HEADER = struct.Struct("<8sB")  # dtype, dimensions; their extents follow, of 8 bytes each


class Side(Protocol):
    """This process's end: what it writes goes to the other's end."""

    ways: Ways
    landing: NDArray[np.uint8]
    path: str

    def wait(self) -> None:
        """Wait for one notification of the other side."""

    def close(self) -> None:
        """Both sides are done."""


def message_of(tensor: NDArray[np.generic]) -> bytes:
    """Return a tensor as gRPC's messages have it here: dtype, shape and bytes."""
    header = _HEADER.pack(tensor.dtype.str.encode(), tensor.ndim)
    return b"".join((header, struct.pack(f"<{tensor.ndim}Q", *tensor.shape), tensor.data))


def placed(message: bytes, into: NDArray[np.uint8]) -> NDArray[np.generic]:
    """Copy a message's bytes to where the tensor lives; return what came."""
    name, dimensions = _HEADER.unpack_from(message)
    dtype, start = np.dtype(name.rstrip(b"\0").decode()), _HEADER.size + 8 * dimensions
    shape = struct.unpack_from(f"<{dimensions}Q", message, _HEADER.size)
    if dtype.itemsize * math.prod(shape) != len(message) - start:
        raise ValueError(f"{len(message) - start} bytes are no {dtype} of shape {shape}")
    tensor = np.frombuffer(message, dtype, offset=start)
    into[: tensor.nbytes] = tensor.view(np.uint8)
    return tensor.reshape(shape)


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


class Mooncake:
    """Mooncake's transfer engine over its TCP transport; a write brings a notification.

    It sends the notification by a call of its own once the bytes are there, and whoever waits asks
    for those that came.
    """

    def __init__(self, folder: Folder) -> None:
        engine_module = importlib.import_module("mooncake.engine")
        engine = self._engine = engine_module.TransferEngine()
        self._need(engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", ""), "initialize")
        self.landing: NDArray[np.uint8] = np.zeros(LARGE_BYTES, dtype=np.uint8)
        large = self._large = np.ones(LARGE_BYTES, dtype=np.uint8)
        for memory in (self.landing, large):
            self._need(engine.register_memory(memory.ctypes.data, LARGE_BYTES), "register_memory")
        port = int(folder.swap("port", str(engine.get_rpc_port()).encode()))
        address = int(folder.swap("address", str(self.landing.ctypes.data).encode()))
        where = (f"127.0.0.1:{port}", large.ctypes.data, address)
        how = (engine_module.TransferOpcode.Write, engine_module.TransferNotify("n", "n"))

        def write(length: int) -> None:
            self._need(engine.transfer_sync(*where, length, *how), "transfer_sync")

        self.ways: Ways = {"write": (partial(write, SMALL_BYTES), partial(write, LARGE_BYTES))}
        self.path = "tcp"
        self._arrived = 0

    def _need(self, code: int, call: str) -> None:
        if code != 0:
            raise RuntimeError(f"{call}: {code}")

    def wait(self) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while self._arrived == 0:  # several may come at once
            self._arrived = len(self._engine.get_notifies())
            if time.monotonic() > deadline_s:
                raise TimeoutError("no notification")
        self._arrived -= 1

    def close(self) -> None:
        """The engine ends with the process."""


class Grpc:
    """gRPC: a call, or a message of a stream, brings dtype, shape and bytes of a tensor.

    Whoever receives looks whether the three agree, and copies the bytes to where the tensor lives
    before anything is answered; limits on messages are lifted. Small tensors come back with the
    answer, so that one call is a round trip; large ones are answered without. "write" has a unary
    call for each, "stream" one stream for all.
    """

    _SERVICE = "rival.Transfer"

    def __init__(self, folder: Folder) -> None:
        grpc = importlib.import_module("grpc")
        self.landing: NDArray[np.uint8] = np.zeros(LARGE_BYTES, dtype=np.uint8)
        self._returned: NDArray[np.uint8] = np.zeros(SMALL_BYTES, dtype=np.uint8)
        self._arrived = threading.Semaphore(0)
        self._is_over = threading.Event()
        server = self._server = grpc.server(ThreadPoolExecutor(4), options=LIFTED)
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
        self._channel = grpc.insecure_channel(f"127.0.0.1:{other}", options=LIFTED)
        self._call = self._channel.unary_unary(f"/{self._SERVICE}/Put")
        self._out: SimpleQueue[bytes | None] = SimpleQueue()
        stream = self._channel.stream_stream(f"/{self._SERVICE}/PutAll")
        self._answers: Iterator[bytes] = stream(iter(self._out.get, None), timeout=STREAM_S)
        self._tensors = [np.ones((size // 4, 4), np.uint8) for size in (SMALL_BYTES, LARGE_BYTES)]
        self._sends = {"write": self._send, "stream": self._stream}
        self.ways: Ways = {
            way: (partial(send, self._tensors[0]), partial(send, self._tensors[1]))
            for way, send in self._sends.items()
        }
        self.path = "tcp"

    def _put(self, request: bytes, _: object) -> bytes:
        came = placed(request, self.landing)
        self._arrived.release()
        if came.nbytes != SMALL_BYTES:
            return message_of(self.landing[:0])
        return message_of(self.landing[:SMALL_BYTES].view(came.dtype).reshape(came.shape))

    def _end(self, _request: bytes, _: object) -> bytes:
        self._is_over.set()
        return b""

    def _send(self, tensor: NDArray[np.generic]) -> NDArray[np.generic]:
        return placed(self._call(message_of(tensor), timeout=PATIENCE_S), self._returned)

    def _stream(self, tensor: NDArray[np.generic]) -> NDArray[np.generic]:
        self._out.put(message_of(tensor))
        return placed(next(self._answers), self._returned)

    def trip(self, way: str, *, is_large: bool) -> int:
        """Send a tensor until it is answered; return the nanoseconds."""
        self._returned.fill(0)
        tensor = self._tensors[is_large]
        started_ns = time.perf_counter_ns()
        back = self._sends[way](tensor)
        took_ns = time.perf_counter_ns() - started_ns
        is_same = (back.dtype, back.shape) == (tensor.dtype, tensor.shape)
        if not is_large and not (is_same and bool((self._returned == 1).all())):
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
