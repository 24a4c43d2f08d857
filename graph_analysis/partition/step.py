"""What a prediction needs of a captured step, and the prediction itself.

Computation follows the order of the graph. Gradients of replicated parameters leave in buckets as
they become ready, one after the other over one link. Other transfers of a unit hold the step until
they end. Transfers of gradients hide behind the rest of the backward pass, by the share that the
machine was measured to hide.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from graph_analysis.classify import example_bytes
from graph_analysis.ir import Block, Graph
from graph_analysis.liveness import largest_live_set_bytes, lifetimes
from graph_analysis.machine import Machine
from graph_analysis.partition.choice import Prediction, UnitChoice
from graph_analysis.partition.pairs import Pair
from graph_analysis.strategies.base import forward_op_count

# Buckets of gradients, as DistributedDataParallel makes them.
_FIRST_BUCKET_BYTES = 1 << 20
_BUCKET_BYTES = 25 << 20
_LIVES_IN_STEP = ("activation", "backward", "input", "loss")


@dataclass(frozen=True, slots=True)
class Unit:
    """A part of the model: a pair of linear layers, or a module without the pairs inside.

    parameters are names; cut_bytes is what of them a pair divides among the ranks. may_shard: no
    module outside holds a parameter of it.
    """

    name: str
    modules: tuple[str, ...]
    excluded: tuple[str, ...]
    parameters: tuple[str, ...]
    parameter_bytes: int
    cut_bytes: int = 0
    pair: Pair | None = None
    change_ns: int = 0  # of computation, if the pair is divided
    may_shard: bool = True


@dataclass(frozen=True, slots=True)
class Step:
    """A step at the shares of even ranks. scale_permille: computation at other shares, by rank."""

    op_ns: tuple[int, ...]
    forward_ops: int
    ready: tuple[tuple[int, str], ...]  # operation after which each parameter's gradient is final
    sizes: Mapping[str, int]  # of parameters, in bytes
    units: tuple[Unit, ...]
    activation_bytes: int
    state_copies: int
    first_op: Mapping[str, int]  # of each module, in the forward
    backward_ops: Mapping[str, tuple[int, int]]  # of each module, the first and the last


def read_step(
    graph: Graph, op_ns: Sequence[int], units: tuple[Unit, ...], state_copies: int
) -> Step:
    """The facts of a graph."""
    limit = forward_op_count(graph)
    lives = lifetimes(graph)
    blocks = [
        Block(v.name, example_bytes(v), lives[v.name])
        for v in graph.values
        if v.alias_of is None and v.role in _LIVES_IN_STEP
    ]
    first_op: dict[str, int] = {}
    backward: dict[str, tuple[int, int]] = {}
    for index, op in enumerate(graph.ops):
        if index < limit:
            first_op.setdefault(op.unit, index)
        else:
            backward[op.unit] = (backward.get(op.unit, (index, index))[0], index)
    gradients = sorted(
        (v.ready_op, v.of) for v in graph.values if v.role == "gradient" and v.of is not None
    )
    return Step(
        op_ns=tuple(op_ns),
        forward_ops=limit,
        ready=tuple(gradients),
        sizes={v.name: example_bytes(v) for v in graph.values if v.role == "parameter"},
        units=units,
        activation_bytes=largest_live_set_bytes(blocks),
        state_copies=state_copies,
        first_op=first_op,
        backward_ops=backward,
    )


def predict_step(
    step: Step,
    choices: Sequence[UnitChoice],
    shares: Sequence[int],
    scale_permille: Sequence[int],
    machine: Machine,
) -> Prediction:
    """The step of the slowest rank. scale_permille: its computation at its rows and its speed."""
    ways = {one.unit: one.way for one in choices}
    held = _holding_transfers(step, ways, machine)
    change_ns = sum(u.change_ns for u in step.units if ways[u.name] == "column_row")
    replicated = {name for u in step.units if ways[u.name] == "replicate" for name in u.parameters}
    slowest = max(scale_permille)
    end_ns, gradient_ns = _play(step, held, replicated, slowest, machine)
    held_ns = sum(ns for before in held.values() for ns in before)
    computes = [(sum(step.op_ns) + change_ns) * scale // 1000 for scale in scale_permille]
    compute_ns = max(0, *computes)
    sent_ns = held_ns + gradient_ns
    high_ns = compute_ns + sent_ns
    hidden_ns = max(0, high_ns - end_ns - change_ns * slowest // 1000)
    hides_permille = machine.cost("overlap_permille", 1000)
    step_ns = high_ns - hidden_ns * min(hides_permille, 1000) // 1000
    return Prediction(
        step_ns=step_ns,
        low_ns=min(step_ns, max(compute_ns + held_ns, sent_ns)),
        high_ns=high_ns,
        sent_ns=sent_ns,
        exposed_ns=step_ns - compute_ns,
        compute_ns=tuple(max(0, ns) for ns in computes),
        peak_bytes=tuple(
            _peak_bytes(step, ways, machine.world_size, share, max(1, sum(shares)))
            for share in shares
        ),
    )


def _holding_transfers(
    step: Step, ways: Mapping[str, str], machine: Machine
) -> dict[int, list[int]]:
    """Times of transfers that hold the step, by the operation before which they run."""
    found: dict[int, list[int]] = {}

    def hold(before: int, operation: str, size_bytes: int) -> None:
        found.setdefault(before, []).append(machine.cost_ns(operation, size_bytes))

    world = machine.world_size
    for unit in step.units:
        fixed_ns = machine.unit_ns(ways[unit.name])
        if fixed_ns and unit.parameters:
            found.setdefault(0, []).append(fixed_ns)
        if ways[unit.name] == "column_row" and unit.pair is not None:
            pair = unit.pair
            into, out = world * pair.in_bytes, world * pair.out_bytes
            begins = step.backward_ops.get(pair.last, (step.forward_ops, 0))[0]
            ends = max(step.backward_ops.get(name, (0, begins))[1] for name in pair.first)
            hold(pair.end + 1, "reduce_scatter", out)
            hold(begins, "all_gather", out)
            for _ in range(pair.gathers):
                hold(pair.begin, "all_gather", into)
                hold(ends + 1, "reduce_scatter", into)
        elif ways[unit.name] == "fsdp" and unit.parameters:
            owners = [name.rpartition(".")[0] for name in unit.parameters]
            begins = min(step.first_op.get(owner, 0) for owner in owners)
            backward = [step.backward_ops[o] for o in owners if o in step.backward_ops]
            hold(begins, "all_gather", unit.parameter_bytes)
            if backward:
                hold(min(b for b, _ in backward), "all_gather", unit.parameter_bytes)
                last = max(e for _, e in backward)
                hold(last + 1, "reduce_scatter", unit.parameter_bytes)
    return found


def _play(
    step: Step,
    held: Mapping[int, Sequence[int]],
    replicated: Collection[str],
    scale_permille: int,
    machine: Machine,
) -> tuple[int, int]:
    """The end of the step if transfers of gradients hide behind computation, and their time."""
    ready: dict[int, int] = {}
    for at, name in step.ready:
        if name in replicated:
            ready[at] = ready.get(at, 0) + step.sizes[name]
    now = link_free = sent_ns = waiting = 0
    most = _FIRST_BUCKET_BYTES
    for index in range(len(step.op_ns) + 1):
        for ns in held.get(index, ()):
            now = link_free = max(now, link_free) + ns
        if index < len(step.op_ns):
            now += step.op_ns[index] * scale_permille // 1000
        waiting += ready.get(index, 0)
        is_last = index == len(step.op_ns)
        if waiting >= most or (is_last and waiting):
            ns = machine.cost_ns("all_reduce", waiting)
            link_free = max(now, link_free) + ns
            sent_ns += ns
            waiting, most = 0, _BUCKET_BYTES
    return max(now, link_free), sent_ns


def _peak_bytes(step: Step, ways: Mapping[str, str], world: int, share: int, batch: int) -> int:
    """Parameters, gradients, the optimizer's state, and the most that lives during the step."""
    copies = 2 + step.state_copies
    peak = step.activation_bytes * share * world // batch
    gathered = [0]
    for unit in step.units:
        held = unit.parameter_bytes
        if ways[unit.name] == "fsdp":
            gathered.append(2 * held)
            held = -(-held // world)
        elif ways[unit.name] == "column_row" and unit.pair is not None:
            held = held - unit.cut_bytes + -(-unit.cut_bytes // world)
            peak += (world - 1) * (unit.pair.gathers * unit.pair.in_bytes)
        peak += copies * held
    return peak + max(gathered)
