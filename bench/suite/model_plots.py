"""Pictures of training steps: bars of each model, in the page's style."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.benchlib.record import Record, number, text
from bench.suite import convergence, models, samples
from bench.suite.plots_base import NARROW_IN, WIDTH_IN, Picture, save, tidy

_FLOOR_COLOUR = "#444444"
_COLOURS = {
    "planned": "#0072B2",
    "DDP": "#3A8FC7",
    "DDP, not adopted": "#009E73",
    "copy variant": "#8C6BB1",
    "DDP on Gloo": "#CC79A7",
    "server over gRPC, C++": "#E69F00",
    "server over gRPC, Python": "#D55E00",
}


def bars(records: Sequence[Record], folder: Path) -> list[Picture]:
    """A picture for each path: bars of each model's steps, the step without communication dashed.

    Whiskers reach from the 10th to the 90th hundredth.
    """
    pictures = []
    for transport in dict.fromkeys(text(record, "transport") for record in records):
        of_path = [record for record in records if record["transport"] == transport]
        names = [name for name in models.NAMES if any(one["op"] == name for one in of_path)]
        columns = min(3, len(names))
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


def curves(records: Sequence[Record], folder: Path) -> list[Picture]:
    """Losses over seconds, a part for each path; the same losses by step beside them."""
    paths = list(dict.fromkeys(text(record, "transport") for record in records))
    figure = Figure(figsize=(WIDTH_IN, 4.2), layout="constrained")
    parts = figure.subplots(1, len(paths) + 1, sharey=True, squeeze=False).flatten()
    for axes, path in zip(parts, paths, strict=False):
        for record in records:
            if record["transport"] == path:
                who, losses = text(record, "contestant"), convergence.losses_of(record)
                axes.plot(
                    convergence.seconds_of(record), losses, color=_COLOURS[who], label=who, lw=1.6
                )
                parts[-1].plot(losses, color=_COLOURS[who], lw=1.2)
        axes.set_xlabel("seconds of training")
        tidy(axes, f"{records[0]['op']} over {path}")
    parts[0].set_ylabel("loss, mean of all ranks")
    parts[-1].set_xlabel("steps of training")
    tidy(parts[-1], "the same losses by step, all contestants")
    for axes in parts:
        axes.set_ylim(bottom=0)
    save(figure, folder / "convergence.png")
    caption = "The same batches, parameters and losses by step; who exposes less gets there sooner."
    return [Picture("convergence.png", caption)]


def _bars(axes: Axes, records: Sequence[Record], name: str) -> None:
    bars = [record for record in records if record["peer"] != "floor"]
    places = {who: place for place, who in enumerate(models.CONTESTANTS.values())}
    for record in sorted(bars, key=lambda one: places[text(one, "contestant")]):
        who, seconds = text(record, "contestant"), number(record, "median_ns") / 1e9
        low, high = (samples.figure(record, tail) / 1e9 for tail in ("p10", "p90"))
        axes.bar(
            places[who],
            seconds,
            color=_COLOURS[who],
            label=who,
            yerr=[[max(0.0, seconds - low)], [max(0.0, high - seconds)]],
            error_kw={"elinewidth": 0.8, "capsize": 2, "ecolor": "#555555"},
        )
        axes.annotate(
            f"{seconds:.2g}",
            (places[who], 0),
            xytext=(0, 3),
            textcoords="offset points",
            ha="center",
            color="white",
            size=7.5,
            weight="bold",
        )
    for record in records:
        if record["contestant"] == models.FLOOR:
            floor_s = number(record, "median_ns") / 1e9
            axes.axhline(floor_s, color=_FLOOR_COLOUR, linestyle="--", label=models.FLOOR, zorder=3)
    axes.set_xticks([])
    axes.set_ylabel("seconds a step")
    first = records[0]
    scaled = "" if first["divisor"] == 1 else f", widths / {first['divisor']}"
    tidy(axes, f"{name}, {number(first, 'size') / (1 << 20):.0f} MiB{scaled}")
