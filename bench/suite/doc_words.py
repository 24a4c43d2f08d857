"""What generated tables of README and docs are made of: cells, spreads, and notes below them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench.benchlib.record import Record, Result
from bench.suite import samples

ROOM = 0.95  # a rival that is faster by less than a twentieth never counts, as in compare.py
_UNITS = ((1e3, "ns", 1.0), (1e6, "us", 1e3), (1e9, "ms", 1e6), (float("inf"), "s", 1e9))


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table of Markdown."""
    lines = (heads, ("---",) * len(heads), *rows)
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def marked(ratio: float) -> str:
    """Return a rival's time over ours, bold where ours is slower."""
    mark = "**" if ratio < ROOM else ""
    digits = 0 if ratio >= 10 else 2 if ratio >= 0.095 else 3
    return f"{mark}{ratio:.{digits}f}{mark}"


def spread(record: Record) -> str:
    """Return a median and the 10th to the 90th hundredth of its samples, in one unit."""
    return spread_of(samples.raw_of(record))


def spread_of(values_ns: Sequence[float]) -> str:
    """Return the same of samples."""
    middle, low, high = (samples.quantile(values_ns, at) for at in (0.5, *samples.BAND.values()))
    unit, scale = next((unit, scale) for most, unit, scale in _UNITS if middle < most)
    return f"{_figure(middle / scale)} {unit} ({_figure(low / scale)}-{_figure(high / scale)})"


def _figure(value: float) -> str:
    """Three digits, or all of them that stand before the point."""
    digits = 2 if value < 9.995 else 1 if value < 99.95 else 0
    whole = f"{value:.{digits}f}"
    return whole.rstrip("0").rstrip(".") if digits else whole


def head(result: Result, of: Sequence[Record]) -> str:
    """Return where a table comes from; of: the records whose turns count."""
    machine = result.machine
    turns = min(len(samples.turns_of(one)) for one in of)
    starts = min(len(samples.starts_of(one)) for one in of)
    shared = f" in {starts} starts of processes" if starts < turns else ""
    return (
        f"`{result.command.replace('rdmatensor', 'python -m rdmatensor', 1)}`, {turns} turns of"
        f" each{shared}, commit {machine['commit']}, {machine['cores']} cores of"
        f" {'a virtual ' if machine['is_virtual'] else ''}{machine['processor']}"
        f" (family/model/stepping {machine['family_model']}), Linux {machine['kernel']};"
        f" others kept {result.quietest.foreign_cpus:.2f} of the cores busy:"
    )


def is_same_machine(one: Result, other: Result) -> bool:
    """Return whether two results may be compared."""
    keys = ("processor", "family_model", "cores")
    return all(one.machine.get(key) == other.machine.get(key) for key in keys)


def is_same_code(one: Result, other: Result) -> bool:
    """Return whether two results are of one machine and one commit."""
    return is_same_machine(one, other) and one.machine.get("commit") == other.machine.get("commit")


@dataclass(frozen=True, slots=True)
class Loss:
    """One thing that a rival does faster.

    cell: size, and how it waits. of: what of that cell, and how tensors are used; empty: all of it.
    ratio: its time over ours.
    """

    topic: str
    who: str
    cell: str
    of: str
    ratio: float
    why: str


class Notes:
    """Reasons below a table: its rows have their letters."""

    def __init__(self) -> None:
        self.losses: list[Loss] = []
        self._letters: dict[str, str] = {}
        self._more: dict[str, str] = {}

    def lost(self, loss: Loss) -> str:
        """Keep a loss; return its reason."""
        self.losses.append(loss)
        return loss.why

    def mark(self, reason: str) -> str:
        """Return the letter of a reason."""
        more, number = divmod(len(self._letters), 26)
        letters = chr(ord("a") + number) * (1 + more)  # a, b, ..., z, aa, bb
        return self._letters.setdefault(reason, letters)

    def marks(self, reasons: Sequence[str]) -> str:
        """Return the letters of several, each once."""
        return ", ".join(self.mark(reason) for reason in dict.fromkeys(reasons))

    def extend(self, reason: str, words: str) -> None:
        """Say more of a reason, below."""
        self._more[reason] = words

    def told(self) -> list[str]:
        """Return each with its letter before it."""
        return [
            f"{letter}: {reason}{self._more.get(reason, '')}"
            for reason, letter in self._letters.items()
        ]

    def lines(self) -> str:
        """Return all of them, a sentence."""
        return "; ".join(self.told()) + "."

    def __contains__(self, reason: str) -> bool:
        return reason in self._letters

    def __bool__(self) -> bool:
        return bool(self._letters)


def with_notes(text: str, notes: Notes) -> str:
    """Return a table and what its letters mean."""
    return f"{text}\n\n{notes.lines()}" if notes else text
