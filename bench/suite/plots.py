"""Pictures of a result: a panel for each thing that was timed, a line for each of those compared.

Bands reach from the 10th to the 90th percentile of the samples. Baselines are grey and dashed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import (
    FixedLocator,
    FuncFormatter,
    LogLocator,
    MaxNLocator,
    NullFormatter,
    NullLocator,
)

from bench.benchlib.record import Record, number, text
from bench.benchlib.units import size_text, time_text
from bench.suite import collectives, convergence, model, models, samples, streams
from bench.suite import scale as on_paper
from bench.suite.peers import OURS
from bench.suite.settings import KIB, MIB, PLAIN

_DPI = 130
WIDTH_IN, NARROW_IN = 11.0, 7.7
_COLUMNS = 3
_NO_RATE_BYTES = 1024
_GREY = "#444444"
# Colours that the colour-blind tell apart; those compared have them in the order of a picture.
_COLOURS = ("#D55E00", "#009E73", "#CC79A7", "#E69F00", "#8C6BB1", "#56B4E9", "#8C564B", "#3A8FC7")
_MARKS = "sD^vP*Xh"
_OURS_STYLE: dict[str, Any] = {"color": "#0072B2", "marker": "o", "linewidth": 2.2}


@dataclass(frozen=True, slots=True)
class Picture:
    """A file of the page, with what it shows, and its width: all are shown on one scale."""

    file: str
    caption: str
    width_in: float = WIDTH_IN


@dataclass(frozen=True, slots=True)
class Point:
    """A place of a line, with its band."""

    x: float
    y: float
    low: float
    high: float


Lines = dict[str, list[Point]]
Panels = dict[str, Lines]
Value = Callable[[Record, str], float]  # of a record, by the name of a quantile


def _time(record: Record, quantile: str) -> float:
    return samples.figure(record, quantile)


def _rate(record: Record, quantile: str) -> float:
    return number(record, "size") / samples.figure(record, quantile)


def _bus_rate(record: Record, quantile: str) -> float:
    factor = collectives.bus_factor(text(record, "op"), int(number(record, "ranks")))
    return number(record, "moved_bytes") * factor / samples.figure(record, quantile)


def point(record: Record, x: float, value: Value) -> Point:
    """Return a record's place; of a rate the low end is that of the high time."""
    ends = sorted(value(record, name) for name in samples.BAND)
    return Point(x, value(record, "median_ns"), ends[0], ends[1])


def panels_of(
    records: Sequence[Record],
    panel: Callable[[Record], str],
    line: Callable[[Record], str],
    x: str,
    value: Value,
) -> Panels:
    """Return the panels and lines of some records, from small to large; ours and floors first."""
    found: Panels = {}
    places = {OURS: 0, "floor": 1}
    for record in sorted(records, key=lambda one: places.get(text(one, "peer"), 2)):
        of_panel = found.setdefault(panel(record), {})
        of_panel.setdefault(line(record), []).append(point(record, number(record, x), value))
    return {
        name: {who: sorted(of, key=lambda one: one.x) for who, of in lines.items()}
        for name, lines in found.items()
    }


def styles_of(names: Sequence[str], floors: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return the style of each line, the same in all panels."""
    styles: dict[str, dict[str, Any]] = {}
    for name in names:
        number_of = sum("marker" in style for style in styles.values())
        if name in floors:
            styles[name] = {"color": _GREY, "linestyle": "--", "linewidth": 1.4}
        elif name.startswith(OURS):
            of = sum(other.startswith(OURS) for other in styles)
            styles[name] = {**_OURS_STYLE, "linestyle": ("-", ":", "-.", "--")[of % 4]}
        else:
            colour = _COLOURS[number_of % len(_COLOURS)]
            styles[name] = {
                "color": colour,
                "marker": _MARKS[number_of % len(_MARKS)],
                "linewidth": 1.4,
            }
    return styles


def grid(
    panels: Panels,
    path: Path,
    *,
    x_text: Callable[[float], str],
    x_label: str,
    label: str = "",
    floors: Sequence[str] = (),
) -> None:
    """Write a picture with a part for each panel; without a label its values are times."""
    columns = min(_COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(WIDTH_IN, 0.8 + 2.7 * rows), layout="constrained")
    parts = figure.subplots(rows, columns, squeeze=False).flatten()
    names = list(dict.fromkeys(name for lines in panels.values() for name in lines))
    styles = styles_of(names, floors)
    for place, (axes, (title, lines)) in enumerate(zip(parts, panels.items(), strict=False)):
        for name, points in lines.items():
            xs = [one.x for one in points]
            axes.plot(xs, [one.y for one in points], label=name, markersize=4, **styles[name])
            if name not in floors:
                low, high = [one.low for one in points], [one.high for one in points]
                axes.fill_between(xs, low, high, color=styles[name]["color"], alpha=0.12, lw=0)
        _x_axis(axes, [one.x for points in lines.values() for one in points], x_text, x_label)
        value_axis(axes)
        if not label:
            axes.yaxis.set_major_formatter(FuncFormatter(lambda ns, _: _plain(time_text(ns))))
        axes.set_ylabel("" if place % columns else label or "time, median")
        tidy(axes, title)
    for axes in parts[len(panels) :]:
        axes.set_visible(False)
    save(figure, path)


def _x_axis(axes: Axes, xs: Sequence[float], x_text: Callable[[float], str], label: str) -> None:
    axes.set_xscale("log", base=2)
    ticks = sorted(set(xs))
    axes.xaxis.set_major_locator(FixedLocator(ticks[:: 1 + len(ticks) // 6]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: x_text(round(value))))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.tick_params(axis="x", labelsize=8)
    axes.set_xlabel(label)


def value_axis(axes: Axes) -> None:
    """Logarithmic, after all is drawn: the less it spans, the more ticks have names."""
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    steps = (1.0, 2.0, 5.0) if high < 200 * low else (1.0,)
    decades = LogLocator(10, subs=steps, numticks=12)
    axes.yaxis.set_major_locator(MaxNLocator(6) if high < 4 * low else decades)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def _plain(words: str) -> str:
    return words.replace(".00", "")


def tidy(axes: Axes, title: str) -> None:
    axes.set_title(title, fontsize=10, loc="left")
    axes.grid(visible=True, which="major", color="#dddddd", linewidth=0.7)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def save(figure: Figure, path: Path) -> None:
    """Write the picture, with one legend of all its parts below them."""
    named = {
        label: handle
        for axes in figure.axes
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    columns = min(6 if figure.get_figwidth() >= WIDTH_IN else 3, max(1, len(named)))
    renderer = FigureCanvasAgg(figure).get_renderer()  # type: ignore[no-untyped-call]
    while True:
        legend = figure.legend(
            named.values(), named, loc="outside lower center", ncols=columns, frameon=False
        )
        if columns == 1 or legend.get_window_extent(renderer).width <= figure.bbox.width:
            break
        legend.remove()  # long names would be cut at the picture's edge
        columns -= 1
    figure.savefig(path, dpi=_DPI)


def p2p(records: Sequence[Record], folder: Path) -> list[Picture]:
    """Two pictures a path: time and rate against size, a part for each thing that was timed."""
    pictures = []
    moving = [one for one in records if one["language"] != "Python" and not streams.is_cold(one)]
    for transport in dict.fromkeys(text(record, "transport") for record in moving):
        of_path = [one for one in moving if one["transport"] == transport]
        if len({one["size"] for one in of_path}) < 2:
            continue
        floors = {_p2p_line(one) for one in of_path if one["peer"] == "floor"}
        for what, value, label in (("time", _time, ""), ("rate", _rate, "GB/s")):
            some = [one for one in of_path if not label or number(one, "size") >= _NO_RATE_BYTES]
            panels = panels_of(some, lambda one: text(one, "timed"), _p2p_line, "size", value)
            file = f"p2p_{transport}_{what}.png"
            if panels:
                grid(
                    panels,
                    folder / file,
                    x_text=size_text,
                    x_label="size of the message",
                    label=label,
                    floors=tuple(floors),
                )
                caption = f"Point to point over {transport}: {what} by size."
                pictures.append(Picture(file, caption))
    return pictures


def _p2p_line(record: Record) -> str:
    wait = ", sleeping" if record.get("wait") == "sleeping" else ""
    return text(record, "contestant") + (wait if record["peer"] in (OURS, "floor") else "")


def of_collectives(records: Sequence[Record], folder: Path) -> list[Picture]:
    """Time of a call and bus bandwidth, for each path and number of ranks."""
    pictures = []
    moving = [one for one in records if one["op"] != "barrier" and one.get("row", PLAIN) == PLAIN]
    floors = (collectives.NOTHING, collectives.COPY_FLOOR)
    for transport, ranks in dict.fromkeys((one["transport"], one["ranks"]) for one in moving):
        of_group = [one for one in moving if (one["transport"], one["ranks"]) == (transport, ranks)]
        if all(one["peer"] == "floor" for one in of_group):
            continue
        for what, value, label in (("time", _time, ""), ("busbw", _bus_rate, "busbw, GB/s")):
            some = [
                one
                for one in of_group
                if not label
                or (one["contestant"] != floors[0] and number(one, "size") >= _NO_RATE_BYTES)
            ]
            if not some:
                continue
            file = f"collectives_{transport}_{ranks}_{what}.png"
            grid(
                panels_of(some, lambda one: text(one, "op"), _who, "size", value),
                folder / file,
                x_text=size_text,
                x_label="size",
                label=label,
                floors=floors,
            )
            pictures.append(Picture(file, f"Collectives over {transport}, {ranks} ranks: {what}."))
    return pictures


def _who(record: Record) -> str:
    return text(record, "contestant")


def setup(records: Sequence[Record], folder: Path) -> list[Picture]:
    """Time until ranks can work, and the memory of a rank, against their number."""
    if len({record["ranks"] for record in records}) < 2:
        return []
    panels = panels_of(
        records, lambda one: f"{one['transport']}: {one['op']}", _who, "ranks", _time
    )
    grid(panels, folder / "setup.png", x_text=lambda ranks: f"{ranks:.0f}", x_label="ranks")
    pictures = [Picture("setup.png", "Set-up: from the start until the slowest rank can work.")]
    counted = [record for record in records if "rank_bytes" in record]
    if counted:
        panels = panels_of(
            counted,
            lambda one: f"{one['transport']}: {one['op']}",
            _who,
            "ranks",
            lambda one, _: number(one, "rank_bytes") / MIB,
        )
        path = folder / "setup_memory.png"
        grid(panels, path, x_text=lambda ranks: f"{ranks:.0f}", x_label="ranks", label="MiB a rank")
        pictures.append(Picture(path.name, "What the memory of a rank has grown by."))
    return pictures


def scale(records: Sequence[Record], folder: Path) -> list[Picture]:
    """Predicted time against ranks, to 16,384, where each rank has a host."""
    found = on_paper.between_hosts(records, on_paper.fits_of(records))
    if found is None:
        return []
    name, constants = found
    panels: Panels = {}
    for size in (4 * KIB, MIB, 64 * MIB):
        for algorithm in model.ALGORITHMS:
            points = []
            for ranks in (2**power for power in range(1, 15)):
                ns = model.predict(constants, algorithm, ranks, size)
                points.append(Point(ranks, ns, ns, ns))
            panels.setdefault(size_text(size), {})[algorithm] = points
    path = folder / "scale.png"
    grid(panels, path, x_text=lambda ranks: f"{ranks:.0f}", x_label="ranks", label="predicted ns")
    return [Picture(path.name, f"all_reduce on paper, a host for each rank: {name}.")]


def bars(records: Sequence[Record], folder: Path) -> list[Picture]:
    """Bars of each model's steps for each path, the step without communication dashed."""
    pictures = []
    for transport in dict.fromkeys(text(record, "transport") for record in records):
        of_path = [record for record in records if record["transport"] == transport]
        names = [name for name in models.NAMES if any(one["op"] == name for one in of_path)]
        columns = min(_COLUMNS, len(names))
        rows = -(-len(names) // columns)
        width_in = WIDTH_IN if columns > 1 else NARROW_IN
        figure = Figure(figsize=(width_in, 0.7 + 2.9 * rows), layout="constrained")
        parts = figure.subplots(rows, columns, squeeze=False).flatten()
        for axes, name in zip(parts, names, strict=False):
            _bars(axes, [record for record in of_path if record["op"] == name], name)
        for axes in parts[len(names) :]:
            axes.set_visible(False)
        save(figure, folder / f"models_{transport}.png")
        caption = f"A training step over {transport}; above the dashed line is communication."
        pictures.append(Picture(f"models_{transport}.png", caption, width_in))
    return pictures


def _model_colours() -> dict[str, str]:
    trained = [name for name in models.CONTESTANTS.values() if name not in models.FLOORS]
    return dict(zip(trained, ("#0072B2", *_COLOURS), strict=False))


def _bars(axes: Axes, records: Sequence[Record], name: str) -> None:
    places = {who: place for place, who in enumerate(models.CONTESTANTS.values())}
    for record in sorted(records, key=lambda one: places[text(one, "contestant")]):
        who, seconds = text(record, "contestant"), number(record, "median_ns") / 1e9
        if who == models.FLOOR:
            axes.axhline(seconds, color=_GREY, linestyle="--", label=who, zorder=3)
        if record["peer"] == "floor":
            continue
        low, high = (samples.figure(record, tail) / 1e9 for tail in samples.BAND)
        error = [[max(0.0, seconds - low)], [max(0.0, high - seconds)]]
        axes.bar(places[who], seconds, color=_model_colours()[who], label=who, yerr=error)
    axes.set_xticks([])
    axes.set_ylabel("seconds a step")
    tidy(axes, f"{name}, {number(records[0], 'size') / MIB:.0f} MiB")


def curves(records: Sequence[Record], folder: Path) -> list[Picture]:
    """Losses over seconds, a part for each path."""
    paths = list(dict.fromkeys(text(record, "transport") for record in records))
    figure = Figure(figsize=(WIDTH_IN, 4.2), layout="constrained")
    parts = figure.subplots(1, len(paths), sharey=True, squeeze=False).flatten()
    for axes, path in zip(parts, paths, strict=True):
        for record in records:
            if record["transport"] == path:
                who, at_s = text(record, "contestant"), convergence.seconds_of(record)
                axes.plot(
                    at_s, convergence.losses_of(record), color=_model_colours()[who], label=who
                )
        axes.set_xlabel("seconds of training")
        axes.set_ylim(bottom=0)
        tidy(axes, f"{records[0]['op']} over {path}")
    parts[0].set_ylabel("loss, mean of all ranks")
    save(figure, folder / "convergence.png")
    return [Picture("convergence.png", "The same batches, parameters and losses by step.")]


PICTURES: dict[str, Callable[[Sequence[Record], Path], list[Picture]]] = {
    "p2p": p2p,
    "collectives": of_collectives,
    "setup": setup,
    "scale": scale,
    "models": bars,
    "convergence": curves,
}
