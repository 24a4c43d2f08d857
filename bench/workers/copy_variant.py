"""Gradients over rdmatensor's transports, but as a tuned RPC would move them.

A gradient is neither made where it leaves from nor where it arrives. A message is a row of
gradients, or a piece of a large one, with their descriptions. It is written into a ring of buffers
at the receiver, which decodes it and copies it out into private memory. What is there when a
message begins shares it. Both ends are in C, as those of such an RPC
would be (bench/core/copy_ring.c): Python has a call for what there is to send, and one for a
step that comes. Sending and receiving have threads of their own. Every rank sends
all its gradients to every other, and sums in the order of ranks.
"""

from __future__ import annotations

import ctypes
import functools
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

import torch

import rdmatensor
from bench.benchlib import programs
from rdmatensor._native.ffi import CData, ffi, lib
from rdmatensor.slot import SlotReceiver
from rdmatensor.slot_sender import SlotSender

_HEADS_BYTES = 16 << 10  # COPY_RING_HEADS_BYTES
_CALLS = {
    "get": "rdt_slot_get",
    "release": "rdt_slot_release",
    "buffer": "rdt_slot_tx_buffer",
    "post": "rdt_slot_tx_post",
    "free": "rdt_transfer_free",
}


@dataclass(frozen=True, slots=True)
class Ring:
    """Pieces of so many bytes, in so many slots of two buffers each, in turn."""

    piece_bytes: int
    slots: int


# Over shared memory small enough that both sides find it in caches that they share: a ring of 64
# MiB went to memory and back. Over verbs the rig's link is the bound: smaller pieces leave less to
# be copied out when the last has come.
RINGS = {"shm": Ring(512 << 10, 2), "tcp": Ring(4 << 20, 4), "verbs": Ring(1 << 20, 8)}


class _Calls(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_void_p) for name in _CALLS)


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("values", ctypes.c_void_p),
        ("len_bytes", ctypes.c_uint64),
        ("ndim", ctypes.c_uint64),
        ("dims", ctypes.c_uint64 * lib.RDT_MAX_NDIM),
    )


class _Error(ctypes.Structure):
    _fields_ = (
        ("numbers", ctypes.c_int32 * 6),
        ("message", ctypes.c_char * lib.RDT_ERROR_MESSAGE_BYTES),
    )


class _Ring(ctypes.Structure):
    _fields_ = (
        ("calls", ctypes.POINTER(_Calls)),
        ("slots", ctypes.POINTER(ctypes.c_void_p)),
        ("slots_count", ctypes.c_uint64),
        ("piece_bytes", ctypes.c_uint64),
        ("timeout_ns", ctypes.c_uint64),
        ("number", ctypes.c_uint64),
        ("err", _Error),
    )


def _address(of: CData) -> int:
    return int(ffi.cast("uintptr_t", of))


def flat_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return a dense tensor's elements in a row, without a copy."""
    return tensor.detach().view(-1)


def table_of(tensors: Sequence[torch.Tensor]) -> ctypes.Array[_Tensor]:
    """Return what C has to know of tensors, which must outlive it."""
    table = (_Tensor * len(tensors))()
    for one, tensor in zip(table, tensors, strict=True):
        one.values, one.len_bytes, one.ndim = tensor.data_ptr(), tensor.nbytes, tensor.dim()
        one.dims[: tensor.dim()] = tuple(tensor.shape)
    return table


@functools.cache
def _library() -> ctypes.CDLL:
    """Return the functions of copy_ring.h; a call lets other threads of Python run."""
    return ctypes.CDLL(str(programs.build_copy_ring()))


class End:
    """One end of a ring in C. Threads: one at a time."""

    def __init__(
        self, ring: Ring, slots: Sequence[SlotReceiver | SlotSender], patience_s: float
    ) -> None:
        _library()  # compiled before anything is timed
        found = {name: _address(ffi.addressof(lib, call)) for name, call in _CALLS.items()}
        self._calls = _Calls(**found)
        handles = (ctypes.c_void_p * len(slots))(
            *(_address(slot._handle.get("ring")) for slot in slots)  # type: ignore[union-attr]
        )
        self._kept = slots, handles
        self._ring = _Ring(
            ctypes.pointer(self._calls),
            handles,
            len(slots),
            ring.piece_bytes,
            int(patience_s * 1e9),
            0,
        )

    def send(self, table: ctypes.Array[_Tensor], order: Sequence[int]) -> None:
        """Send tensors of a table, in this order."""
        places = (ctypes.c_uint64 * len(order))(*order)
        count = ctypes.c_uint64(len(order))
        self._check(_library().copy_ring_send(ctypes.byref(self._ring), table, places, count))

    def receive(self, table: ctypes.Array[_Tensor], due_bytes: int) -> None:
        """Receive so many bytes into the tensors of a table."""
        count, due = ctypes.c_uint64(len(table)), ctypes.c_uint64(due_bytes)
        self._check(_library().copy_ring_receive(ctypes.byref(self._ring), table, count, due))

    def _check(self, status: int) -> None:
        if status < 0:
            raise RuntimeError(f"the copy variant's ring: {self._ring.err.message.decode()}")


def _placed(table: ctypes.Array[_Tensor], index: int, gradient: torch.Tensor) -> int:
    """Let a tensor of a table have a gradient's values; return its number."""
    if not gradient.is_contiguous():
        raise ValueError(f"gradient {index} is not dense")
    table[index].values = gradient.data_ptr()
    return index


class Receiver:
    """A thread that copies one peer's gradients out of its slots, a step at a time."""

    def __init__(self, end: End, like: Sequence[torch.Tensor], patience_s: float) -> None:
        # What is one tensor under several numbers arrives in one.
        places = {tensor.data_ptr(): torch.empty(tensor.shape) for tensor in like}
        shaped = [places[tensor.data_ptr()] for tensor in like]
        self.private = [flat_of(tensor) for tensor in shaped]
        self._end, self._patience_s = end, patience_s
        self._table = table_of(shaped)
        self._due = sum(tensor.nbytes for tensor in shaped)
        self._may_fill = threading.Semaphore(0)
        self._is_full = threading.Semaphore(0)
        self._is_closing = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while self._may_fill.acquire(timeout=self._patience_s) and not self._is_closing:
                self._end.receive(self._table, self._due)
                self._is_full.release()
        except BaseException as error:  # noqa: BLE001  wait() tells it to the thread that trains
            self._error = error
            self._is_full.release()

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
    ) -> None:
        self._parameters, self._rank, self._ranks = list(parameters), rank, ranks
        self._patience_s, self._pushed = patience_s, 0
        self._world = rdmatensor.join(rdmatensor.FileStore(folder / "slots"), rank, ranks)
        self._ring = RINGS[os.environ.get("RDMATENSOR_TRANSPORT", "shm")]
        most = (_HEADS_BYTES + self._ring.piece_bytes,)
        peers = [peer for peer in range(ranks) if peer != rank]
        names = [f"gradients {number}" for number in range(self._ring.slots)]
        slots = {
            peer: [
                self._world.recv_slot(name, most, "uint8", src=peer, kind="bounded")
                for name in names
            ]
            for peer in peers
        }
        senders = {
            peer: [
                self._world.endpoint(peer).send_slot(
                    name, most, "uint8", kind="bounded", timeout_s=patience_s
                )
                for name in names
            ]
            for peer in peers
        }
        self._senders = [End(self._ring, of_peer, patience_s) for of_peer in senders.values()]
        self._receivers = {
            peer: Receiver(
                End(self._ring, of_peer, patience_s),
                self._parameters,
                patience_s,
            )
            for peer, of_peer in slots.items()
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
        table = table_of(self._parameters)  # where a gradient lies is known when it comes
        count, is_open = 0, True
        try:
            while is_open:
                gone = [self._out.get()]
                while not self._out.empty():
                    gone.append(self._out.get())
                is_open = gone[-1] is not None
                order = [_placed(table, *item) for item in gone if item is not None]
                for end in self._senders:
                    end.send(table, order)
                count += len(order)  # those of `gone` stay alive until they have left
                if order and count % len(self._parameters) == 0:
                    self._sent.put(None)
        except BaseException as error:  # noqa: BLE001  finish() tells it
            self._sent.put(error)

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
