"""A parameter server over gRPC, as one would write it from Python, and its workers' side.

One process holds the parameters. Each worker has one stream to it, in both directions, for as long
as it trains. A gradient leaves when backward has made it; when those of all workers are here, the
server takes their mean, does the optimizer's step and sends the new values to everybody, who place
them after backward. Tensors go as shape, dtype and bytes, in pieces, so that making a message,
sending it and placing it overlap; limits on messages are lifted.
"""

from __future__ import annotations

import importlib
import struct
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import torch

PIECE_BYTES = 4 << 20  # of 1 and 4 MiB what takes gRPC less time
_LIFTED = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
_HEADER = struct.Struct("<IB3xQ8s")  # tensor, ndim, offset in bytes, dtype; then its dims
_DIM = struct.Struct("<Q")
_DTYPE = b"float32\0"
_SERVICE = "bench.Parameters"
_ELEMENT_BYTES = 4
# Of a message's values, to which nobody writes.
warnings.filterwarnings("ignore", message="The given buffer is not writable")


def flat_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return a dense tensor's elements in a row, without a copy."""
    return tensor.detach().view(-1)


def pieces_of(numel: int, piece_bytes: int = PIECE_BYTES) -> Iterator[tuple[int, int]]:
    """Return the first element of each piece of a tensor, and the one behind its last."""
    step = piece_bytes // _ELEMENT_BYTES
    return ((first, min(first + step, numel)) for first in range(0, numel, step))


def encode(index: int, shape: Sequence[int], first: int, values: torch.Tensor) -> bytes:
    """Return the message of one piece of a tensor: which, what it is, and its bytes."""
    return b"".join((encode_head(index, shape, first), values.view(torch.uint8).numpy().data))


def encode_head(index: int, shape: Sequence[int], first: int) -> bytes:
    """Return what stands before the values."""
    header = _HEADER.pack(index, len(shape), first * _ELEMENT_BYTES, _DTYPE)
    return header + b"".join(map(_DIM.pack, shape))


def decode(message: bytes | memoryview) -> tuple[int, tuple[int, ...], int, torch.Tensor]:
    """Return tensor, shape, first element and the values, which are the message's memory."""
    index, ndim, offset, dtype = _HEADER.unpack_from(message)
    if dtype != _DTYPE:
        raise ValueError(f"a message has dtype {dtype!r}")
    end = _HEADER.size + ndim * _DIM.size
    shape = tuple(dim for (dim,) in _DIM.iter_unpack(message[_HEADER.size : end]))
    values = torch.frombuffer(message, dtype=torch.float32, offset=end)
    return index, shape, offset // _ELEMENT_BYTES, values


class _Piece:
    """Part of a parameter, and what the workers sent for it in this step."""

    def __init__(self, index: int, shape: Sequence[int], first: int, values: torch.Tensor) -> None:
        self.index, self.shape, self.first, self.values = index, shape, first, values
        self._lock = threading.Lock()
        self._arrived: list[torch.Tensor] = []

    def add(self, gradient: torch.Tensor, workers: int, rate: float) -> bytes | None:
        """Take one worker's gradient; return the message with the new values after the last."""
        with self._lock:
            self._arrived.append(gradient)
            if len(self._arrived) < workers:
                return None
            arrived, self._arrived = self._arrived, []
        total = torch.add(*arrived[:2])
        for other in arrived[2:]:
            total += other
        self.values.add_(total.mul_(1 / workers), alpha=-rate)
        return encode(self.index, self.shape, self.first, self.values)


class _Server:
    """Runs in the threads of gRPC and a reader for each worker; two workers at least."""

    def __init__(self, parameters: Sequence[torch.Tensor], workers: int, rate: float) -> None:
        self._workers, self._rate = workers, rate
        self._pieces = {
            (index, first): _Piece(index, tensor.shape, first, flat_of(tensor)[first:end])
            for index, tensor in enumerate(parameters)
            for first, end in pieces_of(tensor.numel())
        }
        self._lock = threading.Lock()
        self._outs: list[SimpleQueue[bytes | None]] = []
        self._ended = 0
        self.is_over = threading.Event()

    def train(self, requests: Iterator[bytes], _context: object) -> Iterator[bytes]:
        """The stream of one worker."""
        out: SimpleQueue[bytes | None] = SimpleQueue()
        with self._lock:
            self._outs.append(out)
        reader = threading.Thread(target=self._read, args=(requests, out), daemon=True)
        reader.start()
        while (message := out.get()) is not None:
            yield message
        reader.join()
        with self._lock:
            self._ended += 1
            if self._ended == self._workers:
                self.is_over.set()

    def _read(self, requests: Iterator[bytes], out: SimpleQueue[bytes | None]) -> None:
        try:
            for message in requests:
                index, _, first, gradient = decode(message)
                answer = self._pieces[index, first].add(gradient, self._workers, self._rate)
                if answer is not None:
                    for each in self._outs:
                        each.put(answer)
        finally:
            out.put(None)

    def spent(self, _request: bytes, _context: object) -> bytes:
        """Processor time of this process in nanoseconds."""
        return str(time.process_time_ns()).encode()


def serve(
    parameters: Sequence[torch.Tensor],
    workers: int,
    rate: float,
    port_file: Path,
    patience_s: float,
    host: str = "127.0.0.1",
) -> None:
    """Hold the parameters until all workers ended their streams; the port goes to a file."""
    grpc: Any = importlib.import_module("grpc")
    mine = _Server(parameters, workers, rate)
    server = grpc.server(ThreadPoolExecutor(workers + 1), options=_LIFTED)
    handlers = {
        "Train": grpc.stream_stream_rpc_method_handler(mine.train),
        "Spent": grpc.unary_unary_rpc_method_handler(mine.spent),
    }
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(_SERVICE, handlers)])
    port = server.add_insecure_port(f"{host}:0")
    server.start()
    draft = port_file.with_suffix(".draft")
    draft.write_text(str(port), encoding="utf-8")
    draft.rename(port_file)
    if not mine.is_over.wait(patience_s):
        raise TimeoutError("the workers did not end")
    server.stop(patience_s).wait(patience_s)  # ends as soon as the streams have


class Client:
    """A worker's side: gradients go as they come, pull() ends a step."""

    def __init__(
        self,
        parameters: Sequence[torch.nn.Parameter],
        port_file: Path,
        patience_s: float,
        host: str = "127.0.0.1",
    ) -> None:
        grpc: Any = importlib.import_module("grpc")
        self._patience_s = patience_s
        self._targets = [flat_of(parameter) for parameter in parameters]
        self._shapes = [tuple(parameter.shape) for parameter in parameters]
        self._due = sum(len(list(pieces_of(target.numel()))) for target in self._targets)
        self._channel = grpc.insecure_channel(
            f"{host}:{await_port(port_file, patience_s)}", options=_LIFTED
        )
        self._out: SimpleQueue[tuple[int, torch.Tensor] | None] = SimpleQueue()
        call = self._channel.stream_stream(f"/{_SERVICE}/Train")
        self._answers: Iterator[bytes] = call(
            self._requests(), timeout=patience_s, wait_for_ready=True
        )
        self._spent = self._channel.unary_unary(f"/{_SERVICE}/Spent")
        for index, parameter in enumerate(parameters):
            register = parameter.register_post_accumulate_grad_hook
            register(self._push(index))  # type: ignore[no-untyped-call]

    def _push(self, index: int) -> Callable[[torch.Tensor], None]:
        def push(parameter: torch.Tensor) -> None:
            assert parameter.grad is not None
            self._out.put((index, parameter.grad.contiguous()))

        return push

    def _requests(self) -> Iterator[bytes]:
        """Runs in a thread of gRPC's, beside backward."""
        while (item := self._out.get()) is not None:
            index, gradient = item
            flat = flat_of(gradient)
            for first, end in pieces_of(flat.numel()):
                yield encode(index, self._shapes[index], first, flat[first:end])

    def pull(self) -> None:
        """Wait for all new values, and place them."""
        for _ in range(self._due):
            message = next(self._answers, None)
            if message is None:
                raise RuntimeError("the server ended the stream")
            index, shape, first, values = decode(message)
            if shape != self._shapes[index]:
                raise RuntimeError(f"tensor {index} came as {shape}, not {self._shapes[index]}")
            self._targets[index][first : first + values.numel()].copy_(values)

    def server_spent_ns(self) -> int:
        """Processor time of the server so far, in nanoseconds."""
        return int(self._spent(b"", timeout=self._patience_s))

    def close(self) -> None:
        """End the stream; the server ends with the last worker's."""
        self._out.put(None)
        for _ in self._answers:
            raise RuntimeError("the server sent values that nobody asked for")
        self._channel.close()


def await_port(path: Path, patience_s: float) -> int:
    deadline_s = time.monotonic() + patience_s
    while not path.exists():
        if time.monotonic() > deadline_s:
            raise TimeoutError("the server does not listen")
        time.sleep(0.005)
    return int(path.read_text(encoding="utf-8"))
