"""The picture of the demo: loss curves and step times of all runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from report import Run
from results import WARM_UP_STEPS, WARM_UP_STEPS_A_TURN

# Okabe and Ito's palette: told apart with any colour vision.
COLOURS = ("#D55E00", "#0072B2", "#009E73", "#CC79A7")
# The curves lie on each other: wide and pale below, thin and dark above, so that all show.
WIDTHS = (1.3, 3.2, 7.5, 11.0)
DASHES = ((0, ()), (0, (2.5, 1.5)), (0, ()), (0, ()))
ALPHAS = (1.0, 0.9, 0.35, 0.25)
MEDIAN_STEPS = 9


def save_plot(runs: Sequence[Run], load: str, path: Path) -> None:
    """Write a PNG with one column a model: its losses above, its step times below."""
    models = [model.model for model in runs[0].result.models]
    figure, grid = plt.subplots(
        2, len(models), figsize=(5.0 * len(models), 7.6), squeeze=False, layout="constrained"
    )
    for column, name in enumerate(models):
        _losses(grid[0, column], runs, column)
        megabytes = runs[0].result.models[column].gradient_mb()
        grid[0, column].set_title(f"{name}, {megabytes:.1f} MB of gradients", fontweight="bold")
        _step_times(grid[1, column], runs, column)
    for axes in grid.flat:
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25, linewidth=0.6)
        axes.set_xlim(left=0)
    ranks = runs[0].result.world_size
    figure.suptitle(
        f"The same training on {ranks} ranks, DistributedDataParallel, over each backend\n{load}",
        fontsize="medium",
    )
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _losses(axes: Axes, runs: Sequence[Run], column: int) -> None:
    for index, run in reversed(list(enumerate(runs))):
        style = min(index, len(WIDTHS) - 1)
        axes.plot(
            run.result.models[column].losses,
            color=COLOURS[index % len(COLOURS)],
            linewidth=WIDTHS[style],
            linestyle=DASHES[style],
            alpha=ALPHAS[style],
            solid_capstyle="round",
            label=run.label,
        )
    model = runs[0].result.models[column]
    is_identical = all(run.result.models[column].losses == model.losses for run in runs)
    note = "all curves are bit-identical" if is_identical else "the curves differ"
    axes.set_xlabel("step")
    axes.set_ylabel("training loss, mean of the ranks (nats)")
    axes.set_ylim(bottom=0)
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(handles[::-1], labels[::-1], title=note, frameon=False, handlelength=4)


def _step_times(axes: Axes, runs: Sequence[Run], column: int) -> None:
    highest = 0.0
    for index, run in enumerate(runs):
        model = run.result.models[column]
        step_ms = [1e3 * seconds for seconds in model.step_s]
        colour = COLOURS[index % len(COLOURS)]
        axes.plot(step_ms, ".", color=colour, markersize=3, alpha=0.35)
        label = f"{run.label}: {model.step_ms():.1f} ms, communication {model.comm_ms():.2f} ms"
        axes.plot(_running_median(step_ms), color=colour, linewidth=1.8, label=label)
        highest = max(highest, sorted(step_ms)[int(0.97 * (len(step_ms) - 1))])
    for begin in model.turn_begins:
        end = max(begin + WARM_UP_STEPS_A_TURN, WARM_UP_STEPS)
        axes.axvspan(begin, end, color="0.5", alpha=0.12, linewidth=0)
    axes.set_xlabel("step (lines: running median; grey: first of a turn, not counted)")
    axes.set_ylabel("time of a step (ms)")
    # A rare slow step would flatten all the others; the room above is for the legend.
    axes.set_ylim(0, 1.6 * highest)
    axes.legend(frameon=False, loc="upper right")


def _running_median(values: Sequence[float]) -> list[float]:
    reach = MEDIAN_STEPS // 2
    return [median(values[max(0, i - reach) : i + reach + 1]) for i in range(len(values))]
