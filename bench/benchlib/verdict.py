"""Rows of the table: what was measured, beside what, against which target."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# What a loaded machine may take from a ratio before a benchmark fails; the table judges without it.
ROOM = 0.85


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table.

    ratio: the figure that is judged, against the floor where there is one; `better` says which way
        is good. target: None where it is only reported.
    is_absolute: the target is a time or a size of this machine, so it is shown, never asserted.
    """

    what: str
    floor: str
    ours: str
    ratio: float | None
    target: float | None
    better: Literal["higher", "lower"] = "higher"
    is_absolute: bool = False
    note: str = ""

    @property
    def is_met(self) -> bool | None:
        """Whether the target is met, as measured; None without one."""
        return self._holds(1.0)

    @property
    def is_met_with_room(self) -> bool | None:
        """The same, with room for noise; None where nothing may be asserted."""
        return None if self.is_absolute else self._holds(ROOM)

    def _holds(self, room: float) -> bool | None:
        if self.target is None or self.ratio is None:
            return None
        if self.better == "higher":
            return self.ratio >= self.target * room
        return self.ratio <= self.target / room

    @property
    def target_text(self) -> str:
        """The target, or that there is none."""
        if self.target is None:
            return "reported"
        return f"{'>=' if self.better == 'higher' else '<='} {self.target:g}"


def time_text(ns: float) -> str:
    """Nanoseconds for people."""
    if ns < 1e3:
        return f"{ns:.0f} ns"
    if ns < 1e6:
        return f"{ns / 1e3:.2f} us"
    return f"{ns / 1e6:.2f} ms" if ns < 1e9 else f"{ns / 1e9:.2f} s"


def rate_text(size_bytes: float, ns: float) -> str:
    """Time and GB/s (10^9 bytes a second)."""
    return f"{time_text(ns)} ({size_bytes / ns:.2f} GB/s)"


def size_text(size_bytes: float) -> str:
    """Bytes for people, exact."""
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size_bytes >= scale and size_bytes % scale == 0:
            return f"{size_bytes / scale:g} {unit}"
    return f"{size_bytes:g} B"


def _figure(value: float) -> str:
    return f"{value:.0f}" if value >= 1000 else f"{value:.3g}"


def table(rows: list[Row]) -> str:
    """Lay rows out as text."""
    heads = ("what", "floor or rival", "ours", "figure", "target", "met")
    words = {True: "yes", False: "NO", None: "-"}
    cells = [heads] + [
        (
            row.what,
            row.floor,
            row.ours,
            "-" if row.ratio is None else _figure(row.ratio),
            row.target_text,
            words[row.is_met],
        )
        for row in rows
    ]
    widths = [max(len(line[i]) for line in cells) for i in range(len(heads))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in cells
    ]
    lines.insert(1, "  ".join("-" * width for width in widths))
    for row, at in zip(reversed(rows), range(len(lines), 2, -1), strict=True):
        if row.note:
            lines.insert(at, f"    {row.note}")
    return "\n".join(lines)
