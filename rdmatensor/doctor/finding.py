"""What a check found: a level, a subject, a text, and the command that mends it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "slower", "broken"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the doctor's.

    level: "ok"; "slower" than it could be, or a promise of speed that cannot be kept; "broken":
        what was asked for, or what this machine is equipped for, does not work.
    fix: what to type, or to set; empty where there is nothing to mend.
    """

    level: Level
    subject: str
    text: str
    fix: str = ""


def ok(subject: str, text: str) -> Finding:
    """Return a fact that is no reason to do anything."""
    return Finding("ok", subject, text)


def slower(subject: str, text: str, fix: str) -> Finding:
    """Return what costs speed."""
    return Finding("slower", subject, text, fix)


def broken(subject: str, text: str, fix: str) -> Finding:
    """Return what does not work."""
    return Finding("broken", subject, text, fix)
