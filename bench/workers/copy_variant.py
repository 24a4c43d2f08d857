"""Gradients by way of our own transports, but as a tuned RPC would move them.

What is left out is what this library is for: a gradient is not born where it leaves from nor where
it arrives. A message is a row of gradients, or a piece of a large one, with their descriptions,
written into a ring of buffers at the receiver, who decodes it and copies it out into private
memory. What is there when a message begins shares it. Sending and receiving have threads of their
own, beside backward. Every rank sends all its gradients to every other, and sums
in the order of ranks.
"""

from __future__ import annotations

import ctypes
import os
import struct
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

import numpy as np
import torch

import rdmatensor
from bench.workers.grpc_server import flat_of, pieces_of
from rdmatensor.slot import Slot

_COUNTS = struct.Struct("<II")  # parts; bytes of this and of all heads
_HEAD = struct.Struct("<IB3xQQ8s")  # tensor, ndim, offset and length in bytes, dtype; then its dims
_DIM = struct.Struct("<Q")
_DTYPE = b"float32\0"
_HEADS_BYTES_MAX = 16 << 10
_PARTS_MAX = 128
_ELEMENT_BYTES = 4


@dataclass(frozen=True, slots=True)
class Ring:
    """Pieces of so many bytes, in so many slots of two buffers each, in turn."""

    piece_bytes: int
    slots: int


# What of messages of 512 KiB to 8 MiB and 4 to 16 slots moves most (copy_rate.py --rings): each
# message costs a few calls from Python, and small tensors share one. Over verbs the rig's link is
# the bound: smaller pieces leave less to be copied out when the last has come.
RINGS = {"shm": Ring(4 << 20, 8), "tcp": Ring(4 << 20, 4), "verbs": Ring(1 << 20, 8)}


@dataclass(frozen=True, slots=True)
class Part:
    """Elements in a row of a tensor: where they are, which they are."""

    index: int
    shape: Sequence[int]
    offset: int
    nbytes: int
    address: int


def heads_of(parts: Sequence[Part]) -> bytes:
    """Return what stands in a message before all values; these follow each other."""
    heads = []
    for part in parts:
        shape = part.shape
        heads.append(_HEAD.pack(part.index, len(shape), part.offset, part.nbytes, _DTYPE))
        heads += map(_DIM.pack, shape)
    text = b"".join(heads)
    return _COUNTS.pack(len(parts), _COUNTS.size + len(text)) + text


def parts_of(message: memoryview, address: int) -> Iterator[Part]:
    """Yield the parts of a message, which lies there."""
    count, at = _COUNTS.unpack_from(message)
    address += at
    at = _COUNTS.size
    for _ in range(count):
        index, ndim, offset, nbytes, dtype = _HEAD.unpack_from(message, at)
        if dtype != _DTYPE:
            raise ValueError(f"a message has dtype {dtype!r}")
        at += _HEAD.size
        shape = tuple(_DIM.unpack_from(message, at + 8 * axis)[0] for axis in range(ndim))
        at += ndim * _DIM.size
        yield Part(index, shape, offset, nbytes, address)
        address += nbytes


class Receiver:
    """A thread that copies one peer's gradients out of its slots, a step at a time."""

    def __init__(
        self,
        slots: Sequence[Slot],
        like: Sequence[torch.Tensor],
        patience_s: float,
    ) -> None:
        self.private = [torch.empty(tensor.numel()) for tensor in like]
        self._shapes = [tuple(tensor.shape) for tensor in like]
        self._addresses = [tensor.data_ptr() for tensor in self.private]
        self._slots, self._patience_s = slots, patience_s
        self._due = sum(tensor.nbytes for tensor in self.private)
        self._may_fill = threading.Semaphore(0)
        self._is_full = threading.Semaphore(0)
        self._is_closing = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while self._may_fill.acquire(timeout=self._patience_s) and not self._is_closing:
                number = arrived = 0
                while arrived < self._due:
                    with self._slots[number % len(self._slots)].get(self._patience_s) as message:
                        arrived += self._place(message.data)
                    number += 1
                self._is_full.release()
        except BaseException as error:  # noqa: BLE001  wait() tells it to the thread that trains
            self._error = error
            self._is_full.release()

    def _place(self, message: memoryview) -> int:
        address = np.frombuffer(message, np.uint8).ctypes.data
        size = 0
        for part in parts_of(message, address):
            if part.shape != self._shapes[part.index]:
                raise ValueError(f"tensor {part.index} came as {part.shape}")
            if part.offset + part.nbytes > self.private[part.index].nbytes:
                raise ValueError(f"tensor {part.index} came with bytes behind its end")
            ctypes.memmove(self._addresses[part.index] + part.offset, part.address, part.nbytes)
            size += part.nbytes
        return size

    def wait(self) -> list[torch.Tensor]:
        """Return all of the peer's gradients of this step."""
        if not self._is_full.acquire(timeout=self._patience_s):
            raise TimeoutError("the peer's gradients did not come")
        if self._error is not None:
            raise RuntimeError("receiving failed") from self._error
        return self.private

    def release(self) -> None:
        """Let a step's gradients come; those of the step before are no longer needed."""
        self._may_fill.release()

    def close(self) -> None:
        self._is_closing = True
        self._may_fill.release()
        self._thread.join(self._patience_s)


class Exchange:
    """All ranks' ends of it in one process."""

    def __init__(
        self,
        parameters: Sequence[torch.Tensor],
        folder: Path,
        rank: int,
        ranks: int,
        patience_s: float,
        ring: Ring | None = None,
    ) -> None:
        self._parameters, self._rank, self._ranks = list(parameters), rank, ranks
        self._patience_s, self._pushed = patience_s, 0
        self._world = rdmatensor.join(rdmatensor.FileStore(folder / "slots"), rank, ranks)
        self._ring = ring or RINGS[os.environ.get("RDMATENSOR_TRANSPORT", "shm")]
        most = (_HEADS_BYTES_MAX + self._ring.piece_bytes,)
        peers = [peer for peer in range(ranks) if peer != rank]
        names = [f"gradients {number}" for number in range(self._ring.slots)]
        slots = {
            peer: [
                self._world.slot(name, most, "uint8", src=peer, kind="bounded") for name in names
            ]
            for peer in peers
        }
        self._senders = [
            [
                self._world.endpoint(peer).slot(
                    name, most, "uint8", kind="bounded", timeout_s=patience_s
                )
                for name in names
            ]
            for peer in peers
        ]
        self._receivers = {
            peer: Receiver(of_peer, self._parameters, patience_s) for peer, of_peer in slots.items()
        }
        self._out: SimpleQueue[tuple[int, torch.Tensor] | None] = SimpleQueue()
        self._sent: SimpleQueue[BaseException | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def push(self, index: int, gradient: torch.Tensor) -> None:
        """Send a gradient; it must not change before finish()."""
        if self._pushed % len(self._parameters) == 0:
            self.release()
        self._pushed += 1
        self._out.put((index, gradient))

    def _run(self) -> None:
        count = number = 0
        parts: list[Part] = []
        try:
            while (item := self._out.get()) is not None:
                index, gradient = item  # stays alive: finish() comes after its last piece
                flat = flat_of(gradient)
                for first, end in pieces_of(flat.numel(), self._ring.piece_bytes):
                    size = (end - first) * _ELEMENT_BYTES
                    if not self._has_room(parts, size):
                        self._send(number, parts)
                        number, parts = number + 1, []
                    at = first * _ELEMENT_BYTES
                    address = flat.data_ptr() + at
                    parts.append(Part(index, tuple(gradient.shape), at, size, address))
                count += 1
                is_last = count % len(self._parameters) == 0
                if parts and (is_last or self._out.empty()):
                    self._send(number, parts)
                    number, parts = number + 1, []
                if is_last:
                    number = 0  # as the receiver counts
                    self._sent.put(None)
        except BaseException as error:  # noqa: BLE001  finish() tells it
            self._sent.put(error)

    def _has_room(self, parts: Sequence[Part], size: int) -> bool:
        taken = sum(part.nbytes for part in parts)
        return taken + size <= self._ring.piece_bytes and len(parts) < _PARTS_MAX

    def _send(self, number: int, parts: Sequence[Part]) -> None:
        heads = heads_of(parts)
        shape = (len(heads) + sum(part.nbytes for part in parts),)
        for senders in self._senders:
            sender = senders[number % self._ring.slots]
            address = sender.buffer(shape, self._patience_s).ctypes.data
            ctypes.memmove(address, heads, len(heads))
            address += len(heads)
            for part in parts:
                ctypes.memmove(address, part.address, part.nbytes)
                address += part.nbytes
            sender.post()

    def release(self) -> None:
        """Let what all peers send in a step come; push() does it, for who sends too."""
        for receiver in self._receivers.values():
            receiver.release()

    def sent(self) -> None:
        """Wait until all gradients of a step have left."""
        error = self._sent.get(timeout=self._patience_s)
        if error is not None:
            raise RuntimeError("sending failed") from error

    def received(self) -> dict[int, list[torch.Tensor]]:
        """Wait for what all peers sent in a step."""
        return {peer: receiver.wait() for peer, receiver in self._receivers.items()}

    def finish(self) -> None:
        """Wait for all, and leave the mean in every gradient."""
        self.sent()
        of_peers = self.received()
        for index, parameter in enumerate(self._parameters):
            assert parameter.grad is not None
            mine = flat_of(parameter.grad)
            parts = [
                mine if rank == self._rank else of_peers[rank][index] for rank in range(self._ranks)
            ]
            if self._ranks == 2:  # in either order the same bits
                mine.add_(of_peers[1 - self._rank][index]).mul_(0.5)
                continue
            total = torch.add(*parts[:2])
            for part in parts[2:]:
                total.add_(part)
            mine.copy_(total.mul_(1 / self._ranks))

    def close(self) -> None:
        """After the last step."""
        self._out.put(None)
        self._thread.join(self._patience_s)
        for receiver in self._receivers.values():
            receiver.close()
        self._world.close()
