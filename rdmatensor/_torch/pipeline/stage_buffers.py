"""Places what a pipeline stage sends in the arena: activations, and gradients of its inputs.

A device reads what it sends in registered memory; tensors in torch's own memory are copied on their
way. A pass makes the same allocations in the same order each time. The first pass shows which of
them are sent, and in later passes these get places in the arena.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import torch

from rdmatensor._backend.extension import load_extension
from rdmatensor.context import Context
from rdmatensor.torch import MIN_BYTES, ArenaAllocations, empty, has_allocator

_CHANGES_MAX = 8  # a pass whose allocations change more often is left alone
_ALIGNMENT_BYTES = 64  # of a tensor, as torch's own allocator has it

T = TypeVar("T")


class _PlannedPlaces(Protocol):
    """The part of rdmatensor._c10d.PlannedPlaces that is used here."""

    def begin(self, served: list[tuple[int, int]]) -> None: ...

    def end(self) -> None: ...

    def find(self, address: int) -> int: ...

    def is_taken(self, place: int) -> bool: ...


@dataclass(frozen=True, slots=True)
class _Slot:
    """Memory for what one pass sends, and the place of each tensor in it."""

    places: _PlannedPlaces
    addresses: list[int]

    def is_free(self) -> bool:
        return not any(self.places.is_taken(place) for place in range(len(self.addresses)))


class StageBuffers:
    """One direction of one stage. Used by the thread that runs its passes.

    There are as many slots as passes of which a tensor is alive: a pass that finds no free slot
    makes one, which is reported to note().
    """

    def __init__(self, context: Context, note: Callable[[ArenaAllocations], None]) -> None:
        self._context = context
        self._note = note
        self._make: Any = load_extension().PlannedPlaces
        self._learnt: list[tuple[int, int]] = []  # of each tensor: allocation number, bytes
        self._slots: list[_Slot] = []
        self._changes = 0
        self._is_over = False

    def run(self, call: Callable[[], T], sent: Callable[[], Iterable[object]]) -> T:
        """Make a pass by call(); sent() returns afterwards what of it is to be sent."""
        slot = None if self._is_over or not self._has_devices() else self._free_slot()
        if slot is None or not has_allocator():
            return call()
        slot.places.begin([(number, place) for place, (number, _) in enumerate(self._learnt)])
        try:
            result = call()
        finally:
            slot.places.end()
        self._learn(slot, sent())
        return result

    def _has_devices(self) -> bool:
        """Whether a device carries anything; the other paths read any memory."""
        return self._context.counters().verbs_bytes > 0

    def _free_slot(self) -> _Slot | None:
        for slot in self._slots:
            if slot.is_free():
                return slot
        spans, end = [], 0
        for _, size_bytes in self._learnt:
            spans.append((end, size_bytes))
            end += -(-size_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
        try:
            memory = empty(max(end, 1), dtype=torch.uint8, context=self._context)
        except torch.OutOfMemoryError:
            self._is_over = True
            self._note(ArenaAllocations(missed=len(spans), missed_bytes=end))
            return None
        if spans:
            self._note(ArenaAllocations(count=len(spans), size_bytes=end))
        addresses = [memory.data_ptr() + offset for offset, _ in spans]
        self._slots.append(_Slot(self._make(memory, spans), addresses))
        return self._slots[-1]

    def _learn(self, slot: _Slot, sent: Iterable[object]) -> None:
        """Find where a pass placed what it sends, and which allocations those were."""
        found = dict.fromkeys(self._allocations_of(slot, sent))
        if set(found) == set(self._learnt):
            return
        self._learnt, self._slots = list(found), []
        self._changes += 1
        self._is_over = self._changes > _CHANGES_MAX

    def _allocations_of(self, slot: _Slot, sent: Iterable[object]) -> Iterator[tuple[int, int]]:
        for tensor in sent:
            if not isinstance(tensor, torch.Tensor) or tensor.layout != torch.strided:
                continue
            storage = tensor.untyped_storage()
            address, size_bytes = storage.data_ptr(), storage.nbytes()
            if address in slot.addresses:
                yield self._learnt[slot.addresses.index(address)]
            elif size_bytes >= MIN_BYTES and slot.places.find(address) >= 0:
                yield slot.places.find(address), size_bytes
