"""Contradictions in a plan: what a reader must know before it writes into peers' memory by it."""

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable
from math import prod

from graph_analysis.errors import PlanError
from graph_analysis.ir import align_up
from graph_analysis.plan import Placement, PlannedBucket, PlannedTensor, TransferPlan


def check_plan(plan: TransferPlan) -> None:
    """Raise PlanError, naming the first tensor, bucket or section that cannot be right."""
    _require(plan.op_count >= 0 and plan.strategy.world_size >= 1, "negative count")
    _check_tensors(plan)
    _check_crossings(plan)
    _check_placements(plan)
    _check_buckets(plan)
    _check_overlap(plan)


def _require(is_right: bool, what: str) -> None:
    if not is_right:
        raise PlanError(f"plan contradicts itself: {what}")


def _unique(names: Iterable[str], what: str) -> set[str]:
    counts = Counter(names)
    twice = [name for name, count in counts.items() if count > 1]
    _require(not twice, f"{what} named more than once: {twice[:3]}")
    return set(counts)


def _check_tensors(plan: TransferPlan) -> None:
    symbols = _unique((s.name for s in plan.symbols), "symbols")
    names = _unique((t.name for t in plan.tensors), "tensors")
    for tensor in plan.tensors:
        _check_size(tensor)
        _require(set(tensor.symbols) <= symbols, f"tensor {tensor.name}: unknown symbol")
        _require(
            0 <= tensor.first_use <= tensor.last_use <= plan.op_count,
            f"tensor {tensor.name}: used from {tensor.first_use} to {tensor.last_use} "
            f"of {plan.op_count} operations",
        )
        is_gradient = tensor.role == "gradient"
        _require(
            is_gradient == (tensor.ready_order is not None) == (tensor.parameter in names),
            f"tensor {tensor.name}: role {tensor.role}, parameter {tensor.parameter}",
        )
    orders = sorted(t.ready_order for t in plan.tensors if t.ready_order is not None)
    _require(orders == list(range(len(orders))), "ready orders are not 0, 1, 2, ...")


def _check_size(tensor: PlannedTensor) -> None:
    sizes = [dim for dim in tensor.shape if isinstance(dim, int)]
    is_static = len(sizes) == len(tensor.shape)
    wanted = {
        "static": is_static and tensor.max_bytes == prod(sizes) * tensor.item_bytes,
        "bounded": not is_static and tensor.max_bytes is not None and tensor.max_bytes >= 0,
        "dynamic": not is_static and tensor.max_bytes is None,
    }
    exact = tensor.max_bytes if is_static else None
    _require(
        wanted[tensor.kind]
        and tensor.size_bytes == exact
        and tensor.item_bytes >= 1
        and min(sizes, default=0) >= 0
        and is_static == (not tensor.symbols),
        f"tensor {tensor.name}: {tensor.kind} {tensor.shape} of {tensor.max_bytes} bytes",
    )


def _check_crossings(plan: TransferPlan) -> None:
    groups = {group.name: group for group in plan.groups}
    _unique((g.name for g in plan.groups), "groups")
    for group in plan.groups:
        ranks = set(group.ranks)
        _require(
            len(ranks) == len(group.ranks) and ranks <= set(range(plan.strategy.world_size)),
            f"group {group.name}: ranks {group.ranks} of {plan.strategy.world_size}",
        )
    names = {tensor.name for tensor in plan.tensors}
    _unique((f"{c.tensor} in {c.phase}" for c in plan.crossings), "crossings")
    for crossing in plan.crossings:
        what = f"crossing of {crossing.tensor}"
        _require(crossing.tensor in names and crossing.group in groups, f"{what}: unknown name")
        has_root = crossing.root in groups[crossing.group].ranks
        _require(
            has_root if crossing.operation == "broadcast" else crossing.root is None,
            f"{what}: {crossing.operation} from root {crossing.root}",
        )


def _check_placements(plan: TransferPlan) -> None:
    arena = plan.arena
    tensors = {tensor.name: tensor for tensor in plan.tensors}
    _unique((p.tensor for p in arena.placements), "placements")
    align = arena.alignment_bytes
    _require(align >= 1 and align & (align - 1) == 0, f"alignment {align}")
    _require(
        0 <= arena.lower_bound_bytes <= arena.peak_bytes <= arena.naive_bytes,
        f"arena of {arena.peak_bytes} bytes, bounds {arena.lower_bound_bytes} "
        f"and {arena.naive_bytes}",
    )
    for place in arena.placements:
        _require(place.tensor in tensors, f"placement of unknown tensor {place.tensor}")
        _require(
            place.size_bytes == tensors[place.tensor].max_bytes
            and place.offset >= 0
            and place.offset % align == 0
            and place.offset + place.size_bytes <= arena.peak_bytes,
            f"tensor {place.tensor}: {place.size_bytes} bytes at {place.offset} in an arena "
            f"of {arena.peak_bytes}",
        )


def _check_buckets(plan: TransferPlan) -> None:
    places = {place.tensor: place for place in plan.arena.placements}
    dtypes = {tensor.name: tensor.dtype for tensor in plan.tensors}
    sent = {
        (c.tensor, c.operation, c.phase, c.group, c.root)
        for c in plan.crossings
        if c.phase != "setup" and c.tensor in places
    }
    packed = [
        (name, b.operation, b.phase, b.group, b.root) for b in plan.buckets for name in b.tensors
    ]
    _require(
        len(packed) == len(sent) and set(packed) == sent,
        "buckets do not hold each crossing of a step once",
    )
    for number, bucket in enumerate(plan.buckets):
        members = [places[name] for name in bucket.tensors]
        is_packed = _is_packed(bucket, members, plan.arena.alignment_bytes)
        is_one_dtype = {dtypes[name] for name in bucket.tensors} == {bucket.dtype}
        is_timed = 0 <= bucket.ready_ns <= bucket.start_ns <= bucket.finish_ns
        _require(is_packed and is_one_dtype and is_timed, f"bucket {number}: {bucket}")


def _is_packed(bucket: PlannedBucket, members: list[Placement], align: int) -> bool:
    """Do the members stand in the arena one after the other, as span_bytes says?"""
    at = bucket.offset
    for place in members:
        if place.offset != at:
            return False
        at += align_up(place.size_bytes, align)
    payload = sum(place.size_bytes for place in members)
    return at == bucket.offset + bucket.span_bytes and payload == bucket.payload_bytes


def _check_overlap(plan: TransferPlan) -> None:
    """No two placements share a byte while both live: one sweep over time.

    As long as nothing overlaps, live placements are disjoint, so a newcomer can only touch its
    two neighbours by offset.
    """
    lives = {tensor.name: tensor for tensor in plan.tensors}
    places = [place for place in plan.arena.placements if place.size_bytes > 0]
    deaths = sorted(places, key=lambda p: lives[p.tensor].last_use)
    live: list[tuple[int, int, str]] = []
    died = 0
    for place in sorted(places, key=lambda p: lives[p.tensor].first_use):
        while lives[deaths[died].tensor].last_use < lives[place.tensor].first_use:
            gone = deaths[died]
            entry = (gone.offset, gone.offset + gone.size_bytes, gone.tensor)
            del live[bisect_left(live, entry)]
            died += 1
        new = (place.offset, place.offset + place.size_bytes, place.tensor)
        at = bisect_left(live, new)
        for start, end, other in live[max(0, at - 1) : at + 1]:
            _require(
                end <= new[0] or new[1] <= start,
                f"tensors {place.tensor} and {other} overlap in the arena",
            )
        insort(live, new)
