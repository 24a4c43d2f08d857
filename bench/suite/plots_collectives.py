"""Pictures of collectives: time and bus bandwidth against size, a part for each operation.

Bands reach from the 10th to the 90th hundredth of the samples. Floors are grey: dots for a backend
that does nothing, dashes for the copies alone. Where the ranks write and read their tensors, the
time of the same loop without communication is taken off.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.benchlib.record import Record, number, text
from bench.suite import collectives, samples
from bench.suite.collective_cells import row_of
from bench.suite.plots_base import WIDTH_IN, Picture, save, size_axis, tidy, time_axis, value_axis
from bench.suite.settings import PLAIN

_COLUMNS = 3
_NO_RATE_BYTES = 1024
_COLOURS = {  # that the colour-blind tell apart
    "rdmatensor": "#0072B2",
    "gloo": "#CC79A7",
    "OpenMPI": "#D55E00",
    collectives.NOTHING: "#444444",
    collectives.COPY_FLOOR: "#444444",
}
_MARKS = {PLAIN: "o", "same": "o", "fresh": "s", "arena": "D"}
_LINES = {collectives.NOTHING: ":", collectives.COPY_FLOOR: "--", "fresh": "--", "arena": "-."}
Value = Callable[[Record, str], float]


def pictures(records: Sequence[Record], folder: Path) -> list[Picture]:
    """For each path and number of ranks: time, bandwidth, and time where ranks use the tensors."""
    found = []
    moving = [record for record in records if record["op"] != "barrier"]
    for transport, ranks in dict.fromkeys((one["transport"], one["ranks"]) for one in moving):
        of_group = [one for one in moving if (one["transport"], one["ranks"]) == (transport, ranks)]
        plain = [one for one in of_group if row_of(one) == PLAIN]
        if all(one["peer"] == "floor" for one in plain):
            plain = []  # the copies stand beside other rows: alone they show nothing
        rated = [
            one
            for one in plain
            if one["contestant"] != collectives.NOTHING and number(one, "size") >= _NO_RATE_BYTES
        ]
        used = [one for one in of_group if row_of(one) != PLAIN and collectives.net_ns(one) > 0]
        where, name = f"over {transport}, {ranks} ranks", f"collectives_{transport}_{ranks}"
        for some, value, label, file, caption in (
            (plain, _time, "", name, f"Collectives {where}: time of a call."),
            (
                rated,
                _rate,
                "busbw, GB/s",
                f"{name}_rate",
                f"Collectives {where}: bus bandwidth by nccl-tests' definitions.",
            ),
            (
                used,
                _net,
                "",
                f"{name}_used",
                f"Collectives {where}, of tensors that the ranks write and read in each iteration, "
                "less the same loop without communication; one of the fresh ones is new each time.",
            ),
        ):
            if some:
                _grid(some, value, label, folder / f"{file}.png")
                found.append(Picture(f"{file}.png", caption))
    return found


def _time(record: Record, quantile: str) -> float:
    return samples.figure(record, quantile)


def _rate(record: Record, quantile: str) -> float:
    factor = collectives.bus_factor(text(record, "op"), int(number(record, "ranks")))
    return number(record, "moved_bytes") * factor / samples.figure(record, quantile)


def _net(record: Record, _: str) -> float:
    return collectives.net_ns(record)


def _grid(records: Sequence[Record], value: Value, label: str, path: Path) -> None:
    operations = list(dict.fromkeys(text(record, "op") for record in records))
    columns = min(_COLUMNS, len(operations))
    rows = -(-len(operations) // columns)
    figure = Figure(figsize=(WIDTH_IN, 0.8 + 2.5 * rows), layout="constrained")
    parts = figure.subplots(rows, columns, sharey=True, squeeze=False)
    fullest: Axes = parts[0][0]
    for axes, operation in zip(parts.flatten(), operations, strict=False):
        of_operation = [record for record in records if record["op"] == operation]
        _part(axes, of_operation, value)
        time_axis(axes)
        if label:
            value_axis(axes)
            axes.set_ylabel(label)
        tidy(axes, operation)
        if len(axes.get_lines()) > len(fullest.get_lines()):
            fullest = axes  # an operation that lacks somebody lacks his name
    for place, axes in enumerate(parts.flatten()):
        if place % columns > 0:
            axes.set_ylabel("")
        if place + columns < len(operations):
            axes.set_xlabel("")
        if place >= len(operations):
            axes.set_visible(False)
    save(figure, path, names=fullest)


def _part(axes: Axes, records: Sequence[Record], value: Value) -> None:
    lines: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        lines.setdefault((text(record, "contestant"), row_of(record)), []).append(record)
    for (who, row), line in lines.items():
        ordered = sorted(line, key=lambda one: number(one, "size"))
        xs = [number(one, "size") for one in ordered]
        name = who if row == PLAIN else f"{who}, {row}"
        style = _style(who, row)
        axes.plot(xs, [value(one, "median_ns") for one in ordered], label=name, **style)
        if row == PLAIN and ordered[0]["peer"] != "floor":
            low, high = ([value(one, tail) for one in ordered] for tail in ("p10", "p90"))
            axes.fill_between(xs, low, high, color=style["color"], alpha=0.12, linewidth=0)
    size_axis(axes, [number(record, "size") for record in records], step=2)


def _style(who: str, row: str) -> dict[str, Any]:
    is_floor = who in _LINES
    return {
        "color": _COLOURS.get(who, "#8C564B"),
        "marker": "" if is_floor else _MARKS.get(row, "o"),
        "markersize": 4,
        "linestyle": _LINES.get(who, _LINES.get(row, "-")),
        "linewidth": 2.2 if who == "rdmatensor" and row != "fresh" else 1.4,
    }
