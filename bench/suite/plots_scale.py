"""Pictures of scale on paper: the model beside what was measured, and beyond it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from bench.benchlib.record import Record
from bench.benchlib.verdict import size_text
from bench.suite import model, scale_tables
from bench.suite.plots_base import (
    WIDTH_IN,
    Picture,
    save,
    tidy,
    time_axis,
    value_axis,
)

_STYLES = {  # colours that the colour-blind tell apart
    "ring": ("#0072B2", "o"),
    "halving-doubling": ("#009E73", "s"),
    "tree": ("#E69F00", "^"),
    "direct": ("#D55E00", "D"),
}
_PANELS = (4 << 10, 1 << 20, 64 << 20)  # bytes
_RANKS = tuple(2**power for power in range(1, 15))
_TICKS = (2, 16, 128, 1024, 16384)


def scale(records: Sequence[Record], folder: Path) -> list[Picture]:
    """Predicted against measured, for each path; and time against ranks, to 16,384."""
    fits = scale_tables.fits_of(records)
    found = scale_tables.between_hosts(records, fits)
    pictures = [_against(fits, folder)] if fits else []
    return [*pictures, *([_beyond(*found, folder)] if found is not None else [])]


def _against(fits: Sequence[scale_tables.Fit], folder: Path) -> Picture:
    figure = Figure(figsize=(WIDTH_IN, 4.4), layout="constrained")
    parts = figure.subplots(1, len(fits), squeeze=False)[0]
    for axes, fit in zip(parts, fits, strict=True):
        for algorithm, (colour, mark) in _STYLES.items():
            for of, is_filled in ((fit.fitted, False), (fit.checked, True)):
                some = [one for one in of if one.algorithm == algorithm]
                axes.scatter(
                    [one.took_ns for one in some],
                    [fit.predict(one) for one in some],
                    marker=mark,
                    s=30,
                    facecolors=colour if is_filled else "none",
                    edgecolors=colour,
                    label=f"{algorithm}, {'12 and 16 ranks' if is_filled else '2 to 8, fitted'}",
                )
        times = [one.took_ns for one in (*fit.fitted, *fit.checked)]
        ends = [min(times) / 2, max(times) * 2]
        for factor, line in ((0.5, ":"), (1.0, "-"), (2.0, ":")):
            axes.plot(ends, [end * factor for end in ends], line, color="#888888", linewidth=1)
        axes.set_xscale("log")
        time_axis(axes)
        axes.xaxis.set_major_formatter(axes.yaxis.get_major_formatter())
        axes.xaxis.set_minor_locator(NullLocator())
        axes.tick_params(axis="x", labelsize=8)
        axes.set_xlabel("measured")
        tidy(axes, fit.name)
        axes.set_ylabel("by the model" if axes is parts[0] else "")
    save(figure, folder / "scale_model.png", most_columns=4)
    caption = "all_reduce on this host: the model against what was measured; dots: a factor of 2."
    return Picture("scale_model.png", caption)


def _beyond(name: str, constants: model.Constants, folder: Path) -> Picture:
    figure = Figure(figsize=(WIDTH_IN, 4.4), layout="constrained")
    parts = figure.subplots(1, len(_PANELS), squeeze=False)[0]
    for axes, size in zip(parts, _PANELS, strict=True):
        for algorithm, (colour, mark) in _STYLES.items():
            times = [model.predict(constants, algorithm, ranks, size) for ranks in _RANKS]
            axes.plot(_RANKS, times, color=colour, marker=mark, markersize=4, label=algorithm)
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_locator(FixedLocator(_TICKS))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f}"))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xlabel("ranks")
        value_axis(axes)
        time_axis(axes)
        tidy(axes, f"{size_text(size)}")
        axes.set_ylabel("predicted time" if axes is parts[0] else "")
    figure.suptitle(f"all_reduce, a host for each rank: {name}", fontsize=11)
    save(figure, folder / "scale_beyond.png")
    return Picture("scale_beyond.png", f"all_reduce on paper, a host for each rank: {name}.")
