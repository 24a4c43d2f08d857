"""Choose how a model is split over the ranks of a group."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from functools import partial

import torch
import torch.distributed as dist
from torch import nn

from graph_analysis import Machine, OpTimes, merge, predict, with_memory
from graph_analysis.capture import measure_ops, resize_batch
from graph_analysis.ir import Graph
from graph_analysis.machine import check_machine
from graph_analysis.partition import (
    BatchTimes,
    Partition,
    Step,
    chain_parts,
    make_units,
    partition_from_json,
    partition_to_json,
    partitions,
    pipelines,
    read_step,
)
from graph_analysis.times import OpTime, signatures
from rdmatensor.parallel._apply import first_batch_norm
from rdmatensor.parallel._measure import measure_machine, memory_bytes
from rdmatensor.parallel._pairs import changes_ns, output_bytes, shareable_pairs
from rdmatensor.parallel._race import race as run_race
from rdmatensor.parallel._ranks import Ranks, refuse
from rdmatensor.parallel._split import tied_names
from rdmatensor.parallel._stages import Loss, chain_of, why_no_stages

_RACED = 4  # the best predicted partitions, data parallel among them


def choose(
    model: nn.Module,
    inputs: Sequence[object],
    target: object,
    *,
    loss_fn: Loss,
    machine: Machine | None = None,
    memory: str | int | None = None,
    state_copies: int = 2,
    race: bool = True,
    group: dist.ProcessGroup | None = None,
) -> Partition:
    """Choose how a training step of `model` is split over the ranks of a group.

    Blocks until all ranks of the group have called it. Operations are timed on all ranks at once,
    rank 0 solves, and the best three partitions, data parallel and DistributedDataParallel are run
    for seven steps each on copies of the model. The model itself is not changed, nor is the state
    of torch's random numbers.

    Args:
        model: The model, with the same structure on all ranks.
        inputs: The arguments of its forward, with the rows of one rank when all have equally many.
        target: What loss_fn takes with the output, for these rows.
        loss_fn: loss_fn(output, target) is the mean over the rows.
        machine: None measures it.
        memory: The limit of this rank, as for measure_machine(); None takes the machine's.
        state_copies: Tensors as large as the parameters that the optimizer keeps: 2 for Adam, 0 for
            SGD without momentum.
        race: False trusts the prediction. With a limit of memory it is
            trusted, too, because the copies of a race need memory.
        group: None is the default group.

    Returns:
        The partition, the same on all ranks. text() explains it, apply() runs it.

    Raises:
        CaptureError: torch cannot capture the step whole; DistributedDataParallel works without.
        InvalidArgumentError: The machine has other ranks or hosts than the group.
        ArgumentError: No partition keeps the limits of memory; it names the least. Other ranks than
            0 raise RuntimeError with its words.
        PlanMismatchError: The ranks have different models, inputs or machines.

    Example:
        >>> choice = choose(model, (x,), y, loss_fn=mse_loss)  # doctest: +SKIP
        >>> print(choice.text())  # doctest: +SKIP
    """
    ranks = Ranks(group)
    with torch.random.fork_rng(devices=[]):  # what is measured and raced draws numbers
        used = _machine(ranks, machine, memory)
        found = _solved(ranks, used, model, inputs, target, loss_fn, state_copies)
        if race and ranks.size > 1 and not any(device.memory_bytes for device in used.devices):
            return run_race(model, found, inputs, target, loss_fn, ranks)
        return found[0]


def _machine(ranks: Ranks, machine: Machine | None, memory: str | int | None) -> Machine:
    """The machine of these ranks, the same on all."""
    if machine is None:
        return measure_machine(ranks.group, memory=memory)
    limits = tuple(ranks.all(ranks.together(partial(memory_bytes, memory))))
    if any(limits):
        machine = with_memory(machine, limits)

    def check() -> None:
        if machine.world_size != ranks.size:
            refuse("choose", f"the machine has {machine.world_size} ranks, the group {ranks.size}")
        check_machine(machine)
        device, here = machine.devices[ranks.rank], socket.gethostname()
        if device.host != here:
            refuse("choose", f"the machine's rank {ranks.rank} is on {device.host}, this is {here}")

    ranks.together(check)
    ranks.check_same("the machine", machine.fingerprint())
    return machine


def _solved(
    ranks: Ranks,
    machine: Machine,
    model: nn.Module,
    inputs: Sequence[object],
    target: object,
    loss_fn: Loss,
    state_copies: int,
) -> list[Partition]:
    """The best partitions, which rank 0 chose."""
    rows = ranks.together(lambda: _rows_of(inputs))

    def loss_of(output: object, *_: object) -> torch.Tensor:
        return loss_fn(output, target)

    graph, times = ranks.together(lambda: measure_ops(model, inputs, loss_fn=loss_of))
    ranks.check_same("the captured step", "\n".join(signatures(graph)))
    times = _agreed(ranks, times)
    batch = _batch_times(ranks, model, inputs, target, loss_fn, graph, times, rows)
    pairs, reasons = ranks.together(lambda: shareable_pairs(model, graph, inputs, ranks.size))
    ranks.check_same("the layers that can be split", repr(pairs))
    changes = changes_ns(model, pairs, ranks)
    norm = first_batch_norm(model)
    if norm is not None:
        reasons.append(f"rows stay equal: {norm} has statistics of them")
    units = make_units(graph, list(_blocks(model)), pairs, changes, tied_names(model))
    reasons += [f"not sharded: {u.name} shares a parameter" for u in units if not u.may_shard]
    step = read_step(graph, predict(graph, times).op_ns, units, state_copies)

    staged = ranks.together(lambda: _staged(model, inputs, target, graph, step, machine, batch))
    if isinstance(staged, str):
        reasons.append(staged)

    def solve() -> list[str]:
        if ranks.rank:
            return []
        found = partitions(
            step,
            machine,
            batch,
            may_be_unequal=norm is None,
            staged=() if isinstance(staged, str) else staged,
            reasons=reasons,
            most=_RACED,
        )
        return [partition_to_json(one) for one in found]

    texts = ranks.all(ranks.together(solve))[0]
    return [partition_from_json(text) for text in texts]


def _staged(
    model: nn.Module,
    inputs: Sequence[object],
    target: object,
    graph: Graph,
    step: Step,
    machine: Machine,
    batch: BatchTimes,
) -> tuple[Partition, ...] | str:
    """Partitions in pipeline stages, or why there are none."""
    why = why_no_stages(model, inputs, target)
    norm = first_batch_norm(model)
    if why is not None or norm is not None:
        return why or f"no pipeline: {norm} has statistics of a batch"
    modules = list(chain_of(model))
    parts = chain_parts(graph, step.op_ns, modules, output_bytes(model, modules, inputs[0]))
    moved = sum(x.nbytes for x in (*inputs, target) if isinstance(x, torch.Tensor))
    return pipelines(parts, step, machine, batch, moved)


def _rows_of(inputs: Sequence[object]) -> int:
    rows = [len(x) for x in inputs if isinstance(x, torch.Tensor) and x.ndim]
    if not rows or rows[0] < 1:
        refuse("choose", "inputs has no tensor whose dimension 0 is the batch")
    return rows[0]


def _agreed(ranks: Ranks, times: OpTimes) -> OpTimes:
    """The mean of all ranks for each signature, of which all have the same."""
    means = ranks.mean([times.overhead_permille, *(row.ns for row in times.rows)])
    rows = (
        OpTime(row.signature, row.target, row.flops, row.moved_bytes, ns)
        for row, ns in zip(times.rows, means[1:], strict=True)
    )
    return OpTimes(times.clock, tuple(rows), means[0])


def _batch_times(
    ranks: Ranks,
    model: nn.Module,
    inputs: Sequence[object],
    target: object,
    loss_fn: Loss,
    graph: Graph,
    times: OpTimes,
    rows: int,
) -> BatchTimes:
    """The step at these rows and at half of them, by measured operations."""
    whole_ns = predict(graph, times).total_ns
    few = rows // 2
    if few < 1 or not isinstance(target, torch.Tensor) or len(target) != rows:
        return BatchTimes(rows, whole_ns, rows, whole_ns)
    few_target = target[:few]

    def measure() -> tuple[Graph, OpTimes]:
        return measure_ops(
            model,
            resize_batch(tuple(inputs), few),
            loss_fn=lambda output, *_: loss_fn(output, few_target),
        )

    half, half_times = ranks.together(measure)
    half_ns = predict(half, merge(_agreed(ranks, half_times), times)).total_ns
    return BatchTimes(few, min(half_ns, whole_ns), rows, whole_ns)


def _blocks(model: nn.Module) -> Iterator[str]:
    """The parts of a model that are sharded one by one: its children, and those of its lists."""
    for name, child in model.named_children():
        if isinstance(child, (nn.Sequential, nn.ModuleList)):
            yield from (f"{name}.{inner}" for inner, _ in child.named_children())
        else:
            yield name
