"""Saved tensors of a unit in a peer's memory between the two passes.

Each has a place that was fixed before the first step. Writes are left in flight, and reads are
started before the backward pass needs them; no message but these is sent.
"""

from __future__ import annotations

import contextlib
import time
import weakref
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from rdmatensor._native.arguments import invalid
from rdmatensor.budget.lender import place_bytes
from rdmatensor.budget.trace import Forward
from rdmatensor.errors import PeerError

LEAST_BYTES = 1 << 16  # smaller tensors stay: a transfer has a fixed cost
IN_FLIGHT = 2  # writes; more would only hold more memory
AHEAD = 3  # reads that are started before the one that is needed


class Move(Protocol):
    """A transfer in flight."""

    def wait(self) -> object:
        """Return when it has ended; raises what ended it."""

    def done(self) -> bool:
        """Whether it has ended."""


class Mover(Protocol):
    """Moves bytes to places and back."""

    def write(self, source: torch.Tensor, offset: int) -> Move:
        """Start to write."""

    def read(self, target: torch.Tensor, offset: int) -> Move:
        """Start to read."""

    def empty(self, len_bytes: int) -> torch.Tensor:
        """Return bytes into which read() can write."""


@dataclass(slots=True)
class Swapped:
    """What swapping came to.

    Attributes:
        written_bytes: Moved out.
        read_bytes: Moved back.
        waited_ns: Wall time that the passes waited for transfers.
        unplanned: Tensors that stayed in memory because they had no place.
    """

    written_bytes: int = 0
    read_bytes: int = 0
    waited_ns: int = 0
    unplanned: int = 0


@dataclass(eq=False)
class _Entry:
    """A storage that was moved out.

    uses: saved tensors that have not asked for it yet. is_changed: while it was written.
    """

    unit: str
    offset: int
    len_bytes: int
    turn: int
    source: torch.Tensor | None
    version: int
    writing: Move | None
    is_changed: bool = False
    uses: int = 0
    reading: Move | None = None
    landing: torch.Tensor | None = None

    def is_written(self) -> bool:
        """Whether its write has ended."""
        return self.writing is None or self.writing.done()


@dataclass(slots=True)
class _Saved:
    """What autograd keeps in place of a tensor."""

    entry: _Entry
    dtype: torch.dtype
    shape: torch.Size
    stride: tuple[int, ...]
    start: int


@dataclass(slots=True)
class _Place:
    """offset: in the lender's memory; holder: what has its bytes there now."""

    offset: int
    len_bytes: int
    holder: weakref.ref[_Entry] | None = None


@dataclass
class Swapper:
    """The swapped tensors of a model: places by unit, and what is moving.

    places: bytes of each tensor of each unit, in the order of saving; None: make them as they are
        saved, and learn them.
    is_stuck: a write may be in flight, whose wait did not return.
    """

    mover: Mover
    places: Mapping[str, Sequence[_Place]] | None
    counts: Swapped = field(default_factory=Swapped)
    is_stuck: bool = False
    learned: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    _order: list[weakref.ref[_Entry]] = field(default_factory=list)
    _pending: deque[_Entry] = field(default_factory=deque)

    def swapping(self, name: str, module: nn.Module, forward: Forward) -> Forward:
        """Return a forward whose saved tensors are moved out."""

        def wrapped(*args: object, **kwargs: object) -> object:
            if not torch.is_grad_enabled():
                return forward(*args, **kwargs)
            call = _Call(self, name, module)
            with torch.autograd.graph.saved_tensors_hooks(call.pack, self._unpack):
                return forward(*args, **kwargs)

        return wrapped

    def move_out(self, unit: str, ordinal: int, tensor: torch.Tensor) -> _Entry | None:
        """Start to write a tensor's storage to its place; None if it has none."""
        len_bytes = tensor.untyped_storage().nbytes()
        place = self._place(unit, ordinal, len_bytes)
        if place is None:
            self.counts.unplanned += 1
            return None
        while self._order and self._order[-1]() is None:
            self._order.pop()
        with _naming(unit):
            writing = self.mover.write(_bytes_of(tensor), place.offset)
        turn, version = len(self._order), tensor._version
        entry = _Entry(unit, place.offset, len_bytes, turn, tensor.detach(), version, writing)
        place.holder = weakref.ref(entry)
        self._order.append(weakref.ref(entry))
        self._pending.append(entry)
        self.counts.written_bytes += len_bytes
        while len(self._pending) > IN_FLIGHT:
            self._finish_write(self._pending.popleft())
        return entry

    def _place(self, unit: str, ordinal: int, len_bytes: int) -> _Place | None:
        if self.places is None:
            self.learned[unit].append(len_bytes)
            return _Place(0, len_bytes)
        places = self.places.get(unit, ())
        if ordinal >= len(places) or places[ordinal].len_bytes < len_bytes:
            return None
        place = places[ordinal]
        if place.holder is not None and place.holder() is not None:
            self.drain()  # what it holds may only be on its way
            if place.holder() is not None:
                return None  # an earlier forward pass has not had its backward pass
        return place

    def _finish_write(self, entry: _Entry) -> None:
        """Wait for a write and give up the memory that it read."""
        source, entry.source = entry.source, None
        if entry.writing is not None:
            try:
                self._wait(entry.writing, entry.unit)
            except PeerError:
                raise
            except BaseException:
                self.is_stuck = True
                raise
            entry.writing = None
        entry.is_changed = source is not None and source._version != entry.version
        if entry.uses > 0:
            self._check_unchanged(entry)

    def _check_unchanged(self, entry: _Entry) -> None:
        if entry.is_changed:
            raise invalid(
                "budget",
                f"a tensor that {entry.unit} saved for its backward pass was changed in place "
                "while it was written: keep this unit, by units= of fit()",
            )

    def _unpack(self, saved: object) -> torch.Tensor:
        if isinstance(saved, torch.Tensor):
            return saved
        assert isinstance(saved, _Saved)
        entry = saved.entry
        whole = self._bytes(entry)
        entry.uses -= 1
        if entry.uses <= 0:
            entry.landing = None  # a second backward pass reads it again
        return whole.view(saved.dtype).as_strided(saved.shape, saved.stride, saved.start)

    def _bytes(self, entry: _Entry) -> torch.Tensor:
        """Return an entry's bytes, and start the reads of those that come next."""
        while self._pending and self._pending[0].is_written():
            self._finish_write(self._pending.popleft())
        if entry.source is not None:  # its write is in flight: the memory is here
            if entry.source._version == entry.version:
                return _bytes_of(entry.source)
            self._finish_write(entry)
        self._check_unchanged(entry)
        is_known = entry.turn < len(self._order) and self._order[entry.turn]() is entry
        self._start_read(entry)
        for turn in range(entry.turn - 1, max(-1, entry.turn - AHEAD - 1), -1) if is_known else ():
            self._start_read(self._order[turn]())
        assert entry.landing is not None
        if entry.reading is not None:
            self._wait(entry.reading, entry.unit)
            entry.reading = None
            self.counts.read_bytes += entry.len_bytes
        if is_known:
            del self._order[entry.turn + 1 :]
        return entry.landing

    def _start_read(self, entry: _Entry | None) -> None:
        if entry is None or entry.landing is not None or entry.source is not None:
            return
        landing = self.mover.empty(entry.len_bytes)
        with _naming(entry.unit):
            entry.reading = self.mover.read(landing, entry.offset)
        entry.landing = landing

    def _wait(self, move: Move, unit: str) -> None:
        start_ns = time.perf_counter_ns()
        try:
            with _naming(unit):
                move.wait()
        finally:
            self.counts.waited_ns += time.perf_counter_ns() - start_ns

    @property
    def is_idle(self) -> bool:
        """Whether no write is in flight."""
        return not self._pending and not self.is_stuck

    def drain(self) -> None:
        """Wait for all writes in flight, then raise the first error of them."""
        first: Exception | None = None
        while self._pending:
            try:
                self._finish_write(self._pending.popleft())
            except Exception as error:  # noqa: BLE001 - raised when no write is in flight
                first = first or error
        if first is not None:
            raise first


@contextlib.contextmanager
def _naming(unit: str) -> Iterator[None]:
    """Name the unit in what the lender's death raises."""
    try:
        yield
    except PeerError as error:
        named = PeerError(error.code, "budget", f"saved tensors of {unit}: {error.detail}")
        named.rank = error.rank
        raise named from error


class _Call:
    """The tensors that one call of a unit saves."""

    def __init__(self, swapper: Swapper, unit: str, module: nn.Module) -> None:
        self._swapper, self._unit = swapper, unit
        self._own = {
            one.untyped_storage()._cdata for one in (*module.parameters(), *module.buffers())
        }
        # Weak references keep an address from being used again, not the memory.
        self._seen: dict[int, tuple[StorageWeakRef, int, weakref.ref[_Entry]]] = {}
        self._ordinal = 0

    def pack(self, tensor: torch.Tensor) -> object:
        if not self._can_move(tensor):
            return tensor
        storage = tensor.untyped_storage()
        _, version, found = self._seen.get(storage._cdata, (None, -1, None))
        entry = None if found is None or version != tensor._version else found()
        if entry is None:
            entry = self._swapper.move_out(self._unit, self._ordinal, tensor)
            self._ordinal += 1
            if entry is None:
                return tensor
            reference = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
            known = (reference, tensor._version, weakref.ref(entry))
            self._seen[storage._cdata] = known
        entry.uses += 1
        return _Saved(
            entry, tensor.dtype, tensor.shape, tensor.stride(), int(tensor.storage_offset())
        )

    def _can_move(self, tensor: torch.Tensor) -> bool:
        if tensor.layout != torch.strided or tensor.device.type != "cpu":
            return False
        if tensor.is_leaf and tensor.requires_grad:
            return False
        size, storage = tensor.numel() * tensor.element_size(), tensor.untyped_storage()
        is_whole = storage.nbytes() % tensor.element_size() == 0
        return size >= LEAST_BYTES and is_whole and storage._cdata not in self._own


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bytes of a tensor's whole storage."""
    count = tensor.untyped_storage().nbytes() // tensor.element_size()
    return tensor.detach().as_strided((count,), (1,), 0).view(torch.uint8)


class _Done:
    def wait(self) -> None:
        """It has ended."""

    def done(self) -> bool:
        """Return True."""
        return True


class NoMover:
    """Moves nothing: for a step on fake tensors, which have no content."""

    def write(self, source: torch.Tensor, offset: int) -> Move:  # noqa: ARG002
        """Write nothing."""
        return _Done()

    def read(self, target: torch.Tensor, offset: int) -> Move:  # noqa: ARG002
        """Read nothing."""
        return _Done()

    def empty(self, len_bytes: int) -> torch.Tensor:
        """Return bytes."""
        return torch.empty(len_bytes, dtype=torch.uint8)


def make_places(saved: Mapping[str, Sequence[int]]) -> tuple[dict[str, list[_Place]], int]:
    """Return a place for each saved tensor of each unit, and the bytes of all."""
    places: dict[str, list[_Place]] = {}
    end = 0
    for unit, sizes in saved.items():
        places[unit] = []
        for size in sizes:
            places[unit].append(_Place(end, size))
            end += place_bytes((size,))
    return places, end
