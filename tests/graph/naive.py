"""Facts of a plan by their definitions, moment by moment and pair by pair: slow, and plain."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from graph_analysis.ir import Block, Graph, Lifetime
from graph_analysis.plan import TransferPlan


def _family(graph: Graph, root: str) -> set[str]:
    """The value and all views of it, direct or not."""
    family = {root}
    while True:
        more = {v.name for v in graph.values if v.alias_of in family} - family
        if not more:
            return family
        family |= more


def lifetimes(graph: Graph) -> dict[str, Lifetime]:
    """From its birth to the last operation that reads or writes it, or a view of it."""
    found = {}
    end = len(graph.ops)
    for value in graph.values:
        if value.alias_of is not None:
            continue
        family = _family(graph, value.name)
        uses = [k for k, op in enumerate(graph.ops) if family & {*op.inputs, *op.outputs}]
        roles = {v.role for v in graph.values if v.name in family}
        if value.role in ("parameter", "buffer", "constant"):
            uses = [0, end]
        elif roles & {"gradient", "loss"}:
            uses.append(end)
        birth = 0 if value.producer is None else value.producer
        found[value.name] = Lifetime(birth, max([birth, *uses]))
    return found


def largest_live_set_bytes(blocks: Sequence[Block]) -> int:
    """The most that is alive at one moment, asked of each moment at which something is born."""
    return max(
        (
            sum(
                b.size_bytes
                for b in blocks
                if b.lifetime.first_use <= moment <= b.lifetime.last_use
            )
            for moment in {b.lifetime.first_use for b in blocks}
        ),
        default=0,
    )


def check_arenas(plan: TransferPlan) -> None:
    """What is alive together shares no byte, and the peak lies between its bounds."""
    for arena in plan.arenas:
        placed = [p for p in arena.placements if p.size_bytes > 0]
        for a, b in combinations(placed, 2):
            are_apart = a.offset + a.size_bytes <= b.offset or b.offset + b.size_bytes <= a.offset
            assert are_apart or a.last_use < b.first_use or b.last_use < a.first_use, (a, b)
        blocks = [Block(p.tensor, p.size_bytes, Lifetime(p.first_use, p.last_use)) for p in placed]
        live_bytes = largest_live_set_bytes(blocks)
        assert live_bytes <= arena.lower_bound_bytes <= arena.peak_bytes <= arena.naive_bytes
        assert max((p.offset + p.size_bytes for p in placed), default=0) <= arena.peak_bytes
