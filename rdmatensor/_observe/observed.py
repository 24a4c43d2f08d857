"""What is read of a context by modules that stand below it."""

from __future__ import annotations

from typing import Protocol

from rdmatensor._native.ffi import CData
from rdmatensor.state import ContextState
from rdmatensor.types import Counters


class Observed(Protocol):
    """The part of rdmatensor.Context that a trace and the metrics read."""

    @property
    def uuid(self) -> bytes:
        """128 random bits that identify the process."""

    def counters(self) -> Counters:
        """Return the totals since the context was opened."""

    def _state(self) -> ContextState: ...

    def _c_ptr(self, call: str) -> CData: ...
