"""Gradients by way of our own transports, but as a tuned RPC would move them.

What is left out is what this library is for: a gradient is not born where it leaves from nor where
it arrives. Each piece is a message with its own description, written into a ring of buffers at
the receiver, who decodes it and copies it out into private memory. Sending and receiving have
threads of their own, beside backward. Every rank sends all its gradients to every other, and sums
in the order of ranks.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

import torch

import rdmatensor
from bench.workers.grpc_server import decode, encode_head, flat_of, pieces_of
from rdmatensor.slot import Slot, SlotSender

_HEAD_BYTES_MAX = 128


@dataclass(frozen=True, slots=True)
class Ring:
    """Pieces of so many bytes, in so many slots of two buffers each, in turn."""

    piece_bytes: int
    slots: int


# What of pieces of 256 KiB to 8 MiB and 2 to 16 slots moves most (copy_rate.py --rings): each piece
# costs a few calls from Python, so smaller ones are slower, and many small tensors over shared
# memory want a deeper ring.
RINGS = {"shm": Ring(4 << 20, 8), "tcp": Ring(4 << 20, 4)}


class Receiver:
    """A thread that copies one peer's gradients out of its slots, a step at a time."""

    def __init__(
        self,
        slots: Sequence[Slot],
        like: Sequence[torch.Tensor],
        piece_bytes: int,
        patience_s: float,
    ) -> None:
        self.private = [torch.empty(tensor.numel()) for tensor in like]
        self._slots, self._patience_s = slots, patience_s
        self._due = sum(len(list(pieces_of(tensor.numel(), piece_bytes))) for tensor in like)
        self._may_fill = threading.Semaphore(0)
        self._is_full = threading.Semaphore(0)
        self._is_closing = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while self._may_fill.acquire(timeout=self._patience_s) and not self._is_closing:
                for number in range(self._due):
                    slot = self._slots[number % len(self._slots)]
                    with slot.get(self._patience_s) as message:
                        index, _, first, values = decode(message.data)
                        self.private[index][first : first + values.numel()].copy_(values)
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
        ring: Ring | None = None,
    ) -> None:
        self._parameters, self._rank, self._ranks = list(parameters), rank, ranks
        self._patience_s, self._pushed = patience_s, 0
        self._world = rdmatensor.join(rdmatensor.FileStore(folder / "slots"), rank, ranks)
        self._ring = ring or RINGS[os.environ.get("RDMATENSOR_TRANSPORT", "shm")]
        most = (_HEAD_BYTES_MAX + self._ring.piece_bytes,)
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
            peer: Receiver(of_peer, self._parameters, self._ring.piece_bytes, patience_s)
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
        count = number = 0
        try:
            while (item := self._out.get()) is not None:
                index, gradient = item
                number = 0 if count % len(self._parameters) == 0 else number
                flat = flat_of(gradient)
                for first, end in pieces_of(flat.numel(), self._ring.piece_bytes):
                    head = encode_head(index, gradient.shape, first)
                    for senders in self._senders:
                        self._send(senders[number % self._ring.slots], head, flat[first:end])
                    number += 1
                count += 1
                if count % len(self._parameters) == 0:
                    self._sent.put(None)
        except BaseException as error:  # noqa: BLE001  finish() tells it
            self._sent.put(error)

    def _send(self, sender: SlotSender, head: bytes, values: torch.Tensor) -> None:
        place = torch.from_numpy(sender.buffer((len(head) + values.nbytes,), self._patience_s))
        place[: len(head)].copy_(torch.frombuffer(head, dtype=torch.uint8))
        place[len(head) :].view(torch.float32).copy_(values)
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
