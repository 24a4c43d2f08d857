"""Pictures of a result: times and rates against size, ratios to ours.

Every contestant has one colour and mark in all pictures. Bands reach from the 10th to the 90th
hundredth of the samples. The floor is dashed: of several kinds, the fastest at each size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.benchlib.record import Record, number, text
from bench.suite import plots_scale, plots_setup, reads, samples, streams, tables, tensors
from bench.suite.peers import OURS
from bench.suite.plots_base import (
    NARROW_IN,
    WIDTH_IN,
    Picture,
    save,
    size_axis,
    tidy,
    time_axis,
    value_axis,
)

_FLOOR = "floor"
_STYLES = {  # colours that the colour-blind tell apart
    OURS: ("#0072B2", "o"),
    f"{OURS}, sleeping": ("#56B4E9", "o"),
    tensors.SLOT: ("#0072B2", "o"),
    tensors.DYNAMIC: ("#56B4E9", "o"),
    tensors.COPY: ("#D55E00", "s"),
    tensors.SERIALISED: ("#E69F00", "D"),
    _FLOOR: ("#444444", ""),
    "gRPC C++ unary": ("#D55E00", "s"),
    "gRPC C++ stream": ("#E69F00", "D"),
    "UCX put": ("#009E73", "^"),
    "UCX tag": ("#8C6BB1", "v"),
    reads.UCX: ("#009E73", "^"),
    "gloo": ("#CC79A7", "s"),
}
_OTHERS = ("#8C564B", "P")
_OVER = ", over our"  # ends the name of a line, and the waiting mode follows
_NO_RATE_BYTES = 1024


Series = dict[str, list[Record]]


def series_of(records: Sequence[Record]) -> Series:
    """Return the records of each line, by its name, from small to large; ours first."""
    found: Series = {}
    for record in tables.best_floors(records):
        is_floor = record["peer"] == _FLOOR and record["topic"] == "p2p"  # several kinds of it
        name = _FLOOR if is_floor else text(record, "contestant")
        if record["peer"] in (OURS, _FLOOR) and record.get("wait") == "sleeping":
            name = f"{name}, sleeping"
        found.setdefault(name, []).append(record)
    places = {
        OURS: 0,
        f"{OURS}, sleeping": 1,
        _FLOOR: 2,
        "does nothing": 2,
        f"{_FLOOR}, sleeping": 3,
    }
    names = sorted(found, key=lambda name: places.get(name, 9))
    return {name: sorted(found[name], key=lambda one: number(one, "size")) for name in names}


def _is_floor(name: str) -> bool:
    return name.startswith((_FLOOR, "does nothing"))


def _style(name: str) -> dict[str, Any]:
    who, over, mode = name.partition(_OVER)
    colour, mark = _STYLES.get(who, _OTHERS)
    if _is_floor(name):
        return {
            "color": _STYLES[_FLOOR][0],
            "linestyle": ":" if name.endswith("sleeping") else "--",
            "linewidth": 1.6,
        }
    return {
        "color": colour,
        "marker": mark,
        "markersize": 5,
        "linestyle": ":" if over and mode == " spinning" else "-",
        "linewidth": 2.4 if name.startswith(OURS) else 1.4,
    }


def _draw(
    axes: Axes,
    series: Series,
    value: Callable[[Record, str], float],
    *,
    against: str = "size",
) -> None:
    """Draw lines with their bands; value(record, name of a quantile)."""
    for name, records in series.items():
        xs = [number(record, against) for record in records]
        axes.plot(xs, [value(one, "median_ns") for one in records], label=name, **_style(name))
        if _is_floor(name):
            continue
        low, high = ([value(one, tail) for one in records] for tail in ("p10", "p90"))
        axes.fill_between(xs, low, high, color=_style(name)["color"], alpha=0.12, linewidth=0)


def _time(record: Record, quantile: str) -> float:
    return samples.figure(record, quantile)


def _rate(record: Record, quantile: str) -> float:
    return number(record, "size") / samples.figure(record, quantile)


def p2p(records: Sequence[Record], folder: Path) -> list[Picture]:
    """Two pictures a path and way of timing: time and rate against size, and ratios to our time."""
    pictures = []
    compiled = [
        record
        for record in records
        if record["language"] != "Python"
        and not (streams.is_stream(record) or streams.is_cold(record))
    ]
    for path in dict.fromkeys((text(one, "transport"), text(one, "timed")) for one in compiled):
        of_path = [one for one in compiled if (one["transport"], one["timed"]) == path]
        transport, timed = path
        sizes = [number(record, "size") for record in of_path]
        if len(set(sizes)) < 2:
            continue
        series = series_of(of_path)
        figure = Figure(figsize=(WIDTH_IN, 4.6), layout="constrained")
        left, right = figure.subplots(1, 2)
        _draw(left, series, _time)
        size_axis(left, sizes)
        time_axis(left)
        tidy(left, f"{transport}: {timed}")
        large = {
            name: [one for one in line if number(one, "size") >= _NO_RATE_BYTES]
            for name, line in series.items()
        }
        _draw(right, {name: line for name, line in large.items() if line}, _rate)
        size_axis(right, sizes)
        value_axis(right)
        right.set_ylabel("GB/s (10^9 bytes a second)")
        tidy(right, f"{transport}: rate" + (", one at a time" if _is_alone(of_path) else ""))
        name = f"p2p_{transport}_{timed.replace(' ', '_')}.png"
        save(figure, folder / name)
        pictures.append(
            Picture(name, f"Point to point over {transport}, {timed}: time and rate by size.")
        )
        pictures += _ratios(of_path, sizes, path, folder)
    pictures += _in_a_row([one for one in records if streams.is_stream(one)], folder)
    return [*pictures, *_cold([one for one in records if streams.is_cold(one)], folder)]


def _is_alone(records: Sequence[Record]) -> bool:
    return all(record.get("depth", 1) == 1 for record in records)  # older files do not say


def _in_a_row(records: Sequence[Record], folder: Path) -> list[Picture]:
    """A picture for each path: rate, and processor time of both sides, one way and both ways."""
    pictures = []
    for transport in dict.fromkeys(text(record, "transport") for record in records):
        of_path = [one for one in records if one["transport"] == transport]
        sizes = [number(record, "size") for record in of_path]
        if len(set(sizes)) < 2:
            continue
        figure = Figure(figsize=(WIDTH_IN, 6.4), layout="constrained")
        parts = figure.subplots(2, 2, sharex=True, sharey="row")
        for column, ways in enumerate(("one way", "both ways")):
            lines: Series = {}
            for record in of_path:
                if record["ways"] == ways:
                    who = f"{record['contestant']}, {record['depth']} in flight, {record['wait']}"
                    lines.setdefault(who, []).append(record)
            for part, value in ((parts[0][column], _rate), (parts[1][column], _cpu)):
                for name, line in lines.items():
                    ordered = sorted(line, key=lambda one: number(one, "size"))
                    if value is _cpu:  # it is not known of all
                        ordered = [one for one in ordered if samples.COSTS[0] in one]
                    if not ordered:
                        continue
                    xs = [number(one, "size") for one in ordered]
                    ys = [value(one, "median_ns") for one in ordered]
                    part.plot(xs, ys, label=name, **_row_style(ordered[0]))
                size_axis(part, sizes)
                value_axis(part)
            tidy(parts[0][column], f"{transport}, {ways}: rate each way")
            tidy(parts[1][column], "processor time of both sides")
            parts[0][column].set_xlabel("")
        parts[0][0].set_ylabel("GB/s")
        parts[1][0].set_ylabel("CPU seconds for 1 GB")
        name = f"p2p_{transport}_in_a_row.png"
        save(figure, folder / name, most_columns=3)
        caption = f"Messages in a row over {transport}, 1 and 16 in flight, one way and both ways."
        pictures.append(Picture(name, caption))
    return pictures


def _cold(records: Sequence[Record], folder: Path) -> list[Picture]:
    """A picture for each path: time of each step with memory, by its size."""
    pictures = []
    for transport in dict.fromkeys(text(record, "transport") for record in records):
        lines: Series = {}
        for record in records:
            if record["transport"] == transport:
                step = text(record, "timed").removeprefix(streams.COLD)
                lines.setdefault(step, []).append(record)
        lines = {step: line for step, line in lines.items() if len(line) > 1}
        if not lines:  # of one size
            continue
        figure = Figure(figsize=(NARROW_IN, 4.6), layout="constrained")
        axes = figure.subplots()
        for step, line in lines.items():
            ordered = sorted(line, key=lambda one: number(one, "size"))
            is_floor = ordered[0]["peer"] == _FLOOR
            style: dict[str, Any] = {"color": _STYLES[_FLOOR][0], "linestyle": "--"}
            axes.plot(
                [number(one, "size") for one in ordered],
                [number(one, "median_ns") for one in ordered],
                label=f"{_FLOOR}: {step}" if is_floor else step,
                **(style if is_floor else {"marker": "o", "markersize": 4}),
            )
        size_axis(axes, [number(one, "size") for line in lines.values() for one in line])
        axes.set_xlabel("size of the memory")
        time_axis(axes)
        tidy(axes, f"{transport}: cold start")
        name = f"p2p_{transport}_cold.png"
        save(figure, folder / name, most_columns=2)
        caption = f"Cold start over {transport}: what memory costs before it can be written to."
        pictures.append(Picture(name, caption, NARROW_IN))
    return pictures


def _cpu(record: Record, _: str) -> float:
    return sum(number(record, name) for name in samples.COSTS)


_ROW_COLOURS = {  # one in flight, and many
    OURS: ("#0072B2", "#56B4E9"),
    _FLOOR: ("#444444", "#999999"),
    "grpc-cpp": ("#D55E00", "#F0A878"),
    "ucx": ("#009E73", "#80CFB9"),
}


def _row_style(record: Record) -> dict[str, Any]:
    """Who by colour, how many in flight by mark and shade, who sleeps by dots."""
    is_ours, is_deep = record["peer"] == OURS, number(record, "depth") > 1
    return {
        "color": _ROW_COLOURS[text(record, "peer")][is_deep],
        "marker": "o" if is_deep else "s",
        "markersize": 4,
        "linestyle": ":" if record["wait"] == "sleeping" else "-" if is_ours else "--",
        "linewidth": 1.6,
    }


def ratio_series(records: Sequence[Record]) -> Series:
    """Return the lines of others with their factor: waiting alike, and sleepers over our spinning.

    Who sleeps has two lines where we were measured both ways, and says over which of ours.
    """
    ours = tables.ours_of(records)
    found: Series = {}
    for name, line in series_of(records).items():
        for record in line:
            alike, mixed = tables.factors_of(record, ours)
            is_sleeper = record.get("wait") == "sleeping" and record["peer"] != _FLOOR
            if alike is not None:
                of_alike = f"{name}{_OVER} sleeping" if is_sleeper else name
                found.setdefault(of_alike, []).append({**record, "factor": alike})
            if mixed is not None:
                found.setdefault(f"{name}{_OVER} spinning", []).append({**record, "factor": mixed})
    return found


def _ratios(
    records: Sequence[Record], sizes: Sequence[float], path: tuple[str, str], folder: Path
) -> list[Picture]:
    """Others' time over ours, waiting alike where the line does not say else; below 1 we lose."""
    series = ratio_series(records)
    if not series:
        return []

    def ratio(record: Record, quantile: str) -> float:
        return (
            samples.figure(record, quantile)
            / number(record, "median_ns")
            * number(record, "factor")
        )

    figure = Figure(figsize=(NARROW_IN, 4.2), layout="constrained")
    axes = figure.subplots()
    _draw(axes, series, ratio)
    size_axis(axes, sizes)
    axes.axhline(1, color=_STYLES[OURS][0], linewidth=2.4, label=OURS)
    value_axis(axes)
    axes.set_ylabel("times our time (log)")
    transport, timed = path
    tidy(axes, f"{transport}, {timed}: how many times as long as rdmatensor others take")
    name = f"p2p_{transport}_{timed.replace(' ', '_')}_ratio.png"
    save(figure, folder / name)
    caption = f"Over {transport}, {timed}: others' time over ours; below the line we lose."
    return [Picture(name, caption, NARROW_IN)]


PICTURES: dict[str, Callable[[Sequence[Record], Path], list[Picture]]] = {
    "p2p": p2p,
    "setup": plots_setup.setup,
    "scale": plots_scale.scale,
}
