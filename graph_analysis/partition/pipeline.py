"""Partitions in pipeline stages, of a model that is a chain of modules."""

from collections.abc import Sequence
from itertools import pairwise

from graph_analysis.ir import Graph
from graph_analysis.machine import Machine
from graph_analysis.partition.choice import Partition, Prediction, UnitChoice
from graph_analysis.partition.solve import BatchTimes, scales_permille
from graph_analysis.partition.stages import Part, cut_chain, pipeline_ns
from graph_analysis.partition.step import Step
from graph_analysis.strategies.base import forward_op_count

MICRO_BATCHES = (1, 2, 4, 8, 16)


def chain_parts(
    graph: Graph, op_ns: Sequence[int], modules: Sequence[str], out_bytes: Sequence[int]
) -> tuple[Part, ...]:
    """Times of each module of a chain, by the operations of its parameters and after them.

    Operations before those of any module count for the first one.
    """
    limit = forward_op_count(graph)
    return tuple(
        Part(name, forward, backward, size)
        for name, (forward, backward), size in zip(
            modules, _by_module(graph, op_ns, modules, limit), out_bytes, strict=True
        )
    )


def _by_module(
    graph: Graph, op_ns: Sequence[int], modules: Sequence[str], limit: int
) -> list[tuple[int, int]]:
    found = [[0, 0] for _ in modules]
    for index, (op, ns) in enumerate(zip(graph.ops, op_ns, strict=True)):
        owners = [
            place for place, name in enumerate(modules) if f"{op.unit}.".startswith(f"{name}.")
        ]
        found[owners[0] if owners else 0][index >= limit] += ns
    return [(forward, backward) for forward, backward in found]


def pipelines(
    parts: Sequence[Part],
    step: Step,
    machine: Machine,
    batch: BatchTimes,
    moved_bytes: int,
) -> tuple[Partition, ...]:
    """A partition for each number of micro-batches; empty if a stage would have no parameter.

    moved_bytes: the inputs and targets of one rank, which go to the first and the last stage.
    """
    world = machine.world_size
    if world < 2 or len(parts) < world:
        return ()
    cuts = cut_chain(parts, [device.speed_permille for device in machine.devices])
    bounds = (0, *cuts, len(parts))
    stages = [parts[a:b] for a, b in pairwise(bounds)]
    if not all(_parameter_bytes(stage, step) for stage in stages):
        return ()
    rows = batch.rows * world
    return tuple(
        _predicted(stages, count, step, machine, batch, moved_bytes)
        for count in MICRO_BATCHES
        if rows % count == 0
    )


def _predicted(
    stages: Sequence[Sequence[Part]],
    count: int,
    step: Step,
    machine: Machine,
    batch: BatchTimes,
    moved_bytes: int,
) -> Partition:
    world = machine.world_size
    rows = batch.rows * world // count
    scales = scales_permille((rows,) * world, batch, machine)
    forward = [sum(p.forward_ns for p in s) * scales[r] // 1000 for r, s in enumerate(stages)]
    backward = [sum(p.backward_ns for p in s) * scales[r] // 1000 for r, s in enumerate(stages)]
    sends = [machine.cost_ns("send", s[-1].out_bytes * world // count) for s in stages[:-1]]
    given_ns = machine.cost_ns("send", moved_bytes * (world - 1))
    fixed_ns = machine.unit_ns("stage") * count
    step_ns = pipeline_ns(forward, backward, sends, count) + given_ns + fixed_ns
    low_ns = pipeline_ns(forward, backward, [0] * len(sends), count) + fixed_ns
    sent_ns = 2 * count * sum(sends) + given_ns
    computes = tuple(count * (f + b) for f, b in zip(forward, backward, strict=True))
    return Partition(
        name=f"pipeline: {world} stages, {count} micro-batches",
        world_size=world,
        units=tuple(
            UnitChoice(f"stage {rank}", "stage", tuple(p.module for p in stage), ())
            for rank, stage in enumerate(stages)
        ),
        shares=(batch.rows,) * world,
        predicted=Prediction(
            step_ns=step_ns,
            low_ns=low_ns,
            high_ns=max(step_ns, low_ns + sent_ns),
            sent_ns=sent_ns,
            exposed_ns=step_ns - low_ns,
            compute_ns=computes,
            peak_bytes=_peaks(stages, step, world),
        ),
        micro_batches=count,
    )


def _peaks(stages: Sequence[Sequence[Part]], step: Step, world: int) -> tuple[int, ...]:
    """Each stage's parameters with their copies, and its part by time of all rows' activations."""
    total = max(1, sum(part.forward_ns for stage in stages for part in stage))
    peaks = []
    for stage in stages:
        share = sum(part.forward_ns for part in stage)
        kept = step.activation_bytes * world * share // total
        peaks.append((2 + step.state_copies) * _parameter_bytes(stage, step) + kept)
    return tuple(peaks)


def _parameter_bytes(stage: Sequence[Part], step: Step) -> int:
    prefixes = tuple(f"{part.module}." for part in stage)
    return sum(size for name, size in step.sizes.items() if name.startswith(prefixes))
