"""When pushes are applied, and how far workers may be apart."""

from __future__ import annotations

from dataclasses import dataclass

from rdmatensor._native.arguments import U32_MAX, invalid, whole_in
from rdmatensor._native.ffi import lib


@dataclass(frozen=True)
class SSP:
    """Stale synchronous parallel: the fastest worker is at most so many clocks ahead.

    Attributes:
        staleness: Clocks by which a worker may be ahead of the slowest; 0 keeps them in step.
    """

    staleness: int

    def __post_init__(self) -> None:
        """Check the number."""
        whole_in(self.staleness, U32_MAX, "SSP", "staleness")


Mode = str | SSP


def codes_of(mode: Mode) -> tuple[int, int]:
    """Return the C library's mode and staleness."""
    if isinstance(mode, SSP):
        return lib.RDT_PS_SSP, mode.staleness
    if mode == "sync":
        return lib.RDT_PS_SYNC, 0
    if mode == "async":
        return lib.RDT_PS_ASYNC, 0
    raise invalid("join", f"mode={mode!r} is not 'sync', 'async' or ps.SSP(clocks)")


def name_of(mode: Mode) -> str:
    """Return the mode as text; equal modes have equal texts."""
    codes_of(mode)
    return repr(mode) if isinstance(mode, SSP) else mode
