"""Tables of `bench busy`: each cell of both backends, and means of ratios.

A ratio is rdmatensor's figure over Gloo's: below 1 rdmatensor is faster. The mean, p50, p99 and
processor time of a cell are medians of its rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.benchlib.record import Record, number, text
from bench.benchlib.units import size_text, time_text
from bench.suite import samples
from bench.suite.busy import GLOO, WAIT
from bench.suite.layout import geometric, layout
from bench.suite.peers import OURS
from bench.suite.settings import KIB

SMALL_BYTES = 64 * KIB  # up to here, ratios have a mean of their own
_WAIT_MOST_NS = 2e6  # processor time of a rank that waits for 100 ms
_CELL_HEADS = (
    *("call", "with", "mean", "Gloo's", "ratio", "worst", "Gloo's"),
    *("p50", "Gloo's", "p99", "Gloo's", "CPU", "Gloo's"),
)
LOAD_HEADS = ("ranks", "with", "cells", "to 64 KiB", "above", "slower", "slowest cell")


@dataclass(frozen=True, slots=True)
class Cell:
    """A call under a load, as both backends had it."""

    ours: Record
    gloo: Record

    @property
    def name(self) -> str:
        """The call and its size."""
        size = number(self.ours, "size")
        return f"{text(self.ours, 'op')} {size_text(size)}" if size else text(self.ours, "op")

    @property
    def group(self) -> str:
        """Whose ranks, and over which path."""
        return f"{self.ours['ranks']} ranks, {self.ours['transport']}"

    @property
    def load(self) -> tuple[str, str]:
        """The ranks, and what else used the cores."""
        return self.group, text(self.ours, "timed")

    def ratio(self, of: Callable[[Record], float]) -> float:
        """Return the figure over Gloo's; processor time may be too short to be counted."""
        return of(self.ours) / max(1.0, of(self.gloo))


def mean_ns(record: Record) -> float:
    """Return the median of the rounds' means."""
    return number(record, "median_ns")


def worst_ns(record: Record) -> float:
    """Return the mean of the worst round."""
    return max(samples.raw_of(record))


def p99_ns(record: Record) -> float:
    """Return the 99th percentile of a call."""
    return number(record, "p99_ns")


def cpu_ns(record: Record) -> float:
    """Return the processor time of a call."""
    return number(record, "call_cpu_ns")


def cells_of(records: Sequence[Record]) -> list[Cell]:
    """Return the cells that both backends have, but for waits."""
    return [one for one in _pairs(records) if one.ours["op"] != WAIT]


def _pairs(records: Sequence[Record]) -> list[Cell]:
    keys = ("transport", "ranks", "op", "size", "timed")
    found: dict[tuple[object, ...], dict[str, Record]] = {}
    for record in records:
        cell = tuple(record[key] for key in keys)
        found.setdefault(cell, {})[text(record, "contestant")] = record
    return [Cell(both[OURS], both[GLOO]) for both in found.values() if {OURS, GLOO} <= set(both)]


def show(records: Sequence[Record]) -> str:
    """Return all cells, a line for each load, and waits."""
    parts = [layout(_CELL_HEADS, map(_row, cells_of(records)))] if cells_of(records) else []
    if not parts:
        parts = [layout(("call", "with", "mean", "worst"), map(_row_alone, records))]
    else:
        parts.append(layout(LOAD_HEADS, load_rows(cells_of(records))))
    return "\n\n".join([*parts, *waits(records)])


def _row(cell: Cell) -> tuple[str, ...]:
    times = [
        [time_text(of(record)) for record in (cell.ours, cell.gloo)]
        for of in (mean_ns, worst_ns, lambda record: number(record, "p50_ns"), p99_ns, cpu_ns)
    ]
    (mean, *others) = times
    return (
        f"{cell.name}, {cell.group}",
        text(cell.ours, "timed"),
        *(*mean, f"{cell.ratio(mean_ns):.2f}"),
        *(word for both in others for word in both),
    )


def _row_alone(record: Record) -> tuple[str, ...]:
    cell = Cell(record, record)
    times = (time_text(of(record)) for of in (mean_ns, worst_ns))
    return (f"{cell.name}, {cell.group}", text(record, "timed"), *times)


def load_rows(cells: Sequence[Cell]) -> list[tuple[str, ...]]:
    """Return a row for each load: geometric means of ratios, and its slowest cell."""
    found: dict[tuple[str, str], list[Cell]] = {}
    for cell in cells:
        found.setdefault(cell.load, []).append(cell)
    rows = []
    for load, of_load in found.items():
        slowest = max(of_load, key=lambda cell: cell.ratio(mean_ns))
        parts: list[list[float]] = [[], []]
        for cell in of_load:
            parts[number(cell.ours, "size") > SMALL_BYTES].append(cell.ratio(mean_ns))
        rows.append(
            (
                *load,
                f"{len(of_load)}",
                *("-" if not part else f"{geometric(part):.2f}" for part in parts),
                f"{sum(cell.ratio(mean_ns) > 1 for cell in of_load)}",
                f"{slowest.name}: {slowest.ratio(mean_ns):.2f}",
            )
        )
    return rows


def waits(records: Sequence[Record]) -> list[str]:
    """Return what a rank uses of its core while it waits for another one."""
    return [
        f"waits 100 ms in a barrier, {one.group}, {text(one.ours, 'timed')}: CPU "
        f"{time_text(cpu_ns(one.ours))}, Gloo's {time_text(cpu_ns(one.gloo))}; "
        f"wanted: at most {time_text(_WAIT_MOST_NS)}: "
        f"{'met' if cpu_ns(one.ours) <= _WAIT_MOST_NS else 'NOT met'}"
        for one in _pairs(records)
        if one.ours["op"] == WAIT
    ]
