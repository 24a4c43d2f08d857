"""Judges the runs of the demo against the Gloo run, and prints the table.

Tolerance 0: the loss of every step and the final weights must equal Gloo's bit for bit. With two
ranks each gradient is one sum of two floats, which has the same rounding in either order, and
halving is exact; all else is the same code on the same data with the same seed and one thread.
(Three or more ranks would need a tolerance: a + b + c depends on the order.)
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from load import Load
from results import WARM_UP_STEPS, ModelResult, RunResult

RANKS = 2
TIME_MEANING = (
    "ms/step: median, fetching the batch included. comm: its communication that no computation\n"
    "hides, without the wait for a slower rank. time, Gloo = 1: step time over Gloo's in the same\n"
    "round of turns, mean (least to most); below 1 is faster than Gloo."
)


@dataclass(frozen=True, slots=True)
class Run:
    """A finished run with the backend that was asked for."""

    label: str  # "rdmatensor (shm)", "Gloo"
    backend: str
    transport: str | None  # the path that was forced, None for the backend's own choice
    result: RunResult


def problems(runs: Sequence[Run], reference: Run) -> list[str]:
    """Return everything that is wrong with the runs; empty when the demo has passed."""
    found = []
    for run in runs:
        if run.result.backend != run.backend:
            found.append(f"{run.label}: ran on {run.result.backend}, not on {run.backend}")
        found += _path_problems(run)
        for model, expected in zip(run.result.models, reference.result.models, strict=True):
            where = f"{run.label}, {model.model}"
            found += [f"{where}: {text}" for text in _model_problems(model)]
            if run is not reference:
                found += [f"{where}: {text}" for text in _curve_problems(model, expected)]
    return found


def _path_problems(run: Run) -> list[str]:
    expected = run.result.world_size * (run.result.world_size - 1)
    found = []
    if len(run.result.paths) != expected:
        found.append(f"{run.label}: {len(run.result.paths)} peer paths instead of {expected}")
    if run.transport is not None:
        found += [
            f"{run.label}: rank {path.rank} reached rank {path.peer} by {path.path}, "
            f"though {run.transport} was asked for"
            for path in run.result.paths
            if path.path != run.transport
        ]
    return found


def _model_problems(model: ModelResult) -> list[str]:
    found = []
    if len(model.losses) <= WARM_UP_STEPS:
        found.append(f"{len(model.losses)} steps are too few")
    if not all(math.isfinite(loss) for loss in model.losses):
        found.append("a loss is not finite")
    if len(set(model.weights_sha256)) != 1:
        found.append("the ranks ended with different weights")
    has_passed = (
        model.score > model.score_limit
        if model.is_higher_better
        else model.score < model.score_limit
    )
    if not has_passed:
        found.append(f"{model.score_name} {model.score:.3f}, limit {model.score_limit:.3f}")
    return found


def _curve_problems(model: ModelResult, expected: ModelResult) -> list[str]:
    found = []
    if len(model.losses) != len(expected.losses):
        found.append(f"{len(model.losses)} steps, the reference has {len(expected.losses)}")
    pairs = list(zip(model.losses, expected.losses, strict=False))
    unequal = [step for step, (own, other) in enumerate(pairs) if own != other]
    if unequal:
        own, other = pairs[unequal[0]]
        worst = max(abs(a - b) for a, b in pairs)
        found.append(
            f"{len(unequal)} of {len(pairs)} losses differ, first at step {unequal[0]}: "
            f"{own!r} against {other!r}; largest difference {worst:.3g}"
        )
    if model.weights_sha256 != expected.weights_sha256:
        found.append("the final weights differ from the reference")
    return found


def timing_table(runs: Sequence[Run], reference: Run) -> str:
    """One row a model and run: milliseconds of a step and of its communication."""
    rows = [("model", "gradients", "backend", "ms/step", "comm", "time, Gloo = 1")]
    for index, model in enumerate(reference.result.models):
        for number, run in enumerate(runs):
            row = run.result.models[index]
            rows.append(
                (
                    "" if number else model.model,
                    "" if number else f"{model.gradient_mb():.1f} MB",
                    run.label,
                    f"{row.step_ms():.1f}",
                    f"{row.comm_ms():.2f}",
                    "1" if run is reference else _relative(row, model),
                )
            )
    return _aligned(rows, left_columns=3)


def _relative(row: ModelResult, reference: ModelResult) -> str:
    """Turn by turn: both of a round met about the same machine."""
    ratios = [
        own / gloo for own, gloo in zip(row.turn_step_ms(), reference.turn_step_ms(), strict=False)
    ]
    if not ratios:
        return "too few steps"
    return f"{fmean(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def comparison(runs: Sequence[Run], reference: Run) -> str:
    """What the runs have in common, model by model, and the path of each."""
    lines = []
    for index, model in enumerate(reference.result.models):
        others = [run.result.models[index] for run in runs if run is not reference]
        equal = sum(other.losses == model.losses for other in others)
        sign = "above" if model.is_higher_better else "below"
        lines.append(
            f"{model.model}: {len(model.losses)} steps, loss {model.losses[0]:.2f} -> "
            f"{model.losses[-1]:.2f}, the same in every step in {equal + 1} of {len(runs)} runs; "
            f"{model.score_name} {model.score:.2f} (must be {sign} {model.score_limit:.2f})"
        )
    ways = (f"{run.label} {'/'.join(sorted({p.path for p in run.result.paths}))}" for run in runs)
    lines.append(f"path between the ranks: {', '.join(ways)}")
    return "\n".join(lines)


def load_words(load: Load) -> str:
    """How much of the machine others use, and what follows from it."""
    cores = len(os.sched_getaffinity(0))
    words = f"machine: {cores} cores, of which other processes use {load.cores():.2f}"
    if cores < RANKS:
        words += f": fewer cores than ranks ({RANKS}), so the times say little"
    if load.is_busy():
        words += ": BUSY, so the times say little (the checks of the training are not affected)"
    return words


def _aligned(rows: Sequence[Sequence[str]], *, left_columns: int) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = (
            cell.ljust(width) if column < left_columns else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        lines.append("  ".join(cells).rstrip())
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(lines)
