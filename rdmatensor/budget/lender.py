"""Choosing within the memory that a lender has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from graph_analysis.keep import Chain

ALIGNMENT_BYTES = 64
Solve = Callable[[Chain], "tuple[str, ...] | None"]


def place_bytes(sizes: Sequence[int]) -> int:
    """Return what tensors of these sizes take in the lender's memory."""
    return sum(-(-size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES for size in sizes)


def within(needs: Sequence[int], room: int, chain: Chain, choose: Solve) -> tuple[str, ...] | None:
    """Return a choice that lends no more than the room: units lose that way until it is so.

    needs: what each unit takes there. The unit that loses it is the smallest that is enough, or the
    largest.
    """
    while True:
        choice = choose(chain)
        if choice is None:
            return None
        moved = [index for index, way in enumerate(choice) if way == "peer"]
        excess = sum(needs[index] for index in moved) - room
        if excess <= 0:
            return choice
        enough = [index for index in moved if needs[index] >= excess]
        loser = min(enough, key=needs.__getitem__) if enough else max(moved, key=needs.__getitem__)
        unit = chain.units[loser]
        ways = tuple(way for way in unit.ways if way.name != "peer")
        units = (*chain.units[:loser], replace(unit, ways=ways), *chain.units[loser + 1 :])
        chain = replace(chain, units=units)
