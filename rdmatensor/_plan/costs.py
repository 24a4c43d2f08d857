"""What a step by a plan costs: what was sent, and how long it held the backward thread."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TypedDict

from rdmatensor._plan.buffers import SentBuffers
from rdmatensor._plan.memory import Counts
from rdmatensor.context import Context

_COUNTED = (
    *("writes", "moved_bytes", "copied_bytes", "control_messages", "credits_alone"),
    *("registrations", "wire_bytes", "wakeups_sent", "wait_s"),
)


class Described(TypedDict):
    """The result of PlannedModel.describe(), which documents each key."""

    steps: int
    buckets: int
    arena_bytes: int
    sent_bytes: int
    in_place: int
    copied: int
    copied_bytes: int
    traced: int
    thinned_bytes: int
    posting_s: float
    ending_s: float
    wires: list[str]
    last_step: dict[str, float]


class Costs:
    """Totals since creation, and those of the last step.

    posting_s: in the calls that start a bucket's sum, including what they sum themselves.
    ending_s: at the end of backward passes, until the last sum was there.
    Used by the thread that runs backward.
    """

    def __init__(self, context: Context, counts: Counts, buffers: SentBuffers) -> None:
        self._context = context
        self._counts = counts
        self._buffers = buffers
        self._buffers_before = 0  # bytes copied by buffers that these have replaced
        self.posting_s = self.ending_s = 0.0
        self.last_step: dict[str, float] = {}
        self._before = self._spent()

    def go_on_with(self, buffers: SentBuffers) -> None:
        """Count the copies of these buffers from now on."""
        self._buffers_before += self._buffers.copied_bytes
        self._buffers = buffers

    @contextmanager
    def posting(self) -> Iterator[None]:
        """Count the time inside as posting."""
        began_s = time.perf_counter()
        yield
        self.posting_s += time.perf_counter() - began_s

    @contextmanager
    def ending(self) -> Iterator[None]:
        """Count the time inside as waiting at the end."""
        began_s = time.perf_counter()
        yield
        self.ending_s += time.perf_counter() - began_s

    def end_step(self) -> None:
        """Note the end of a step that sent."""
        spent = self._spent()
        self.last_step = {name: spent[name] - self._before[name] for name in spent}
        self._before = spent

    def _spent(self) -> dict[str, float]:
        counters = asdict(self._context.counters())
        spent: dict[str, float] = {name: counters[name] for name in _COUNTED}
        counts = self._counts
        spent["copied_bytes"] += counts.copied_bytes + counts.aside_bytes + counts.thinned_bytes
        spent["copied_bytes"] += self._buffers_before + self._buffers.copied_bytes
        return {**spent, "posting_s": self.posting_s, "ending_s": self.ending_s}
