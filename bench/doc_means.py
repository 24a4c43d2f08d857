"""Means of collectives for the documentation: rows of a table, and the picture of the same rows.

A mean is the geometric one over the operations of a size, of another library's time over
rdmatensor's, each without the time of the same loop without communication.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from bench.benchlib.record import Result, number, text
from bench.benchlib.units import size_text
from bench.suite import tables
from bench.suite.layout import geometric
from bench.suite.peers import RDMATENSOR
from bench.suite.settings import PLAIN, ROWS

_COLRDMATENSOR = {"Gloo": "#56B4E9", "Open MPI": "#D55E00"}
_PANELS = {"shm": "rdmatensor over shared memory", "tcp": "rdmatensor over TCP"}
_WIDTH, _HEIGHT = 760, 300
_TOP, _BOTTOM = 70, 250  # of the bars
_PANEL_WIDTH, _BAR_WIDTH = 340, 26
_LOWEST, _HIGHEST = 0.05, 100.0  # of the scale, which is logarithmic
_HALO = 'paint-order="stroke" stroke="white" stroke-width="3"'  # labels may lie on a line


@dataclass(frozen=True, slots=True)
class Row:
    """Another library's times over rdmatensor's, of one way to use tensors; by size in bytes."""

    name: str
    transport: str
    ranks: int
    way: str
    ratios: dict[int, list[float]]

    @property
    def title(self) -> str:
        """The row's first cell."""
        return f"{self.name}, {self.transport}, {self.ranks} ranks, {self.way}"


def rows_of(result: Result, ways: Sequence[str] = (PLAIN, *ROWS)) -> list[Row]:
    """Return the rows of a result of `bench collectives`, barriers left out."""
    records = [record for run in result.runs for record in run.records]
    known = tables.by_name(tables.of_topic(records, "collectives"))
    own = [one for one in known[RDMATENSOR].values() if number(one, "size") > 0]
    found = []
    for way in ways:
        for who, name in tables.NAMES.items():
            ratios: dict[int, list[float]] = {}
            of_way = [one for one in own if tables.row_of(one) == way]
            for one in of_way:
                ratio = tables.over(tables.other_of(one, known.get(who, {})), one)
                if ratio is not None:
                    ratios.setdefault(int(number(one, "size")), []).append(ratio)
            if ratios:
                transport, ranks = text(of_way[0], "transport"), int(number(of_way[0], "ranks"))
                found.append(Row(name, transport, ranks, way, ratios))
    return found


def picture(rows: Sequence[Row]) -> str:
    """Return an SVG with a panel for each transport and a bar for each mean."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}"'
        ' font-family="sans-serif" font-size="12" text-anchor="middle">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        f'<text x="{_WIDTH / 2:.0f}" y="18" font-size="14">Time of collectives relative to'
        " rdmatensor (above 1: rdmatensor is faster)</text>",
    ]
    transports = list(dict.fromkeys(row.transport for row in rows))
    for place, transport in enumerate(transports):
        of_panel = [row for row in rows if row.transport == transport]
        parts += _panel(of_panel, 40 + place * (_PANEL_WIDTH + 20), _PANELS[transport])
    return "\n".join([*parts, "</svg>"]) + "\n"


def _height(value: float) -> float:
    """Return the y of a value; the scale holds what lies outside at its end."""
    share = math.log(value / _LOWEST) / math.log(_HIGHEST / _LOWEST)
    return _BOTTOM - min(max(share, 0.0), 1.0) * (_BOTTOM - _TOP)


def _panel(rows: Sequence[Row], left: int, title: str) -> list[str]:
    right = left + _PANEL_WIDTH - 20
    middle = (left + right) / 2
    parts = [f'<text x="{middle:.0f}" y="40">{title}</text>']
    for place, row in enumerate(rows):
        x = middle - 70 + place * 90
        parts.append(
            f'<rect x="{x:.0f}" y="49" width="10" height="10" fill="{_COLRDMATENSOR[row.name]}"/>'
            f'<text x="{x + 15:.0f}" y="58" text-anchor="start">{row.name}</text>'
        )
    for tick in (0.1, 1, 10, 100):
        y = _height(tick)
        colour = "black" if tick == 1 else "#bbbbbb"
        parts.append(
            f'<line x1="{left}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}" stroke="{colour}"/>'
            f'<text x="{left - 4}" y="{y + 4:.1f}" text-anchor="end">{tick:g}</text>'
        )
    sizes = sorted({size for row in rows for size in row.ratios})
    step = (right - left) / len(sizes)
    for place, size in enumerate(sizes):
        x = left + (place + 0.5) * step
        parts.append(f'<text x="{x:.0f}" y="{_BOTTOM + 18}">{size_text(size)}</text>')
        for bar, row in enumerate(rows):
            at = x + (bar - len(rows) / 2) * (_BAR_WIDTH + 4) + 2
            parts += _bar(geometric(row.ratios[size]), at, _COLRDMATENSOR[row.name])
    return parts


def _bar(mean: float, left: float, colour: str) -> list[str]:
    ends = sorted((_height(mean), _height(1)))
    label = ends[0] - 4 if mean > 1 else ends[1] + 12
    return [
        f'<rect x="{left:.1f}" y="{ends[0]:.1f}" width="{_BAR_WIDTH}"'
        f' height="{ends[1] - ends[0]:.1f}" fill="{colour}"/>',
        f'<text x="{left + _BAR_WIDTH / 2:.1f}" y="{label:.1f}" font-size="10" {_HALO}>'
        f"{mean:.2g}</text>",
    ]
