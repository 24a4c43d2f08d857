"""Pass: crossings of a step into planned buckets, and the buckets into the arenas.

A bucket is one block in each arena that holds its members, side by side and each aligned. It lives
from its first member's first use to its last member's last use there. What is sent before the
forward is ready at time 0. A tensor that crosses more than once, and an input or output of a
collective of the graph, is in a bucket alone: it has one place. Dynamic tensors are in no bucket:
nothing can be reserved.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from graph_analysis.buckets import Bucket, make_buckets, wire
from graph_analysis.classify import SizeClass
from graph_analysis.ir import (
    Block,
    CostModel,
    Crossing,
    Graph,
    Home,
    Lifetime,
    Message,
    Stay,
    Value,
    align_up,
)
from graph_analysis.layout import arena_layout, joint_lifetime
from graph_analysis.plan import (
    Arena,
    BucketPlace,
    Placement,
    PlannedBucket,
    TransferPlan,
    sent_bytes,
)
from graph_analysis.strategies.base import Spread

_Corner = tuple[str, int | None]  # an arena's name and the rank whose values it holds there


@dataclass(frozen=True, slots=True)
class SizeFacts:
    """Facts of the earlier passes: classes by name, end of each operation, the alignment."""

    classes: Mapping[str, SizeClass]
    op_end_ns: tuple[int, ...]
    alignment_bytes: int

    def has_slot(self, name: str) -> bool:
        """Whether a place can be reserved."""
        return self.classes[name].kind != "dynamic"

    def max_bytes(self, name: str) -> int:
        """Bytes of the slot of a static or bounded tensor."""
        max_bytes = self.classes[name].max_bytes
        assert max_bytes is not None, f"{name} is dynamic"
        return max_bytes

    def span_bytes(self, name: str) -> int:
        """The same, rounded up to the alignment."""
        return align_up(self.max_bytes(name), self.alignment_bytes)

    def message(self, value: Value) -> Message:
        """The tensor as something to send, ready when its last operation ends."""
        ready_ns = 0 if value.ready_op < 0 else self.op_end_ns[value.ready_op]
        return Message(value.name, value.dtype, self.span_bytes(value.name), ready_ns)


def plan_buckets(
    graph: Graph,
    spread: Spread,
    crossings: tuple[Crossing, ...],
    cost: CostModel,
    facts: SizeFacts,
) -> tuple[PlannedBucket, ...]:
    """Buckets of everything that crosses in each step, not yet placed."""
    values = {value.name: value for value in graph.values}
    ranks = {group.name: len(group.ranks) for group in spread.groups}
    stream = [c for c in crossings if c.phase != "setup" and facts.has_slot(c.tensor)]
    times = Counter(c.tensor for c in stream)
    bundles = {name: number for number, names in enumerate(spread.together) for name in names}
    streams: dict[tuple[object, ...], list[Crossing]] = {}
    for index, c in enumerate(stream):
        is_alone = c.result is not None or times[c.tensor] > 1
        bundle = bundles.get(c.tensor, -1)
        key = (c.phase, c.operation, c.group, c.root, index if is_alone else -1, bundle)
        streams.setdefault(key, []).append(c)
    buckets: list[PlannedBucket] = []
    for batch in streams.values():
        messages = [facts.message(values[crossing.tensor]) for crossing in batch]
        # Equal times keep their order, except that each dtype then forms one run.
        messages.sort(key=lambda message: (message.ready_ns, message.dtype))
        if batch[0].tensor in bundles:  # tensors that are ready at once are sent at once
            messages = [replace(message, ready_ns=messages[-1].ready_ns) for message in messages]
        link = wire(cost, batch[0].operation, ranks[batch[0].group])
        for bucket in make_buckets(messages, link):
            inside = messages[bucket.start : bucket.stop]
            buckets.append(_planned(batch[0], inside, bucket, facts))
    return tuple(buckets)


def _planned(
    crossing: Crossing, inside: list[Message], bucket: Bucket, facts: SizeFacts
) -> PlannedBucket:
    return PlannedBucket(
        operation=crossing.operation,
        phase=crossing.phase,
        group=crossing.group,
        root=crossing.root,
        dtype=inside[0].dtype,
        tensors=tuple(message.tensor for message in inside),
        payload_bytes=sum(facts.max_bytes(message.tensor) for message in inside),
        span_bytes=sum(message.span_bytes for message in inside),
        places=(),
        ready_ns=inside[-1].ready_ns,
        start_ns=bucket.start_ns,
        finish_ns=bucket.finish_ns,
    )


def lay_out_again(plan: TransferPlan, buckets: Sequence[PlannedBucket]) -> TransferPlan:
    """The plan with these buckets; everything in its arenas gets a new place."""
    sizes = sent_bytes(plan)
    facts = SizeFacts(
        classes={
            t.name: SizeClass(t.kind, t.size_bytes, sizes.get(t.name), t.symbols)
            for t in plan.tensors
        },
        op_end_ns=(),
        alignment_bytes=plan.arenas[0].alignment_bytes if plan.arenas else 1,
    )
    spread = Spread(
        world_size=plan.strategy.world_size,
        options=plan.strategy.options,
        groups=plan.groups,
        homes=tuple(Home(arena.name, arena.ranks) for arena in plan.arenas),
        crossings=plan.crossings,
        stays=tuple(
            Stay(arena.name, p.tensor, p.origin, Lifetime(p.first_use, p.last_use))
            for arena in plan.arenas
            for p in arena.placements
        ),
        holders={},
    )
    placed, arenas = place_buckets(buckets, spread, facts)
    return replace(plan, buckets=placed, arenas=arenas)


@dataclass(frozen=True, slots=True)
class _Row:
    """Tensors side by side in one arena: a bucket's members, or one tensor without a bucket."""

    tensors: tuple[str, ...]
    origin: int | None


def place_buckets(
    buckets: Sequence[PlannedBucket], spread: Spread, facts: SizeFacts
) -> tuple[tuple[PlannedBucket, ...], tuple[Arena, ...]]:
    """The buckets with their places, and the arenas that hold every member and every result."""
    stays = {(s.home, s.origin, s.tensor): s for s in spread.stays if facts.has_slot(s.tensor)}
    corners: dict[str, list[_Corner]] = {}
    for name, origin, tensor in stays:
        corners.setdefault(tensor, []).append((name, origin))
    offsets: dict[tuple[_Corner, tuple[str, ...]], int] = {}
    arenas = []
    for home in spread.homes:
        rows = _rows(home, buckets, corners)
        arena, found = _arena(home, rows, stays, facts)
        arenas.append(arena)
        offsets.update(found)
    ranks = {home.name: set(home.ranks) for home in spread.homes}
    members = {group.name: group.ranks for group in spread.groups}
    placed = [
        replace(
            bucket,
            places=tuple(
                BucketPlace(name, origin, offsets[(name, origin), bucket.tensors])
                for name, origin in corners[bucket.tensors[0]]
                # A tensor that crosses in several groups has places that this one cannot see.
                if not ranks[name].isdisjoint(members[bucket.group])
            ),
        )
        for bucket in buckets
    ]
    return tuple(placed), tuple(arenas)


def _rows(
    home: Home, buckets: Sequence[PlannedBucket], corners: Mapping[str, list[_Corner]]
) -> list[_Row]:
    """Each bucket that has a place here, then tensors without a bucket: results of collectives."""
    rows: dict[_Row, None] = {}
    seen: set[tuple[str, int | None]] = set()
    for bucket in buckets:
        for name, origin in corners[bucket.tensors[0]]:
            if name == home.name:
                rows.setdefault(_Row(bucket.tensors, origin))
                seen.update((tensor, origin) for tensor in bucket.tensors)
    for tensor, where in corners.items():
        for name, origin in where:
            if name == home.name and (tensor, origin) not in seen:
                rows.setdefault(_Row((tensor,), origin))
    return list(rows)


def _arena(
    home: Home,
    rows: Sequence[_Row],
    stays: Mapping[tuple[str, int | None, str], Stay],
    facts: SizeFacts,
) -> tuple[Arena, dict[tuple[_Corner, tuple[str, ...]], int]]:
    """One arena and the offset of each of its rows."""

    def life(row: _Row, tensor: str) -> Lifetime:
        return stays[home.name, row.origin, tensor].lifetime

    blocks = [
        Block(
            f"{index:09d}",  # sorts like the number: equal blocks are placed in this order
            sum(facts.span_bytes(tensor) for tensor in row.tensors),
            joint_lifetime([life(row, tensor) for tensor in row.tensors]),
        )
        for index, row in enumerate(rows)
    ]
    layout = arena_layout(blocks, alignment_bytes=facts.alignment_bytes)
    found: dict[tuple[_Corner, tuple[str, ...]], int] = {}
    placements = []
    for block, row in zip(blocks, rows, strict=True):
        offset = layout.offsets[block.name]
        found[(home.name, row.origin), row.tensors] = offset
        for tensor in row.tensors:
            life_here = life(row, tensor)
            placements.append(
                Placement(
                    tensor,
                    row.origin,
                    offset,
                    facts.max_bytes(tensor),
                    life_here.first_use,
                    life_here.last_use,
                )
            )
            offset += facts.span_bytes(tensor)
    placements.sort(key=lambda p: (p.offset, p.size_bytes, p.tensor))
    arena = Arena(
        home.name,
        home.ranks,
        facts.alignment_bytes,
        layout.peak_bytes,
        layout.naive_bytes,
        layout.lower_bound_bytes,
        tuple(placements),
    )
    return arena, found
