"""Judges the runs of the demo against the Gloo run, and prints the table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from results import WARM_UP_STEPS, ModelResult, RunResult

TOLERANCE_REASON = (
    "Tolerance 0: the loss of every step and the final weights must equal Gloo's bit for bit.\n"
    "With two ranks each gradient is one sum of two floats, which has the same rounding in\n"
    "either order, and halving is exact; all else is the same code on the same data with the\n"
    "same seed and one thread. (Three or more ranks would need a tolerance: a + b + c depends\n"
    "on the order.)"
)
TIME_MEANING = (
    "steps/s: by the median step, fetching the batch included.\n"
    "comm: exposed communication a step, median: from the last rank's gradients being ready\n"
    "  to loss.backward() returning on the last rank, plus the same for the loss all-reduce.\n"
    "comm+wait: what a rank spends in there, waiting for a slower rank included.\n"
    f"The first {WARM_UP_STEPS} steps of each model are left out."
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
    unequal = [step for step, (ours, theirs) in enumerate(pairs) if ours != theirs]
    if unequal:
        ours, theirs = pairs[unequal[0]]
        worst = max(abs(a - b) for a, b in pairs)
        found.append(
            f"{len(unequal)} of {len(pairs)} losses differ, first at step {unequal[0]}: "
            f"{ours!r} against {theirs!r}; largest difference {worst:.3g}"
        )
    if model.weights_sha256 != expected.weights_sha256:
        found.append("the final weights differ from the reference")
    return found


def comparison(runs: Sequence[Run], reference: Run) -> str:
    """What was compared with what, model by model."""
    lines = []
    for index, model in enumerate(reference.result.models):
        others = [run.result.models[index] for run in runs if run is not reference]
        equal = sum(other.losses == model.losses for other in others)
        lines.append(
            f"{model.model} ({model.parameters:,} parameters, {len(model.losses)} steps): "
            f"loss {model.losses[0]:.4f} -> {model.losses[-1]:.4f}; "
            f"{equal} of {len(others)} curves equal {reference.label}'s in every step"
        )
        sign = ">" if model.is_higher_better else "<"
        lines.append(
            f"  {model.score_name}: {model.score:.3f} (must be {sign} {model.score_limit:.3f})"
        )
    return "\n".join(lines)


def timing_table(runs: Sequence[Run]) -> str:
    """One row a model and run: steps/s and milliseconds of communication a step."""
    header = ("model", "backend", "steps/s", "comm ms/step", "of step", "comm+wait ms/step")
    rows = [header]
    for index, model in enumerate(runs[0].result.models):
        for run in runs:
            row = run.result.models[index]
            share = 1e-3 * row.comm_ms() * row.steps_per_s()
            rows.append(
                (
                    model.model,
                    run.label,
                    f"{row.steps_per_s():.1f}",
                    f"{row.comm_ms():.2f}",
                    f"{100 * share:.1f} %",
                    f"{row.comm_and_wait_ms():.2f}",
                )
            )
    return _aligned(rows, left_columns=2)


def path_table(runs: Sequence[Run]) -> str:
    """One row for each direction between two ranks, in each run."""
    rows = [("backend", "peer pair", "path", "reason")]
    for run in runs:
        rows += [
            (run.label, f"{path.rank} -> {path.peer}", path.path, path.reason)
            for path in run.result.paths
        ]
    return _aligned(rows, left_columns=4)


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
