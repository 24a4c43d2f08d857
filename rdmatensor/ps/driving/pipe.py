"""Values between a driver and a worker, through two slots that stay open.

A value is one head, JSON of up to a piece, and then the bytes of its tensors in pieces. The sender
writes tensors from where they are; the receiver copies each piece out of the slot.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from rdmatensor._native.arguments import SECONDS_MAX, invalid
from rdmatensor.context import Context
from rdmatensor.endpoint import Endpoint
from rdmatensor.errors import ClosedError, PeerError, ProtocolError, TransferTimeoutError
from rdmatensor.slot import SlotReceiver
from rdmatensor.slot_sender import SlotSender
from rdmatensor.transfer import Transfer

PIECE_BYTES = 1 << 20
_NAME = "ps drive"


class Packed:
    """A value, checked and taken apart: JSON, and the tensors in it."""

    def __init__(self, value: object, call: str) -> None:
        self.tensors: list[torch.Tensor] = []
        tree = self._tree(value, call)
        specs = [[str(one.dtype)[len("torch.") :], list(one.shape)] for one in self.tensors]
        self.head = json.dumps([tree, specs]).encode()
        if len(self.head) > PIECE_BYTES:
            raise invalid(
                call,
                f"{len(self.head)} B without tensors, and at most {PIECE_BYTES} B are possible",
            )

    def _tree(self, value: object, call: str) -> object:
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        if isinstance(value, torch.Tensor):
            if value.device.type != "cpu" or value.layout != torch.strided or value.is_quantized:
                raise invalid(
                    call, f"a tensor is {value.layout} on {value.device}, not strided on cpu"
                )
            self.tensors.append(value.detach().resolve_conj().resolve_neg().contiguous())
            return {"tensor": len(self.tensors) - 1}
        if isinstance(value, list):
            return [self._tree(one, call) for one in value]
        if isinstance(value, tuple):
            return {"tuple": [self._tree(one, call) for one in value]}
        if isinstance(value, dict) and all(isinstance(key, str) for key in value):
            return {"dict": {key: self._tree(one, call) for key, one in value.items()}}
        raise invalid(
            call,
            f"{type(value).__name__}: expected tensors, numbers, texts, True, False or None, "
            "or lists, tuples and dicts of them",
        )


class Pipe:
    """Both directions to one peer; the peer has one too.

    Threads:
        One at a time.
    """

    def __init__(self, context: Context, peer: Endpoint) -> None:
        self._peer = peer
        self._in: SlotReceiver = context.recv_slot(
            _NAME, PIECE_BYTES, "uint8", src=peer, kind="bounded"
        )
        self._out: SlotSender | None = None

    def open(self) -> None:
        """Wait for the peer's side."""
        self._out = self._peer.send_slot(_NAME, PIECE_BYTES, "uint8", kind="bounded")

    def send(self, packed: Packed) -> None:
        """Send a value; returns when its tensors may change.

        Raises:
            PeerError: The peer died or left.
        """
        assert self._out is not None
        with self._closed_by_peer():
            sent: list[Transfer] = [self._put(np.frombuffer(packed.head, np.uint8))]
            for tensor in packed.tensors:
                sent.extend(self._put(piece.numpy()) for piece in _pieces(tensor))
            for one in sent:
                one.wait(SECONDS_MAX)

    @contextlib.contextmanager
    def _closed_by_peer(self) -> Iterator[None]:
        """Raise PeerError for a slot that the peer has closed or that ended with it."""
        try:
            yield
        except ClosedError as closed:
            error = PeerError(
                "RDT_EPEER", "drive", f"rank {self._peer.rank} has ended its part: {closed.detail}"
            )
            error.rank = self._peer.rank
            raise error from closed

    def _put(self, piece: np.ndarray[Any, Any]) -> Transfer:
        assert self._out is not None
        return self._out.put(piece, SECONDS_MAX)

    def check(self) -> None:
        """Raise PeerError if the peer is gone; only while it has nothing to send."""
        try:
            self._in.get(0.0).release()
        except TransferTimeoutError:
            return
        raise ProtocolError("RDT_EPROTO", "drive", "a driver sent what no worker asked for")

    def receive(self) -> Any:  # noqa: ANN401 - what the peer sent
        """Wait for a value; its tensors have memory of their own.

        Raises:
            PeerError: The peer died or left.
            ProtocolError: The peer sent something else.
        """
        with self._in.get(SECONDS_MAX) as head:
            data = head.tobytes()
        try:
            tree, specs = json.loads(data)
            tensors = [torch.empty(shape, dtype=_dtype(name)) for name, shape in specs]
        except (TypeError, ValueError, RuntimeError, OverflowError) as error:
            raise _wrong(data, error) from error
        for tensor in tensors:
            for piece in _pieces(tensor):
                self._fill(piece)
        try:
            return _value(tree, tensors)
        except (KeyError, TypeError, ValueError, IndexError, RecursionError) as error:
            raise _wrong(data, error) from error

    def _fill(self, piece: torch.Tensor) -> None:
        with self._in.get(SECONDS_MAX) as array:
            if len(array) != len(piece):
                raise _wrong(array.tobytes(), ValueError(f"{len(piece)} B were to come"))
            piece.numpy()[:] = array

    def close(self) -> None:
        """Close both slots."""
        self._in.close()
        if self._out is not None:
            self._out.close()


def _pieces(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield the bytes of a contiguous tensor, as views."""
    whole = tensor.reshape(-1).view(torch.uint8)
    for at in range(0, len(whole), PIECE_BYTES):
        yield whole[at : at + PIECE_BYTES]


def _dtype(name: object) -> torch.dtype:
    found = getattr(torch, str(name), None)
    if not isinstance(found, torch.dtype):
        raise TypeError(f"no dtype {name!r}")
    return found


def _value(tree: object, tensors: list[torch.Tensor]) -> object:
    if isinstance(tree, list):
        return [_value(one, tensors) for one in tree]
    if not isinstance(tree, dict):
        return tree
    ((kind, inner),) = tree.items()
    if kind == "tensor":
        return tensors[inner]
    if kind == "tuple":
        return tuple(_value(one, tensors) for one in inner)
    if kind == "dict":
        return {key: _value(one, tensors) for key, one in inner.items()}
    raise ValueError(f"no kind {kind!r}")


def _wrong(data: bytes, error: Exception) -> ProtocolError:
    return ProtocolError("RDT_EPROTO", "drive", f"a peer sent {data[:100]!r}: {error}")
