"""Pass: crossings of a step into planned buckets, and the buckets into the arena.

A bucket is one block of the arena, its members side by side, each aligned; it lives from its
first member's birth to its last member's last use. What is broadcast before the forward is
ready at time 0. Tensors without a maximum size are in no bucket: nothing can be reserved.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import groupby

from graph_analysis.buckets import make_buckets, wire
from graph_analysis.classify import SizeClass
from graph_analysis.ir import (
    Block,
    CostModel,
    Crossing,
    Graph,
    Group,
    Lifetime,
    Message,
    Value,
    align_up,
)
from graph_analysis.layout import arena_layout, joint_lifetime
from graph_analysis.plan import Arena, Placement, PlannedBucket


@dataclass(frozen=True, slots=True)
class SizeFacts:
    """What the earlier passes found: classes and lifetimes by name, end of each operation."""

    classes: dict[str, SizeClass]
    lives: dict[str, Lifetime]
    op_end_ns: tuple[int, ...]
    alignment_bytes: int

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
    groups: tuple[Group, ...],
    crossings: tuple[Crossing, ...],
    cost: CostModel,
    facts: SizeFacts,
) -> tuple[PlannedBucket, ...]:
    """Buckets of everything that crosses in each step, not yet placed (offset 0)."""
    values = {value.name: value for value in graph.values}
    ranks = {group.name: len(group.ranks) for group in groups}
    buckets: list[PlannedBucket] = []
    stream = (
        c for c in crossings if c.phase != "setup" and facts.classes[c.tensor].max_bytes is not None
    )
    for _, members in groupby(stream, key=lambda c: (c.phase, c.operation, c.group, c.root)):
        batch = list(members)
        messages = [facts.message(values[crossing.tensor]) for crossing in batch]
        # Equal times keep their order, save that each dtype then forms one run.
        messages.sort(key=lambda message: (message.ready_ns, message.dtype))
        link = wire(cost, batch[0].operation, ranks[batch[0].group])
        for bucket in make_buckets(messages, link):
            inside = messages[bucket.start : bucket.stop]
            buckets.append(_planned(batch[0], inside, (bucket.start_ns, bucket.finish_ns), facts))
    return tuple(buckets)


def _planned(
    crossing: Crossing, inside: list[Message], time_ns: tuple[int, int], facts: SizeFacts
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
        offset=0,
        ready_ns=inside[-1].ready_ns,
        start_ns=time_ns[0],
        finish_ns=time_ns[1],
    )


def place_buckets(
    buckets: Iterable[PlannedBucket], facts: SizeFacts
) -> tuple[tuple[PlannedBucket, ...], Arena]:
    """The buckets with their offsets, and the arena that holds every member."""
    drafts = list(buckets)
    blocks = [
        Block(
            f"{index:09d}",  # sorts like the number: equal blocks are placed in bucket order
            bucket.span_bytes,
            joint_lifetime([facts.lives[name] for name in bucket.tensors]),
        )
        for index, bucket in enumerate(drafts)
    ]
    layout = arena_layout(blocks, alignment_bytes=facts.alignment_bytes)
    placed = []
    placements = []
    for block, bucket in zip(blocks, drafts, strict=True):
        offset = layout.offsets[block.name]
        placed.append(replace(bucket, offset=offset))
        for name in bucket.tensors:
            placements.append(Placement(name, offset, facts.max_bytes(name)))
            offset += facts.span_bytes(name)
    placements.sort(key=lambda place: (place.offset, place.size_bytes, place.tensor))
    arena = Arena(
        facts.alignment_bytes,
        layout.peak_bytes,
        layout.naive_bytes,
        layout.lower_bound_bytes,
        tuple(placements),
    )
    return tuple(placed), arena
