"""The two sources of a plan made one: what a graph shows, and what only a recorder saw.

merge_plans() takes the plan of a graph and the recorded one of a step of the same ranks. What both
have is marked so and must agree; what only the recorder saw (hooks, eager code) joins the plan;
what only the graph has stays, and was never seen. A pure function over values.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from graph_analysis.buckets import wire
from graph_analysis.errors import PlanError
from graph_analysis.ir import Crossing, Group, Lifetime, Operation, Stay, align_up
from graph_analysis.packing import lay_out_again
from graph_analysis.plan import PlannedBucket, PlannedTensor, TransferPlan

# Others cannot be told from what was recorded: a pipeline's plan is of one micro-batch, and what a
# parameter server pushes and pulls are messages without names.
_KINDS = ("data_parallel", "graph_collectives")

_Seen = dict[str, Crossing]  # by the name that the crossing's tensor has in the recorded plan


class _Facts(NamedTuple):
    """What both sources must agree on."""

    operation: Operation
    ranks: tuple[int, ...]
    root: int | None
    dtype: str
    size_bytes: int | None

    def __str__(self) -> str:
        root = "" if self.root is None else f" from or to {self.root}"
        return f"{self.operation}{root} of {self.size_bytes} bytes of {self.dtype}, {self.ranks}"


def merge_plans(graph_plan: TransferPlan, recorded: TransferPlan) -> TransferPlan:
    """The plan of a step by both sources; each crossing says in `source` who knows of it.

    Tensors are the same ones by their names. What has none in the recording, and none in a graph
    that holds collectives, is matched in order by operation, ranks, dtype and bytes.
    Messages are those that were recorded; what was never seen keeps the graph's buckets. The graph
    does not know when in the step the others live, so they keep their places for all of it.
    Again with the same recording it is the same plan.
    Raises: PlanError (plans that are not of one step, or a tensor of which both have other facts).
    """
    _require_mergeable(graph_plan, recorded)
    groups = _groups(graph_plan, recorded)
    seen = _seen(graph_plan, recorded, groups)
    never = _never_seen(graph_plan, seen)
    plan = replace(
        graph_plan,
        source="merged",
        captured_with=_tools(graph_plan, recorded),
        groups=tuple(dict.fromkeys((*graph_plan.groups, *groups.values()))),
        tensors=(*graph_plan.tensors, *_new_tensors(graph_plan, recorded, seen)),
        crossings=(
            *(c for c in graph_plan.crossings if c.phase == "setup"),
            *sorted([*seen.values(), *never], key=lambda crossing: crossing.phase == "backward"),
        ),
    )
    buckets = _buckets(plan, recorded, seen, never)
    buckets.sort(key=lambda bucket: bucket.phase == "backward")
    return lay_out_again(plan, _timed(plan, buckets), _whole_step(plan, seen))


def _require_mergeable(graph_plan: TransferPlan, recorded: TransferPlan) -> None:
    mine, theirs = graph_plan.strategy, recorded.strategy
    if graph_plan.source == "recorded" or recorded.source != "recorded":
        sources = f"{graph_plan.source} and {recorded.source}"
        raise PlanError(f"plans from {sources}: merged are one of a graph and a recorded one")
    if mine.kind not in _KINDS:
        raise PlanError(f"a {mine.kind} plan cannot be merged with what was recorded")
    if mine.world_size != theirs.world_size:
        raise PlanError(f"plans for {mine.world_size} and {theirs.world_size} ranks")
    kinds = {tensor.name: tensor.kind for tensor in graph_plan.tensors}
    for crossing in _of_step(graph_plan):
        if kinds[crossing.tensor] != "static":  # of which each step would be another one
            raise PlanError(f"tensor {crossing.tensor}: recorded are fixed sizes alone")


def _of_step(plan: TransferPlan) -> list[Crossing]:
    return [crossing for crossing in plan.crossings if crossing.phase != "setup"]


def _tools(graph_plan: TransferPlan, recorded: TransferPlan) -> str:
    if graph_plan.source == "merged":
        return graph_plan.captured_with
    return f"{graph_plan.captured_with}, {recorded.captured_with}"


def _groups(graph_plan: TransferPlan, recorded: TransferPlan) -> dict[str, Group]:
    """The groups of the recorded plan by name: the graph's where it has the same ranks."""
    known = {frozenset(group.ranks): group for group in reversed(graph_plan.groups)}
    names = {group.name for group in graph_plan.groups}
    found = {}
    for group in recorded.groups:
        name = f"recorded {group.name}" if group.name in names else group.name
        found[group.name] = known.get(frozenset(group.ranks), replace(group, name=name))
    return found


# ---- who knows of a crossing ---------------------------------------------------------------------


def _seen(graph_plan: TransferPlan, recorded: TransferPlan, groups: Mapping[str, Group]) -> _Seen:
    mine, theirs = _facts(graph_plan), _facts(recorded)
    names = {tensor.name for tensor in recorded.tensors}
    by_name: dict[str, list[Crossing]] = {}
    by_facts: dict[_Facts, list[Crossing]] = {}
    for crossing in _of_step(graph_plan):
        by_name.setdefault(crossing.tensor, []).append(crossing)
        if graph_plan.strategy.kind == "graph_collectives" and crossing.tensor not in names:
            by_facts.setdefault(mine[crossing], []).append(crossing)
    found: _Seen = {}
    for crossing in recorded.crossings:
        facts = theirs[crossing]
        same = by_name.get(crossing.tensor, by_facts.get(facts, []))
        known = next((one for one in same if mine[one] == facts), None)
        if known is not None:
            same.remove(known)
            is_new = known.source == "graph"
            found[crossing.tensor] = replace(known, source="both") if is_new else known
            continue
        if crossing.tensor in by_name:
            planned = " and ".join(str(mine[one]) for one in by_name[crossing.tensor])
            raise PlanError(
                f"tensor {crossing.tensor}: the graph's plan has {planned}, recorded was {facts}"
            )
        found[crossing.tensor] = replace(crossing, group=groups[crossing.group].name)
    _send_together(recorded, found)
    return found


def _facts(plan: TransferPlan) -> dict[Crossing, _Facts]:
    tensors = {tensor.name: tensor for tensor in plan.tensors}
    ranks = {group.name: tuple(sorted(group.ranks)) for group in plan.groups}
    found = {}
    for crossing in _of_step(plan):
        tensor = tensors[crossing.tensor]
        found[crossing] = _Facts(
            crossing.operation,
            ranks[crossing.group],
            crossing.root,
            tensor.dtype,
            tensor.size_bytes,
        )
    return found


def _send_together(recorded: TransferPlan, seen: _Seen) -> None:
    """Members of one message are of one group and phase: the graph's, if it knows one of them."""
    for bucket in recorded.buckets:
        members = [seen[name] for name in bucket.tensors]
        lead = next((one for one in members if one.source == "both"), members[0])
        for name, one in zip(bucket.tensors, members, strict=True):
            seen[name] = replace(one, phase=lead.phase, group=lead.group)


def _never_seen(graph_plan: TransferPlan, seen: _Seen) -> list[Crossing]:
    known = {_key(crossing) for crossing in seen.values()}
    return [
        replace(crossing, source="graph" if crossing.source == "both" else crossing.source)
        for crossing in _of_step(graph_plan)
        if _key(crossing) not in known
    ]


def _key(crossing: Crossing) -> tuple[object, ...]:
    return crossing.tensor, crossing.operation, crossing.group, crossing.root, crossing.result


# ---- what only the recorder saw ------------------------------------------------------------------


def _new_tensors(
    graph_plan: TransferPlan, recorded: TransferPlan, seen: _Seen
) -> list[PlannedTensor]:
    """The tensors that the graph does not have, as long-lived as the step."""
    known = {tensor.name: tensor for tensor in graph_plan.tensors}
    wanted = {name for c in seen.values() for name in (c.tensor, c.result) if name is not None}
    unknown = wanted - known.keys()
    parameters = {t.parameter for t in recorded.tensors if t.name in unknown}
    order = sum(tensor.ready_order is not None for tensor in graph_plan.tensors)
    new = []
    for tensor in recorded.tensors:
        there = known.get(tensor.name)
        if there is not None:
            if (there.dtype, there.shape) != (tensor.dtype, tensor.shape):
                raise PlanError(
                    f"tensor {tensor.name}: {there.shape} of {there.dtype} in the graph, "
                    f"recorded was {tensor.shape} of {tensor.dtype}"
                )
        elif tensor.name in unknown or tensor.name in parameters:
            is_gradient = tensor.role == "gradient"
            new.append(
                replace(
                    tensor,
                    first_use=0,
                    last_use=graph_plan.op_count,
                    ready_order=order if is_gradient else None,
                )
            )
            order += is_gradient
    return new


def _whole_step(plan: TransferPlan, seen: _Seen) -> list[Stay]:
    """Places for what crosses and has none yet. Plans of these kinds have one arena."""
    arena = plan.arenas[0]
    placed = {place.tensor for place in arena.placements}
    names = dict.fromkeys(name for c in seen.values() for name in (c.tensor, c.result))
    return [
        Stay(arena.name, name, None, Lifetime(0, plan.op_count))
        for name in names
        if name is not None and name not in placed
    ]


# ---- messages ------------------------------------------------------------------------------------


def _buckets(
    plan: TransferPlan,
    recorded: TransferPlan,
    seen: Mapping[str, Crossing],
    never: Sequence[Crossing],
) -> list[PlannedBucket]:
    """What was recorded, and then what is left of the graph's."""
    made = []
    for bucket in recorded.buckets:
        members = [seen[name] for name in bucket.tensors]
        of_graph = replace(bucket, phase=members[0].phase, group=members[0].group)
        made.append((of_graph, [crossing.tensor for crossing in members]))
    keys = {(c.tensor, c.operation, c.phase, c.group, c.root) for c in never}
    for bucket in plan.buckets:
        what = (bucket.operation, bucket.phase, bucket.group, bucket.root)
        names = [name for name in bucket.tensors if (name, *what) in keys]
        if names:
            made.append((bucket, names))
    sizes = {tensor.name: tensor.max_bytes or 0 for tensor in plan.tensors}
    alignment = plan.arenas[0].alignment_bytes
    return [
        replace(
            bucket,
            tensors=tuple(names),
            payload_bytes=sum(sizes[name] for name in names),
            span_bytes=sum(align_up(sizes[name], alignment) for name in names),
            places=(),
        )
        for bucket, names in made
    ]


def _timed(plan: TransferPlan, buckets: Sequence[PlannedBucket]) -> list[PlannedBucket]:
    """When each would leave by the plan's cost model: in this order, one link for all.

    What the graph does not know is as ready as what leaves before it.
    """
    ready = {name: bucket.ready_ns for bucket in plan.buckets for name in bucket.tensors}
    ranks = {group.name: len(group.ranks) for group in plan.groups}
    now = free = 0
    timed = []
    for bucket in buckets:
        floor = plan.forward_end_ns if bucket.phase == "backward" else 0
        now = max(now, floor, *(ready.get(name, 0) for name in bucket.tensors))
        link = wire(plan.cost, bucket.operation, ranks[bucket.group])
        start = max(now, free)
        free = start + -(-(link.latency + bucket.span_bytes * link.per_byte) // link.scale)
        timed.append(replace(bucket, ready_ns=now, start_ns=start, finish_ns=free))
    return timed
