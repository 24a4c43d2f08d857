"""The picture of set-up: time until ranks can work, and a rank's memory, against their number.

Lines have a contestant's colour: whole where everybody reaches everybody, dotted where nobody
reaches more than two. The thin grey lines are what setup.py fits: time as a power of the ranks,
memory as a line. Bands reach from the 10th to the 90th hundredth of the samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from bench.benchlib.record import Record, number, text
from bench.suite import samples
from bench.suite.peers import OURS
from bench.suite.plots_base import NARROW_IN, WIDTH_IN, Picture, save, tidy, time_axis, value_axis
from bench.suite.settings import MIB
from bench.suite.setup import LAZY, memory, power

_SHOWN = {LAZY: "lazy", "all_to_all": "all pairs"}  # a barrier lies between them
_COLOURS = {OURS: "#0072B2", "gloo": "#CC79A7"}  # that the colour-blind tell apart
_OTHER = "#8C564B"
_MARKS = {LAZY: "s", "all_to_all": "o"}
_FIT: dict[str, Any] = {"color": "#777777", "linewidth": 0.9, "linestyle": "--", "zorder": 1}
Lines = dict[tuple[str, str], list[Record]]  # contestant and step -> with growing numbers of ranks


def _lines_of(records: Sequence[Record]) -> Lines:
    found: Lines = {}
    for record in records:
        if record["op"] in _SHOWN:
            key = (text(record, "contestant"), text(record, "op"))
            found.setdefault(key, []).append(record)
    ordered = sorted(found, key=lambda key: (key[0] != OURS, key))
    return {key: sorted(found[key], key=lambda one: number(one, "ranks")) for key in ordered}


def _style(who: str, step: str) -> dict[str, Any]:
    return {
        "color": _COLOURS.get(who, _OTHER),
        "marker": _MARKS[step],
        "markersize": 4,
        "linestyle": ":" if step == LAZY else "-",
        "linewidth": 2.0 if who == OURS else 1.4,
        "label": f"{who}, {_SHOWN[step]}",
    }


def _ranks_axis(axes: Axes, ranks: Sequence[float], *, is_named: bool) -> None:
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(sorted(set(ranks))))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("ranks on this host" if is_named else "")


def _draw_time(axes: Axes, lines: Lines) -> None:
    for (who, step), curve in lines.items():
        ranks = [number(one, "ranks") for one in curve]
        axes.plot(ranks, [number(one, "median_ns") for one in curve], **_style(who, step))
        low, high = ([samples.figure(one, tail) for one in curve] for tail in ("p10", "p90"))
        colour = _style(who, step)["color"]
        axes.fill_between(ranks, low, high, color=colour, alpha=0.12, linewidth=0)
        fit = power(curve)
        if fit is not None:
            axes.plot(ranks, [fit[0] * count ** fit[1] for count in ranks], **_FIT)
    time_axis(axes)


def _draw_memory(axes: Axes, lines: Lines) -> None:
    for (who, step), curve in lines.items():
        counted = [one for one in curve if "rank_bytes" in one]
        ranks = [number(one, "ranks") for one in counted]
        held = [number(one, "rank_bytes") / MIB for one in counted]
        axes.plot(ranks, held, **_style(who, step))
        fit = memory(counted)
        if fit is not None:
            fitted = [(fit[0] + fit[1] * (count - 1)) / MIB for count in ranks]
            axes.plot(ranks, fitted, **_FIT)
    value_axis(axes)
    axes.set_ylabel("MiB of a rank")


def setup(records: Sequence[Record], folder: Path) -> list[Picture]:
    """Time until ranks can work, and what a rank then holds, against their number."""
    transports = list(dict.fromkeys(text(record, "transport") for record in records))
    if len({record["ranks"] for record in records}) < 2:
        return []
    has_memory = any("rank_bytes" in record for record in records)
    width_in = WIDTH_IN if len(transports) > 1 else NARROW_IN
    rows = 1 + has_memory
    figure = Figure(figsize=(width_in, 0.6 + 3.6 * rows), layout="constrained")
    parts = figure.subplots(rows, len(transports), sharey="row", sharex=True, squeeze=False)
    for column, transport in enumerate(transports):
        of_path = [one for one in records if one["transport"] == transport]
        lines = _lines_of(of_path)
        ranks = [number(one, "ranks") for one in of_path]
        _draw_time(parts[0][column], lines)
        tidy(parts[0][column], f"{transport}: until ranks can work")
        if has_memory:
            _draw_memory(parts[1][column], lines)
            tidy(parts[1][column], f"{transport}: memory that a rank then holds more")
        for row in range(rows):
            _ranks_axis(parts[row][column], ranks, is_named=row == rows - 1)
            if column > 0:
                parts[row][column].set_ylabel("")
    save(figure, folder / "setup.png")
    caption = (
        "Set-up: from the start of all ranks until the slowest can work, where nobody reaches more "
        "than two others (lazy) and where everybody reaches everybody (all pairs), and what a "
        "rank's memory has grown by. Thin lines are the fitted curves."
    )
    return [Picture("setup.png", caption, width_in)]
