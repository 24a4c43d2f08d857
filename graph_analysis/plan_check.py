"""Contradictions in a plan: a reader checks for them before it writes into peers' memory by it."""

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable
from itertools import pairwise
from math import prod

from graph_analysis.errors import PlanError
from graph_analysis.ir import ROOTED, Crossing, Group, SlotPolicy, align_up
from graph_analysis.plan import (
    Arena,
    Placement,
    PlannedBucket,
    PlannedTensor,
    TransferPlan,
    block_grid,
    sent_bytes,
)


def check_plan(plan: TransferPlan) -> None:
    """Raise PlanError, naming the first tensor, bucket or section that cannot be right."""
    _require(
        0 <= plan.forward_op_count <= plan.op_count
        and plan.strategy.world_size >= 1
        and 0 <= plan.forward_end_ns <= plan.end_ns,
        "negative count",
    )
    _check_tensors(plan)
    _check_live(plan)
    _check_groups(plan)
    _check_crossings(plan)
    _check_arenas(plan)
    _check_buckets(plan)
    for arena in plan.arenas:
        _check_overlap(arena)


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
    arenas = {arena.name for arena in plan.arenas}
    for tensor in plan.tensors:
        _check_size(tensor, plan.policy)
        _require(set(tensor.symbols) <= symbols, f"tensor {tensor.name}: unknown symbol")
        _require(
            0 <= tensor.first_use <= tensor.last_use <= plan.op_count,
            f"tensor {tensor.name}: used from {tensor.first_use} to {tensor.last_use} "
            f"of {plan.op_count} operations",
        )
        _require(
            set(tensor.homes) <= arenas and (tensor.view_of is None or tensor.view_of in names),
            f"tensor {tensor.name}: of {tensor.homes}, view of {tensor.view_of}",
        )
        is_gradient = tensor.role == "gradient"
        _require(
            is_gradient == (tensor.ready_order is not None) == (tensor.parameter in names),
            f"tensor {tensor.name}: role {tensor.role}, parameter {tensor.parameter}",
        )
    orders = sorted(t.ready_order for t in plan.tensors if t.ready_order is not None)
    _require(orders == list(range(len(orders))), "ready orders are not 0, 1, 2, ...")


def _check_size(tensor: PlannedTensor, policy: SlotPolicy) -> None:
    sizes = [dim for dim in tensor.shape if isinstance(dim, int)]
    is_static = len(sizes) == len(tensor.shape)
    share = policy.bounded_share_percent * policy.arena_bytes
    is_large = (tensor.max_bytes or 0) * 100 > share
    wanted = {
        "static": is_static and tensor.max_bytes == prod(sizes) * tensor.item_bytes,
        "bounded": not is_static and tensor.max_bytes is not None and tensor.max_bytes >= 0,
        "dynamic": not is_static and (tensor.max_bytes is None or is_large),
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


def _check_live(plan: TransferPlan) -> None:
    tensors = {tensor.name: tensor for tensor in plan.tensors}
    _unique((one.tensor for one in plan.live), "masks")
    for one in plan.live:
        tensor = tensors.get(one.tensor)
        what = f"mask of {one.tensor}"
        _require(
            tensor is not None and tensor.role == "gradient" and tensor.kind == "static",
            f"{what}: not a static gradient",
        )
        assert tensor is not None
        _require(min(one.block) >= 1, f"{what}: blocks of {one.block}")
        high, wide = block_grid(tensor, one.block)
        is_ascending = all(a < b for a, b in pairwise((-1, *one.live, high * wide)))
        _require(is_ascending, f"{what}: block numbers of {high} x {wide} blocks")


def _check_groups(plan: TransferPlan) -> None:
    _unique((g.name for g in plan.groups), "groups")
    everybody = set(range(plan.strategy.world_size))
    for group in plan.groups:
        ranks = set(group.ranks)
        _require(
            len(ranks) == len(group.ranks) and ranks <= everybody,
            f"group {group.name}: ranks {group.ranks} of {plan.strategy.world_size}",
        )


def _check_crossings(plan: TransferPlan) -> None:
    groups = {group.name: group for group in plan.groups}
    names = {tensor.name for tensor in plan.tensors}
    _unique((str(crossing) for crossing in plan.crossings), "crossings")
    for crossing in plan.crossings:
        what = f"crossing of {crossing.tensor}"
        _require(
            crossing.tensor in names
            and (crossing.result is None or crossing.result in names)
            and crossing.group in groups,
            f"{what}: unknown name",
        )
        _require(
            _is_rooted_well(crossing, groups[crossing.group]),
            f"{what}: {crossing.operation} from root {crossing.root}",
        )


def _is_rooted_well(crossing: Crossing, group: Group) -> bool:
    if crossing.operation not in ROOTED:
        return crossing.root is None
    return crossing.root in group.ranks and (crossing.operation != "send" or len(group.ranks) == 2)


def _check_arenas(plan: TransferPlan) -> None:
    tensors = {tensor.name: tensor for tensor in plan.tensors}
    sizes = sent_bytes(plan)
    _unique((arena.name for arena in plan.arenas), "arenas")
    everybody = set(range(plan.strategy.world_size))
    for arena in plan.arenas:
        ranks = set(arena.ranks)
        what = f"arena {arena.name}"
        _require(len(ranks) == len(arena.ranks) and ranks <= everybody, f"{what}: {arena.ranks}")
        _unique((f"{p.tensor} of {p.origin}" for p in arena.placements), f"placements in {what}")
        align = arena.alignment_bytes
        _require(align >= 1 and align & (align - 1) == 0, f"{what}: alignment {align}")
        _require(
            0 <= arena.lower_bound_bytes <= arena.peak_bytes <= arena.naive_bytes,
            f"{what} of {arena.peak_bytes} bytes, bounds {arena.lower_bound_bytes} "
            f"and {arena.naive_bytes}",
        )
        for place in arena.placements:
            _require(place.tensor in tensors, f"placement of unknown tensor {place.tensor}")
            wanted = None if tensors[place.tensor].kind == "dynamic" else sizes[place.tensor]
            _check_placement(place, wanted, arena, plan)


def _check_placement(
    place: Placement, size_bytes: int | None, arena: Arena, plan: TransferPlan
) -> None:
    """size_bytes: what the tensor takes, None for one that has no place."""
    _require(
        place.size_bytes == size_bytes
        and place.offset >= 0
        and place.offset % arena.alignment_bytes == 0
        and place.offset + place.size_bytes <= arena.peak_bytes,
        f"tensor {place.tensor}: {place.size_bytes} bytes at {place.offset} in an arena "
        f"of {arena.peak_bytes}",
    )
    _require(
        0 <= place.first_use <= place.last_use <= plan.op_count
        and (place.origin is None or 0 <= place.origin < plan.strategy.world_size),
        f"tensor {place.tensor}: placed from {place.first_use} to {place.last_use} of "
        f"{plan.op_count} operations, origin {place.origin}",
    )


def _check_buckets(plan: TransferPlan) -> None:
    arenas = {arena.name: arena for arena in plan.arenas}
    places = {
        arena.name: {(p.tensor, p.origin): p for p in arena.placements} for arena in plan.arenas
    }
    tensors = {tensor.name: tensor for tensor in plan.tensors}
    sent = Counter(
        (c.tensor, c.operation, c.phase, c.group, c.root)
        for c in plan.crossings
        if c.phase != "setup" and tensors[c.tensor].kind != "dynamic"
    )
    packed = Counter(
        (name, b.operation, b.phase, b.group, b.root) for b in plan.buckets for name in b.tensors
    )
    _require(sent == packed, "buckets do not hold each crossing of a step once")
    for number, bucket in enumerate(plan.buckets):
        is_one_dtype = {tensors[name].dtype for name in bucket.tensors} == {bucket.dtype}
        is_timed = 0 <= bucket.ready_ns <= bucket.start_ns <= bucket.finish_ns
        _require(is_one_dtype and is_timed, f"bucket {number}: {bucket}")
        _require(len(bucket.places) > 0, f"bucket {number} stands nowhere: {bucket}")
        _unique((f"{p.arena} of {p.origin}" for p in bucket.places), f"places of bucket {number}")
        for at in bucket.places:
            inside = places.get(at.arena, {})
            members = [inside.get((name, at.origin)) for name in bucket.tensors]
            known = [place for place in members if place is not None]
            _require(
                len(known) == len(members)
                and _is_packed(bucket, at.offset, known, arenas[at.arena].alignment_bytes),
                f"bucket {number} in arena {at.arena}: {bucket}",
            )


def _is_packed(bucket: PlannedBucket, offset: int, members: list[Placement], align: int) -> bool:
    """Whether the members follow one another in the arena, as span_bytes says."""
    at = offset
    for place in members:
        if place.offset != at:
            return False
        at += align_up(place.size_bytes, align)
    payload = sum(place.size_bytes for place in members)
    return at == offset + bucket.span_bytes and payload == bucket.payload_bytes


def _check_overlap(arena: Arena) -> None:
    """No two placements share a byte while both live: one sweep over time.

    As long as nothing overlaps, live placements are disjoint, so a new one can only touch its two
    neighbours by offset.
    """
    places = [place for place in arena.placements if place.size_bytes > 0]
    deaths = sorted(places, key=lambda p: p.last_use)
    live: list[tuple[int, int, str]] = []
    died = 0
    for place in sorted(places, key=lambda p: p.first_use):
        while deaths[died].last_use < place.first_use:
            gone = deaths[died]
            del live[bisect_left(live, _span(gone))]
            died += 1
        new = _span(place)
        at = bisect_left(live, new)
        for start, end, other in live[max(0, at - 1) : at + 1]:
            _require(
                end <= new[0] or new[1] <= start,
                f"tensors {place.tensor} and {other} overlap in arena {arena.name}",
            )
        insort(live, new)


def _span(place: Placement) -> tuple[int, int, str]:
    return place.offset, place.offset + place.size_bytes, place.tensor
