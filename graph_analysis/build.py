"""From a graph and a strategy to a plan: runs the passes and joins their facts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from graph_analysis.classify import SizeClass, classify
from graph_analysis.crossing import Strategy, find_crossings
from graph_analysis.errors import CaptureError
from graph_analysis.ir import (
    DEFAULT_ALIGNMENT_BYTES,
    DEFAULT_COST,
    CostModel,
    Graph,
    Lifetime,
    SymbolicDim,
)
from graph_analysis.liveness import lifetimes
from graph_analysis.packing import SizeFacts, place_buckets, plan_buckets
from graph_analysis.plan import PlannedTensor, StrategyRecord, TransferPlan
from graph_analysis.timing import op_end_ns

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch


def analyze(
    model: torch.nn.Module,
    example_inputs: Sequence[object],
    *,
    loss_fn: Callable[..., torch.Tensor] | None = None,
    strategy: Strategy,
    dynamic_shapes: Sequence[object] | Mapping[str, object] | None = None,
    cost: CostModel = DEFAULT_COST,
    alignment_bytes: int = DEFAULT_ALIGNMENT_BYTES,
) -> TransferPlan:
    """Plan the transfers of one training step of model, without running it.

    Shapes: example_inputs are the positional arguments of model.forward; dynamic_shapes has one
        entry per argument (or maps argument names to entries) as torch.export.export takes them,
        for example {0: torch.export.Dim("batch", max=64)}; None keeps every size fixed.
    Loss: loss_fn(output, *example_inputs) gives a scalar tensor; without it the sum of the
        floating outputs stands in, which has the same gradients' sizes, and plan.loss says so.
    Losses of capture: a model that torch cannot capture whole gets a plan of its parameters,
        buffers and gradients; plan.omissions says what was lost and why.
    Ownership: the model, its parameters and the inputs are not changed or kept.
    Raises: InvalidArgument, CaptureError (torch is not installed).
    Threads: one call at a time in a process, since torch's tracing has process-wide state.
    """
    try:
        from graph_analysis.capture import capture  # this package loads without torch
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise CaptureError("analyze() needs torch: pip install torch==2.13.0") from error
    graph = capture(model, example_inputs, loss_fn=loss_fn, dynamic_shapes=dynamic_shapes)
    return build_plan(graph, strategy, cost=cost, alignment_bytes=alignment_bytes)


def build_plan(
    graph: Graph,
    strategy: Strategy,
    *,
    cost: CostModel = DEFAULT_COST,
    alignment_bytes: int = DEFAULT_ALIGNMENT_BYTES,
) -> TransferPlan:
    """The plan of a captured graph: pure, and linear in the graph up to sorting."""
    classes = classify(graph)
    lives = lifetimes(graph)
    crossings = find_crossings(graph, strategy)
    facts = SizeFacts(classes, lives, op_end_ns(graph, cost), alignment_bytes)
    buckets = plan_buckets(graph, strategy.groups(), crossings, cost, facts)
    buckets, arena = place_buckets(buckets, facts)
    return TransferPlan(
        strategy=StrategyRecord(strategy.kind, strategy.world_size, strategy.options()),
        groups=strategy.groups(),
        source=graph.source,
        loss=graph.loss,
        captured_with=graph.captured_with,
        cost=cost,
        op_count=len(graph.ops),
        symbols=graph.symbols,
        tensors=_planned_tensors(graph, classes, lives),
        crossings=crossings,
        buckets=buckets,
        arena=arena,
        omissions=graph.omissions,
    )


def _planned_tensors(
    graph: Graph, classes: dict[str, SizeClass], lives: dict[str, Lifetime]
) -> tuple[PlannedTensor, ...]:
    sources = {
        s.name: s.source if s.dim is None else f"{s.source}, dimension {s.dim}"
        for s in graph.symbols
    }
    gradients = [v for v in graph.values if v.role == "gradient"]
    gradients.sort(key=lambda v: v.ready_op)  # stable: equal ones stay in position
    order = {v.name: index for index, v in enumerate(gradients)}
    tensors = []
    for value in graph.values:
        if value.alias_of is not None:
            continue
        size, life = classes[value.name], lives[value.name]
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
                first_use=life.first_use,
                last_use=life.last_use,
                ready_order=order.get(value.name),
                parameter=value.of,
            )
        )
    return tuple(tensors)
