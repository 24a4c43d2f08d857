"""Round trips of a tensor over gRPC from Python, by unary calls, as grpc_rival makes them in C++.

Usage: grpc_echo.py serve ADDRESS             prints "ready", and serves until it is ended
       grpc_echo.py echo ADDRESS SIZE TRIPS   prints a line of JSON: median, and all round trips

A message has dtype, shape and bytes. Either side looks whether they agree and copies the bytes to
where its tensor lives, before it answers; limits on messages are lifted. What comes back is
compared in a pass before any that is timed.
"""

from __future__ import annotations

import importlib
import json
import statistics
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

sys.path.append(str(Path(__file__).resolve().parents[2]))
from bench.workers.p2p_rivals import LIFTED, message_of, placed

_METHOD = "rival.Echo/Echo"
_MOST_BYTES = 64 << 20
_PATIENCE_S = 200.0


def serve(address: str) -> None:
    """Answer each tensor with itself, out of the memory where it was placed."""
    grpc = importlib.import_module("grpc")
    landing: NDArray[np.uint8] = np.zeros(_MOST_BYTES, dtype=np.uint8)

    def echo(request: bytes, _: object) -> bytes:
        came = placed(request, landing)
        return message_of(landing[: came.nbytes].view(came.dtype).reshape(came.shape))

    service, method = _METHOD.split("/")
    server = grpc.server(ThreadPoolExecutor(4), options=LIFTED)
    handlers = {method: grpc.unary_unary_rpc_method_handler(echo)}
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(service, handlers)])
    if server.add_insecure_port(address) == 0:
        raise OSError(f"{address} cannot be listened at")
    server.start()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    server.wait_for_termination()


def echo(address: str, size: int, trips: int) -> dict[str, object]:
    """Return the median round trip, and each, in us."""
    grpc = importlib.import_module("grpc")
    channel = grpc.insecure_channel(address, options=LIFTED)
    call = channel.unary_unary(f"/{_METHOD}")
    tensor = np.arange(size, dtype=np.uint64).astype(np.uint8)
    back: NDArray[np.uint8] = np.zeros(size, dtype=np.uint8)

    def trip() -> float:
        began_ns = time.perf_counter_ns()
        placed(call(message_of(tensor), timeout=_PATIENCE_S, wait_for_ready=True), back)
        return (time.perf_counter_ns() - began_ns) / 1000

    trip()
    if not np.array_equal(back, tensor):
        raise RuntimeError("what came back is not what was sent")
    for _ in range(max(5, trips // 5)):
        trip()
    raw_us = [trip() for _ in range(trips)]
    channel.close()
    return {"round_trip_us": statistics.median(raw_us), "raw_us": raw_us}


def main(words: Sequence[str]) -> int:
    """Serve, or measure and print."""
    match words:
        case ["serve", address]:
            serve(address)
        case ["echo", address, size, trips]:
            sys.stdout.write(json.dumps(echo(address, int(size), int(trips))) + "\n")
        case _:
            sys.stderr.write(f"{__doc__}")
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
