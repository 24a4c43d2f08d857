"""Draw where a parameter server and a ring cross, from bench/results/crossover.json."""

from __future__ import annotations

import itertools

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.benchlib.machine import ROOT
from bench.benchlib.record import load, number, text
from bench.suite import tables
from bench.suite.crossover import CROSSOVER, Cell, fits_of

COLOURS = ("#2f6db5", "#c8611b", "#2c8a57", "#8457a8", "#a88a1d", "#767676")
WIDTH_IN = 6.4


def draw() -> Figure:
    """Time of a step over the share of rows in a batch: measured, and by the model (dotted)."""
    result = load(ROOT / "bench/results/crossover.json")
    records = [one for run in result.runs for one in tables.of_topic(run.records, CROSSOVER)]
    cells = [cell for fit in fits_of(records) for cell in fit.cells]
    whole = max(number(one, "size") for one in records)
    cells = [cell for cell in cells if number(cell.record, "size") == whole]
    paths = list(dict.fromkeys(text(cell.record, "transport") for cell in cells))
    workers = sorted({int(number(cell.record, "ranks")) for cell in cells})
    names = list(dict.fromkeys(text(cell.record, "name") for cell in cells))
    figure = Figure(figsize=(WIDTH_IN, 2.6 * len(paths) + 0.8), layout="constrained")
    panels = figure.subplots(len(paths), len(workers), squeeze=False, sharey="row")
    for (row, path), (column, count) in itertools.product(enumerate(paths), enumerate(workers)):
        axes = panels[row][column]
        axes.set(xscale="log", yscale="log", title=f"{path}, {count} workers")
        for name, colour in zip(names, COLOURS, strict=True):
            key = (path, count, name)
            _line(axes, [cell for cell in cells if _key_of(cell) == key], name, colour)
    for axes in panels[-1]:
        axes.set_xlabel("% of the rows in a batch")
    for axes in panels[:, 0]:
        axes.set_ylabel("ms a step")
    lines = panels[0][0].get_legend_handles_labels()
    figure.legend(*lines, loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    return figure


def _key_of(cell: Cell) -> tuple[str, int, str]:
    one = cell.record
    return text(one, "transport"), int(number(one, "ranks")), text(one, "name")


def _line(axes: Axes, cells: list[Cell], name: str, colour: str) -> None:
    """Draw one way; one that sends whole gradients takes as long for each share of the rows."""
    cells = sorted(cells, key=lambda cell: number(cell.record, "permille"))
    shares = [number(cell.record, "permille") / 10 for cell in cells]
    times = [number(cell.record, "median_ns") / 1e6 for cell in cells]
    model = [cell.predicted_ns / 1e6 for cell in cells]
    style = "o-" if len(cells) > 1 else "-"
    if len(cells) == 1:
        shares, times, model = [0.1, 100.0], times * 2, model * 2
    axes.plot(shares, times, style, color=colour, markersize=3, label=name)
    axes.plot(shares, model, ":", color=colour)
