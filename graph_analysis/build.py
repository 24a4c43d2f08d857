"""From a graph and a strategy to a plan: runs the passes and combines their facts."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from graph_analysis.advice import advise
from graph_analysis.classify import SizeClass, as_dynamic, classify, over_share
from graph_analysis.crossing import order_crossings
from graph_analysis.errors import ArgumentError, CaptureError
from graph_analysis.ir import (
    DEFAULT_ALIGNMENT_BYTES,
    DEFAULT_COST,
    DEFAULT_POLICY,
    CostModel,
    Graph,
    Lifetime,
    SlotPolicy,
    SymbolicDim,
    Value,
)
from graph_analysis.liveness import lifetimes, storage_roots
from graph_analysis.packing import SizeFacts, place_buckets, plan_buckets
from graph_analysis.plan import PlannedTensor, StrategyRecord, TransferPlan
from graph_analysis.strategies.base import Spread, StepFacts, Strategy, forward_op_count
from graph_analysis.strategies.graph_collectives import GraphCollectives
from graph_analysis.timing import op_end_ns

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch


def analyze(
    model: torch.nn.Module,
    example_inputs: Sequence[object],
    *,
    loss_fn: Callable[..., torch.Tensor] | None = None,
    strategy: Strategy | Literal["advise"],
    workers: int | None = None,
    dynamic_shapes: Sequence[object] | Mapping[str, object] | None = None,
    cost: CostModel = DEFAULT_COST,
    policy: SlotPolicy = DEFAULT_POLICY,
    alignment_bytes: int = DEFAULT_ALIGNMENT_BYTES,
) -> TransferPlan:
    """Plan the transfers of one training step of model, without running it.

    The one exception: with GraphCollectives a copy of a model that torch cannot capture whole runs
    one step, on every rank at once if the process group is a real one.

    Shapes: example_inputs are the positional arguments of model.forward; dynamic_shapes has one
        entry per argument (or maps argument names to entries) as torch.export.export takes them,
        for example {0: torch.export.Dim("batch", max=64)}; None keeps every size fixed.
    Strategy: "advise" compares an all-reduce and parameter servers for so many workers by the cost
        model (advice.py), prints which costs least and why, and plans it; other strategies have
        their number of ranks, and no workers.
    Loss: loss_fn(output, *example_inputs) returns a scalar tensor. Without it the sum of the
        floating outputs is used, which has the same gradients' sizes, and plan.loss says so.
    Losses of capture: a model that torch cannot capture whole gets a plan of its parameters,
        buffers and gradients; plan.omissions says what was lost and why.
    Ownership: the model, its parameters and the inputs are not changed or kept.
    Raises: ArgumentError, CaptureError (torch is not installed).
    Threads: one call at a time in a process, since torch's tracing has process-wide state.
    """
    if isinstance(strategy, str) and strategy != "advise":
        raise ArgumentError(f"strategy {strategy!r} is neither a Strategy nor 'advise'")
    if (strategy == "advise") != (workers is not None):
        raise ArgumentError(f"workers {workers!r}: strategy='advise' has workers, and no other one")
    try:
        from graph_analysis.capture import capture  # this package loads without torch
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise CaptureError("analyze() needs torch: pip install torch==2.13.0") from error
    graph = capture(
        model,
        example_inputs,
        loss_fn=loss_fn,
        dynamic_shapes=dynamic_shapes,
        may_run=isinstance(strategy, GraphCollectives),
    )
    if not isinstance(strategy, str):
        chosen = strategy
    else:
        assert workers is not None
        advice = advise(graph, workers, cost)
        sys.stdout.write(advice.text())
        chosen = advice.strategy
    return build_plan(graph, chosen, cost=cost, policy=policy, alignment_bytes=alignment_bytes)


def build_plan(
    graph: Graph,
    strategy: Strategy,
    *,
    cost: CostModel = DEFAULT_COST,
    policy: SlotPolicy = DEFAULT_POLICY,
    alignment_bytes: int = DEFAULT_ALIGNMENT_BYTES,
) -> TransferPlan:
    """The plan of a captured graph: pure, and linear in the graph up to sorting."""
    lives = lifetimes(graph)
    ends = op_end_ns(graph, cost)
    spread = strategy.spread(StepFacts(graph, lives, ends))
    classes = classify(graph)
    places = ((stay.home, stay.tensor) for stay in spread.stays)
    classes = as_dynamic(classes, over_share(classes, places, policy))
    crossings = order_crossings(graph, spread)
    forward_ops = forward_op_count(graph)
    facts = SizeFacts(classes, ends, alignment_bytes)
    drafts = plan_buckets(graph, spread, crossings, cost, facts)
    buckets, arenas = place_buckets(drafts, spread, facts)
    return TransferPlan(
        strategy=StrategyRecord(strategy.kind, spread.world_size, spread.options),
        groups=spread.groups,
        source=graph.source,
        loss=graph.loss,
        captured_with=graph.captured_with,
        cost=cost,
        policy=policy,
        op_count=len(graph.ops),
        forward_op_count=forward_ops,
        forward_end_ns=ends[forward_ops - 1] if forward_ops else 0,
        end_ns=ends[-1] if ends else 0,
        symbols=graph.symbols,
        tensors=_planned_tensors(graph, spread, classes, lives),
        crossings=crossings,
        buckets=buckets,
        arenas=arenas,
        omissions=graph.omissions + spread.omissions,
    )


def _planned_tensors(
    graph: Graph,
    spread: Spread,
    classes: Mapping[str, SizeClass],
    lives: Mapping[str, Lifetime],
) -> tuple[PlannedTensor, ...]:
    """Every value that owns memory, and the views that cross."""
    sources = {
        s.name: s.source if s.dim is None else f"{s.source}, dimension {s.dim}"
        for s in graph.symbols
    }
    gradients = [v for v in graph.values if v.role == "gradient"]
    gradients.sort(key=lambda v: v.ready_op)  # stable: equal ones keep their order
    order = {v.name: index for index, v in enumerate(gradients)}
    roots = storage_roots(graph)
    sent = {name for c in spread.crossings for name in (c.tensor, c.result)}
    tensors = []
    for value in graph.values:
        if value.alias_of is not None and value.name not in sent:
            continue
        size, root = classes[value.name], roots[value.name]
        tensors.append(
            PlannedTensor(
                name=value.name,
                role=value.role,
                dtype=value.dtype,
                item_bytes=value.item_bytes,
                shape=tuple(d.expr if isinstance(d, SymbolicDim) else d for d in value.shape),
                kind=size.kind,
                size_bytes=size.size_bytes,
                max_bytes=size.max_bytes,
                symbols=size.symbols,
                inputs=tuple(dict.fromkeys(sources[name] for name in size.symbols)),
                producer=None if value.producer is None else graph.ops[value.producer].name,
                first_use=_first_use(value, lives[root]),
                last_use=lives[root].last_use,
                view_of=None if root == value.name else root,
                ready_order=order.get(value.name),
                parameter=value.of,
                homes=spread.holders.get(root, ()),
            )
        )
    return tuple(tensors)


def _first_use(value: Value, life: Lifetime) -> int:
    """A view that is sent needs memory of its own from the moment it is taken."""
    return life.first_use if value.alias_of is None else max(life.first_use, value.ready_op)
