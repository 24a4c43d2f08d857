"""Run the best partitions for a few steps in turns, on copies, before one is kept."""

from __future__ import annotations

import copy
import functools
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from time import perf_counter_ns
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from graph_analysis.partition import Partition
from rdmatensor.parallel._apply import apply
from rdmatensor.parallel._ranks import Ranks
from rdmatensor.parallel._stages import Loss

_WARM_UPS = 2
_STEPS = 5
_EQUAL_PERCENT = 5  # within this much of the fastest the one that was predicted best stays
PLAIN, _SIMPLE = "DistributedDataParallel", "data parallel"


@dataclass(frozen=True, slots=True)
class Contestant:
    """A partition and its median step, in ns, on the slowest rank."""

    partition: Partition
    measured_ns: int


def race(
    model: nn.Module,
    candidates: Sequence[Partition],
    inputs: Sequence[object],
    target: object,
    loss_fn: Loss,
    ranks: Ranks,
) -> Partition:
    """The candidate that is fastest when run, with all measured times in its reasons.

    If DistributedDataParallel is faster than all, data parallel is run by it.

    Candidates with unequal rows take the first or the repeated rows of the example.
    """
    rows = len(next(x for x in inputs if isinstance(x, torch.Tensor)))
    runs: list[Any] = []
    running = ExitStack()
    for one in candidates:
        share = one.shares[ranks.rank]
        trained = apply(copy.deepcopy(model), one, _still, loss_fn=loss_fn, group=ranks.group)
        running.callback(trained.close)
        given = tuple(_rows(x, share, rows) for x in inputs)
        runs.append(functools.partial(trained.step, given, _rows(target, share, rows)))
    plain = DistributedDataParallel(
        copy.deepcopy(model), process_group=ranks.group, gradient_as_bucket_view=True
    )
    runs.append(lambda: torch.autograd.backward(loss_fn(plain(*inputs), target)))
    with running:
        medians = _turns(runs, ranks)
    measured = [Contestant(one, ns) for one, ns in zip(candidates, medians, strict=False)]
    fastest = min(one.measured_ns for one in measured)
    allowed = fastest * (100 + _EQUAL_PERCENT) // 100
    chosen = next(one.partition for one in measured if one.measured_ns <= allowed)
    simple = next((one.partition for one in measured if one.partition.name == _SIMPLE), None)
    if simple is not None and medians[-1] * (100 + _EQUAL_PERCENT) < fastest * 100:
        chosen = replace(simple, is_planned=False)
    reasons = [
        f"measured in {_STEPS} steps: {one.partition.name}: {one.measured_ns / 1e6:.2f} ms,"
        f" predicted {one.partition.predicted.step_ns / 1e6:.2f}"
        for one in measured
    ]
    reasons.append(f"measured in {_STEPS} steps: {PLAIN}: {medians[-1] / 1e6:.2f} ms")
    return replace(chosen, reasons=(*chosen.reasons, *reasons))


def _still(parameters: Any) -> torch.optim.Optimizer:  # noqa: ANN401 - what an optimizer takes
    """An optimizer that changes nothing: it is never stepped."""
    return torch.optim.SGD(parameters, lr=0.0)


def _rows(value: object, share: int, rows: int) -> object:
    """So many rows of a tensor that has one for each row of the batch."""
    if not isinstance(value, torch.Tensor) or value.ndim == 0 or len(value) != rows:
        return value
    return value[torch.arange(share) % rows] if share != rows else value


def _turns(runs: Sequence[Any], ranks: Ranks) -> list[int]:
    """The median time of each run, one after the other in each round; the slowest rank's counts."""
    times: list[int] = []
    for _ in range(_WARM_UPS + _STEPS):
        for run in runs:
            ranks.barrier()
            began_ns = perf_counter_ns()
            run()
            times.append(perf_counter_ns() - began_ns)
    agreed = ranks.largest(times)
    count = len(runs)
    return [sorted(agreed[place::count][_WARM_UPS:])[_STEPS // 2] for place in range(count)]
