"""Pass: the plan of the same step in which masked blocks of gradients are not sent.

A mask says which blocks of a parameter are live. All others are zero and stay zero, so that nothing
needs their gradients. A bucket then holds the live blocks only: its size is still known before the
step, its members keep their order, and inside a member the blocks keep their order in memory.
Buckets that have become small are sent together where the cost model allows it, by the pass that
made the dense ones.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, groupby, pairwise

from graph_analysis.buckets import make_buckets, wire
from graph_analysis.errors import ArgumentError
from graph_analysis.ir import Message, align_up
from graph_analysis.packing import lay_out_again
from graph_analysis.plan import (
    LiveBlocks,
    PlannedBucket,
    PlannedTensor,
    TransferPlan,
    block_grid,
    sent_bytes,
)


@dataclass(frozen=True, slots=True)
class Mask:
    """The blocks of a parameter that are not zero.

    A parameter counts as a matrix: its first dimension by all others. Blocks are numbered row by
    row, and may be smaller at the lower and right edges.

    Attributes:
        block: Rows and columns of a block.
        live: The numbers of the live blocks, in ascending order.
    """

    block: tuple[int, int]
    live: tuple[int, ...]


def thin(plan: TransferPlan, masks: Mapping[str, Mask]) -> TransferPlan:
    """Plan the same step without the masked blocks of gradients. Pure.

    Args:
        plan: A plan. The masks of one that is thin already are replaced.
        masks: Parameter name -> its mask. Gradients of other parameters are sent whole.

    Returns:
        The plan, with another fingerprint if a mask hides a block.

    Raises:
        ArgumentError: A mask is of no parameter with a gradient in the plan, does not fit its
            shape, or is of one that the program's own collective sums.

    Example:
        >>> plan = analyze(torch.nn.Linear(64, 64), (torch.ones(2, 64),), strategy=DataParallel(2))
        >>> thinned = thin(plan, {"weight": Mask((1, 16), live=(0, 9, 200))})
        >>> plan.buckets[0].payload_bytes, thinned.buckets[0].payload_bytes
        (16640, 448)
    """
    gradients = {t.parameter: t for t in plan.tensors if t.role == "gradient" and t.parameter}
    unknown = sorted(masks.keys() - gradients.keys())
    if unknown:
        raise ArgumentError(f"thin: the plan has no gradient of {unknown[0]}, which has a mask")
    own = {crossing.tensor for crossing in plan.crossings if crossing.result is not None}
    live = []
    for name, gradient in gradients.items():
        if name not in masks:
            continue
        blocks = _live(gradient, masks[name])
        if blocks is not None and gradient.name in own:
            raise ArgumentError(f"thin: a collective of the program itself sums {gradient.name}")
        live += [] if blocks is None else [blocks]
    if not live and not plan.live:
        return plan
    sized = replace(plan, live=tuple(live))
    return lay_out_again(sized, tuple(_resized(sized)))


def _live(gradient: PlannedTensor, mask: Mask) -> LiveBlocks | None:
    """The mask as a part of the plan; None if it hides nothing."""
    what = f"thin: the mask of {gradient.parameter}"
    is_count = [type(side) is int and side >= 1 for side in mask.block]
    if is_count != [True, True]:
        raise ArgumentError(f"{what} has blocks of {mask.block}, not of two positive integers")
    if gradient.kind != "static":
        raise ArgumentError(f"{what} is of a gradient whose size is {gradient.kind}")
    high, wide = block_grid(gradient, mask.block)
    is_number = all(type(block) is int and 0 <= block < high * wide for block in mask.live)
    if not is_number or any(a >= b for a, b in pairwise(mask.live)):
        raise ArgumentError(
            f"{what} must have ascending block numbers below {high * wide}: it is {gradient.shape} "
            f"in blocks of {mask.block}"
        )
    if len(mask.live) == high * wide:
        return None
    return LiveBlocks(gradient.name, mask.block, tuple(mask.live))


def _resized(plan: TransferPlan) -> Iterator[PlannedBucket]:
    """The buckets with the bytes that are sent now; runs of one kind are divided again."""
    sizes = sent_bytes(plan)
    align = plan.arenas[0].alignment_bytes if plan.arenas else 1
    times = Counter(c.tensor for c in plan.crossings if c.phase != "setup")
    thinned = {one.tensor for one in plan.live}

    def kind(bucket: PlannedBucket) -> tuple[object, ...]:
        is_free = all(times[name] == 1 for name in bucket.tensors)
        return bucket.phase, bucket.operation, bucket.group, bucket.root, is_free

    def resized(bucket: PlannedBucket) -> PlannedBucket:
        each = [sizes[name] for name in bucket.tensors]
        span = sum(align_up(size, align) for size in each)
        return replace(bucket, payload_bytes=sum(each), span_bytes=span)

    for (*_, is_free), run in groupby(plan.buckets, kind):
        buckets = [resized(bucket) for bucket in run]
        if is_free and any(not thinned.isdisjoint(bucket.tensors) for bucket in buckets):
            yield from _together(plan, buckets)
        else:
            yield from buckets


def _together(plan: TransferPlan, buckets: Sequence[PlannedBucket]) -> Iterator[PlannedBucket]:
    """Buckets of one operation, some joined; each is one message."""
    ranks = next(len(group.ranks) for group in plan.groups if group.name == buckets[0].group)
    ready = accumulate((bucket.ready_ns for bucket in buckets), max)
    messages = [
        Message(bucket.tensors[0], bucket.dtype, bucket.span_bytes, ready_ns)
        for bucket, ready_ns in zip(buckets, ready, strict=True)
    ]
    for made in make_buckets(messages, wire(plan.cost, buckets[0].operation, ranks)):
        inside = buckets[made.start : made.stop]
        yield replace(
            inside[0],
            tensors=tuple(name for bucket in inside for name in bucket.tensors),
            payload_bytes=sum(bucket.payload_bytes for bucket in inside),
            span_bytes=sum(bucket.span_bytes for bucket in inside),
            ready_ns=messages[made.stop - 1].ready_ns,
            start_ns=made.start_ns,
            finish_ns=made.finish_ns,
        )
