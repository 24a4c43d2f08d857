"""The parameter server over gRPC in C++ (bench/peers/grpc/parameters.cpp), from who trains.

Python has no part on either side of the wire: a gradient's bytes leave from its tensor, and new
values are received into a second set of parameters while backward reads the first; pull() exchanges
the two.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from bench.benchlib.programs import GRPC_PARAMETERS

PIECE_BYTES = 4 << 20  # of 1 and 4 MiB what takes gRPC less time


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("values", ctypes.c_void_p),
        ("other", ctypes.c_void_p),
        ("dims", ctypes.POINTER(ctypes.c_uint64)),
        ("ndim", ctypes.c_uint64),
    )


class _Library:
    """The functions of parameters.h; each call lets other threads of Python run."""

    def __init__(self) -> None:
        self._found = ctypes.CDLL(str(GRPC_PARAMETERS))
        text, size, handle = ctypes.c_char_p, ctypes.c_size_t, ctypes.c_void_p
        tensors, seconds = ctypes.POINTER(_Tensor), ctypes.c_double
        status = ctypes.c_int
        self._error = self._function("error", text)
        self.serve = self._function(
            "serve", status, text, tensors, size, size, size, ctypes.c_float, text, seconds
        )
        self.connect = self._function("connect", handle, text, tensors, size, size, seconds)
        self.push = self._function("push", status, handle, size, handle)
        self.pull = self._function("pull", status, handle)
        self.spent_ns = self._function("server_spent_ns", ctypes.c_int64, handle)
        self.close = self._function("close", status, handle)

    def _function(self, name: str, result: type, *arguments: type) -> Callable[..., Any]:
        function = self._found[f"params_{name}"]
        function.restype, function.argtypes = result, arguments
        return function

    def check(self, result: int) -> int:
        if result < 0:
            raise RuntimeError(f"gRPC's parameter server: {self._error().decode()}")
        return result


def _table(
    tensors: Sequence[torch.Tensor], others: Sequence[torch.Tensor]
) -> ctypes.Array[_Tensor]:
    for tensor in tensors:
        if tensor.dtype != torch.float32 or not tensor.is_contiguous():
            raise ValueError("parameters have to be dense float32")
    return (_Tensor * len(tensors))(
        *[
            _Tensor(
                tensor.data_ptr(),
                other.data_ptr(),
                (ctypes.c_uint64 * tensor.dim())(*tensor.shape),
                tensor.dim(),
            )
            for tensor, other in zip(tensors, others, strict=True)
        ]
    )


def serve(
    parameters: Sequence[torch.Tensor],
    workers: int,
    rate: float,
    port_file: Path,
    patience_s: float,
    host: str = "127.0.0.1",
    piece_bytes: int = PIECE_BYTES,
) -> None:
    """Hold the parameters until all workers ended their streams; the port goes to a file."""
    library = _Library()
    library.check(
        library.serve(
            f"{host}:0".encode(),
            _table(parameters, parameters),
            len(parameters),
            piece_bytes,
            workers,
            rate,
            str(port_file).encode(),
            patience_s,
        )
    )


def await_port(path: Path, patience_s: float) -> int:
    """Return the server's port once its file is there. Raises TimeoutError."""
    deadline_s = time.monotonic() + patience_s
    while not path.exists():
        if time.monotonic() > deadline_s:
            raise TimeoutError("the server does not listen")
        time.sleep(0.005)
    return int(path.read_text(encoding="utf-8"))


class Client:
    """A worker's side: gradients go as they come, pull() ends a step."""

    def __init__(
        self,
        parameters: Sequence[torch.nn.Parameter],
        port_file: Path,
        patience_s: float,
        host: str = "127.0.0.1",
        piece_bytes: int = PIECE_BYTES,
    ) -> None:
        self._library = _Library()
        self._parameters = list(parameters)
        self._others = [parameter.detach().clone() for parameter in parameters]
        self._table = _table(self._parameters, self._others)
        self._sent: list[torch.Tensor] = []
        address = f"{host}:{await_port(port_file, patience_s)}".encode()
        self._client = self._library.connect(
            address, self._table, len(self._parameters), piece_bytes, patience_s
        )
        if not self._client:
            self._library.check(-1)
        for index, parameter in enumerate(parameters):
            register = parameter.register_post_accumulate_grad_hook
            register(self._push(index))  # type: ignore[no-untyped-call]

    def _push(self, index: int) -> Callable[[torch.Tensor], None]:
        def push(parameter: torch.Tensor) -> None:
            assert parameter.grad is not None
            gradient = parameter.grad.contiguous()
            self._sent.append(gradient)  # until pull(): it leaves from where it is
            self._library.check(self._library.push(self._client, index, gradient.data_ptr()))

        return push

    def pull(self) -> None:
        """Wait for all new values, which are the parameters then."""
        self._library.check(self._library.pull(self._client))
        self._sent.clear()
        for place, parameter in enumerate(self._parameters):
            other, self._others[place] = self._others[place], parameter.data
            parameter.data = other

    def server_spent_ns(self) -> int:
        """Processor time of the server so far, in nanoseconds."""
        return int(self._library.check(self._library.spent_ns(self._client)))

    def close(self) -> None:
        """End the stream; the server ends with the last worker's."""
        self._library.check(self._library.close(self._client))
