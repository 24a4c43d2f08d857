"""What a check found: a level, a subject, a text, and the command that fixes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "slower", "broken"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the doctor's output.

    level: "ok"; "slower" than it could be, or a promise of speed that cannot be kept; "broken":
        what was asked for, or what this machine is equipped for, does not work.
    fix: what to type, or to set; empty if there is nothing to fix.
    """

    level: Level
    subject: str
    text: str
    fix: str = ""


@dataclass(frozen=True, slots=True)
class PairFinding(Finding):
    """The result of one rank's writes to another: a cell of the matrix.

    path: "none" if they failed; then there are no times.
    """

    rank: int = 0
    peer: int = 0
    host: str = ""
    peer_host: str = ""
    path: str = "none"
    small_us: float | None = None
    large_gb_s: float | None = None


def ok(subject: str, text: str) -> Finding:
    """Return a fact that requires no action."""
    return Finding("ok", subject, text)


def slower(subject: str, text: str, fix: str) -> Finding:
    """Return what costs speed."""
    return Finding("slower", subject, text, fix)


def broken(subject: str, text: str, fix: str) -> Finding:
    """Return what does not work."""
    return Finding("broken", subject, text, fix)
