"""Draw partitions of the model of examples/waits_for_network.py, on links of a given rate."""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path
from types import ModuleType

import torch
from matplotlib.figure import Figure

from graph_analysis import Cost, Device, Machine
from graph_analysis.capture import measure_ops
from graph_analysis.ir import Graph
from graph_analysis.partition import (
    BatchTimes,
    Partition,
    find_pairs,
    make_units,
    partitions,
    read_step,
)
from graph_analysis.times import OpTimes, predict

_EXAMPLE = Path(__file__).parents[2] / "examples/waits_for_network.py"
_BATCH, _WIDTH = 16, 2048
_ALPHA_NS = 100_000
_RATES_MBIT = (100, 200, 500, 1000, 2000, 5000, 10000)
WIDTH_IN = 6.4


def draw() -> Figure:
    """Draw the predicted step of two partitions over the rate of the link."""
    found: dict[str, list[float]] = {}
    for rate in _RATES_MBIT:
        for one in partitions_at(rate):
            found.setdefault(one.name.partition(":")[0], []).append(one.predicted.step_ns / 1e6)
    figure = Figure(figsize=(WIDTH_IN, 3.2), facecolor="white", layout="constrained")
    axes = figure.add_subplot()
    for colour, name in (("#2f6db5", "data parallel"), ("#c8611b", "pairs")):
        axes.plot(_RATES_MBIT, found[name], marker="o", color=colour, label=name)
    axes.set(xscale="log", yscale="log", xlabel="link, Mbit/s", ylabel="predicted step, ms")
    axes.legend(frameon=False)
    axes.set_title("two ranks, 40 MiB of weights in two linear layers")
    return figure


def partitions_at(rate_mbit: int) -> tuple[Partition, ...]:
    """Return the partitions for two ranks whose two directions share a link of this rate."""
    beta_ps = 8_000_000 // rate_mbit
    costs = {"all_gather": beta_ps, "all_reduce": 2 * beta_ps, "reduce_scatter": beta_ps}
    lines = [
        Cost(f"{name}.{what}", value)
        for name, beta in sorted(costs.items())
        for what, value in (("alpha_ns", _ALPHA_NS), ("beta_ps", beta))
    ]
    machine = Machine(
        tuple(Device(rank, "host", 1, 0, 1000) for rank in range(2)), (), tuple(lines)
    )
    graph, times = _measured()
    pairs = find_pairs(graph, ("1.0", "1.2"), 2)
    op_ns = predict(graph, times).op_ns
    step = read_step(graph, op_ns, make_units(graph, ("0", "1"), pairs, {}), 0)
    total = sum(op_ns)
    return partitions(step, machine, BatchTimes(_BATCH // 2, total // 2, _BATCH, total), most=9)


@functools.cache
def _measured() -> tuple[Graph, OpTimes]:
    model = _example().make_model(_WIDTH)
    return measure_ops(model, (torch.randn(_BATCH, 3, 64, 64),), repeats=3)


def _example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("waits_for_network", _EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
