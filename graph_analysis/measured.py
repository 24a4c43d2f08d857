"""Buckets chosen again, from what the first steps of a run measured.

A plan's first buckets come from assumed costs. choose_again() takes a data-parallel plan and what
was measured, on all ranks alike, and gives the plan that the cost model would have made with these
numbers. Pure functions: the same measurements give the same plan on every rank.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from graph_analysis.buckets import make_buckets, wire
from graph_analysis.errors import InvalidArgument
from graph_analysis.ir import CostModel, Message, align_up
from graph_analysis.packing import lay_out_again
from graph_analysis.plan import PlannedBucket, TransferPlan

_NS_PER_S = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Measured:
    """What a run measured; the ranks agree on it before it is used.

    ready_ns: when each gradient was final, after the start of backward, on the last rank.
    latency_ns: of a message of a few bytes. transfers: span in bytes and time in ns of each
    bucket, alone on the link.
    """

    ready_ns: Mapping[str, int]
    latency_ns: int
    transfers: Sequence[tuple[int, int]]


def gradient_buckets(plan: TransferPlan) -> tuple[PlannedBucket, ...]:
    """The buckets that all ranks sum in backward, in the order in which they leave.

    A merged plan has sums of the program's own besides, which are nobody's gradients.
    """
    gradients = {tensor.name for tensor in plan.tensors if tensor.role == "gradient"}
    return tuple(
        bucket
        for bucket in plan.buckets
        if bucket.phase == "backward"
        and bucket.operation == "all_reduce"
        and gradients.issuperset(bucket.tensors)
    )


def fit_cost(plan: TransferPlan, measured: Measured) -> CostModel:
    """The plan's cost model with the latency and the rate that were measured."""
    ranks = plan.strategy.world_size
    sent = sum(size * 2 * (ranks - 1) // ranks for size, _ in measured.transfers)
    taken_ns = sum(max(time - measured.latency_ns, 1) for _, time in measured.transfers)
    rate = sent * _NS_PER_S // max(taken_ns, 1)
    return replace(
        plan.cost,
        latency_ns=max(measured.latency_ns, 1),
        bandwidth_bytes_per_s=max(rate, 1),
    )


def finish_ns(plan: TransferPlan, measured: Measured, cost: CostModel) -> int:
    """When the plan's last bucket would be over, by the cost model and the measured readiness."""
    link = wire(cost, "all_reduce", plan.strategy.world_size)
    free = 0
    for bucket in gradient_buckets(plan):
        ready = max(measured.ready_ns[tensor] for tensor in bucket.tensors)
        free = max(free, ready * link.scale) + link.latency + bucket.span_bytes * link.per_byte
    return -(-free // link.scale)


def choose_again(plan: TransferPlan, measured: Measured) -> TransferPlan:
    """The plan with other buckets, where they are expected to end the step earlier; else itself.

    A gain below one latency is none: the pass that makes the buckets trades that much for fewer
    messages. Raises: InvalidArgument (not data-parallel, or a gradient was not measured).
    """
    _require_measured(plan, measured)
    if not gradient_buckets(plan):
        return plan
    cost = fit_cost(plan, measured)
    chosen = _with_buckets(plan, _buckets(plan, measured, cost), cost)
    gain_ns = finish_ns(plan, measured, cost) - finish_ns(chosen, measured, cost)
    return chosen if gain_ns > cost.latency_ns else plan


def _require_measured(plan: TransferPlan, measured: Measured) -> None:
    if plan.strategy.kind != "data_parallel":
        raise InvalidArgument(f"buckets of a {plan.strategy.kind} plan cannot be chosen again")
    for bucket in gradient_buckets(plan):
        missing = [tensor for tensor in bucket.tensors if tensor not in measured.ready_ns]
        if missing:
            raise InvalidArgument(f"no readiness was measured for {missing[0]}")


def _buckets(plan: TransferPlan, measured: Measured, cost: CostModel) -> tuple[PlannedBucket, ...]:
    tensors = {tensor.name: tensor for tensor in plan.tensors}
    alignment = plan.arenas[0].alignment_bytes
    old = gradient_buckets(plan)
    messages = []
    for name in (name for bucket in old for name in bucket.tensors):
        size = tensors[name].size_bytes
        assert size is not None  # gradients in buckets of a data-parallel plan are static
        span = align_up(size, alignment)
        messages.append(Message(name, tensors[name].dtype, span, measured.ready_ns[name]))
    # Stable: what was ready at the same time keeps its order, save that dtypes form runs.
    messages.sort(key=lambda message: (message.ready_ns, message.dtype))
    made = []
    for bucket in make_buckets(messages, wire(cost, "all_reduce", plan.strategy.world_size)):
        inside = messages[bucket.start : bucket.stop]
        names = tuple(message.tensor for message in inside)
        made.append(
            replace(
                old[0],
                dtype=inside[0].dtype,
                tensors=names,
                payload_bytes=sum(tensors[name].size_bytes or 0 for name in names),
                span_bytes=sum(message.span_bytes for message in inside),
                places=(),
                ready_ns=plan.forward_end_ns + inside[-1].ready_ns,
                start_ns=plan.forward_end_ns + bucket.start_ns,
                finish_ns=plan.forward_end_ns + bucket.finish_ns,
            )
        )
    return tuple(made)


def _with_buckets(
    plan: TransferPlan, buckets: tuple[PlannedBucket, ...], cost: CostModel
) -> TransferPlan:
    """The plan with these buckets for its gradients, all laid out anew."""
    old = gradient_buckets(plan)
    kept = [bucket for bucket in plan.buckets if bucket not in old]
    return replace(lay_out_again(plan, [*kept, *buckets]), cost=cost)
