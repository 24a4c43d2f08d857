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

_COLOURS = {"Gloo": "#56B4E9", "Open MPI": "#D55E00"}
_PANELS = {"shm": "rdmatensor over shared memory", "tcp": "rdmatensor over TCP"}
# Narrow, with one panel below the other: a phone shows it at nearly this size.
_WIDTH, _LEFT, _RIGHT = 420, 40, 410
_HEAD, _PANEL_HEIGHT = 48, 250
_TOP, _BOTTOM = 62, 218  # of the bars, in a panel
_BAR_WIDTH = 36
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
    transports = list(dict.fromkeys(row.transport for row in rows))
    height = _HEAD + _PANEL_HEIGHT * len(transports)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}"'
        f' viewBox="0 0 {_WIDTH} {height}"'
        ' font-family="sans-serif" font-size="15" text-anchor="middle">',
        f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
        _text(_WIDTH / 2, 20, "Time of collectives relative to rdmatensor", 'font-size="17"'),
        _text(_WIDTH / 2, 41, "above 1: rdmatensor is faster"),
    ]
    for place, transport in enumerate(transports):
        of_panel = [row for row in rows if row.transport == transport]
        parts += _panel(of_panel, _HEAD + place * _PANEL_HEIGHT, _PANELS[transport])
    return "\n".join([*parts, "</svg>"]) + "\n"


def _text(x: float, y: float, words: str, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}"{" " * bool(more)}{more}>{words}</text>'


def _height(value: float) -> float:
    """Return the y of a value in a panel; the scale holds what lies outside at its end."""
    share = math.log(value / _LOWEST) / math.log(_HIGHEST / _LOWEST)
    return _BOTTOM - min(max(share, 0.0), 1.0) * (_BOTTOM - _TOP)


def _panel(rows: Sequence[Row], top: int, title: str) -> list[str]:
    middle = (_LEFT + _RIGHT) / 2
    parts = [_text(middle, top + 22, title, 'font-weight="bold"')]
    for place, row in enumerate(rows):
        x = middle - 100 + place * 110
        parts.append(
            f'<rect x="{x:.0f}" y="{top + 33}" width="13" height="13" fill="{_COLOURS[row.name]}"/>'
        )
        parts.append(_text(x + 19, top + 45, row.name, 'text-anchor="start"'))
    for tick in (0.1, 1, 10, 100):
        y = top + _height(tick)
        colour = "black" if tick == 1 else "#bbbbbb"
        parts.append(
            f'<line x1="{_LEFT}" x2="{_RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="{colour}"/>'
        )
        parts.append(_text(_LEFT - 5, y + 5, f"{tick:g}", 'text-anchor="end"'))
    sizes = sorted({size for row in rows for size in row.ratios})
    step = (_RIGHT - _LEFT) / len(sizes)
    for place, size in enumerate(sizes):
        x = _LEFT + (place + 0.5) * step
        parts.append(_text(x, top + _BOTTOM + 21, size_text(size)))
        for bar, row in enumerate(rows):
            at = x + (bar - len(rows) / 2) * (_BAR_WIDTH + 4) + 2
            parts += _bar(geometric(row.ratios[size]), at, top, _COLOURS[row.name])
    return parts


def _bar(mean: float, left: float, top: int, colour: str) -> list[str]:
    ends = sorted((top + _height(mean), top + _height(1)))
    label = ends[0] - 5 if mean > 1 else ends[1] + 15
    return [
        f'<rect x="{left:.1f}" y="{ends[0]:.1f}" width="{_BAR_WIDTH}"'
        f' height="{ends[1] - ends[0]:.1f}" fill="{colour}"/>',
        _text(left + _BAR_WIDTH / 2, label, f"{mean:.2g}", f'font-size="14" {_HALO}'),
    ]
