"""What all pictures share: axes, legends, and their files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

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

from bench.benchlib.verdict import size_text, time_text

_DPI = 130
_FEW_SIZES = 5
WIDTH_IN, NARROW_IN = 11.0, 7.7


@dataclass(frozen=True, slots=True)
class Picture:
    """A file of the page, with what it shows, and its width: all are shown on one scale."""

    file: str
    caption: str
    width_in: float = WIDTH_IN


def size_axis(axes: Axes, sizes: Sequence[float], step: int = 1) -> None:
    """A few sizes as they are; of many, every step-th power of 8: both leave room for names."""
    axes.set_xscale("log", base=2)
    powers = [8.0**power for power in range(1, 11, step)]
    ticks = [power for power in powers if min(sizes) <= power <= max(sizes)]
    are_few = len(set(sizes)) <= _FEW_SIZES and step == 1
    axes.xaxis.set_major_locator(
        FixedLocator(sorted(set(sizes)) if are_few or len(ticks) < 2 else ticks)
    )
    axes.xaxis.set_major_formatter(FuncFormatter(lambda size, _: size_text(round(size))))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.tick_params(axis="x", labelsize=8)
    axes.set_xlabel("size of the message")


def time_axis(axes: Axes) -> None:
    value_axis(axes)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda ns, _: _plain(time_text(ns))))
    axes.set_ylabel("time, median")


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


def save(figure: Figure, path: Path, *, names: Axes | None = None, most_columns: int = 6) -> None:
    """Write the picture, with one legend under all its parts."""
    handles, labels = (names or figure.axes[0]).get_legend_handles_labels()
    wide = most_columns if figure.get_figwidth() >= WIDTH_IN else 3
    columns = min(wide, max(1, len(labels)))
    renderer = FigureCanvasAgg(figure).get_renderer()  # type: ignore[no-untyped-call]
    while True:
        legend = figure.legend(
            handles, labels, loc="outside lower center", ncols=columns, frameon=False
        )
        if columns == 1 or legend.get_window_extent(renderer).width <= figure.bbox.width:
            break
        legend.remove()  # long names would be cut at the picture's edge
        columns -= 1
    figure.savefig(path, dpi=_DPI)
