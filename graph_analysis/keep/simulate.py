"""What a choice of ways comes to: peak of memory, added and exposed time."""

from __future__ import annotations

from collections.abc import Sequence

from graph_analysis.errors import ArgumentError
from graph_analysis.keep.choices import Chain, Outcome, Unit, Way


def way_of(unit: Unit, name: str) -> Way:
    """The unit's way of that name."""
    for way in unit.ways:
        if way.name == name:
            return way
    names = [way.name for way in unit.ways]
    raise ArgumentError(f"unit {unit.name!r} has no way {name!r}, it has {names}")


def simulate(chain: Chain, choice: Sequence[str]) -> Outcome:
    """The outcome of one way for each unit, in the order of chain.units.

    The link moves in the order of the units, out after each forward pass and back before each
    backward pass; what it has not moved when the computation needs it is exposed. Movements out
    that outlast the forward pass delay those back: the link may have one direction at a time.
    """
    if len(choice) != len(chain.units):
        raise ArgumentError(f"{len(choice)} ways for {len(chain.units)} units")
    ways = [way_of(unit, name) for unit, name in zip(chain.units, choice, strict=True)]
    live = peak = chain.base_bytes
    for way in ways:
        peak = max(peak, live + way.forward_bytes, live + way.backward_bytes)
        live += way.held_bytes
    peak = max(peak, live + chain.tail_bytes, chain.end_bytes)
    added = sum(way.added_ns for way in ways)
    return Outcome(peak, added, _write_tail_ns(chain, ways) + _read_wait_ns(chain, ways))


def _write_tail_ns(chain: Chain, ways: Sequence[Way]) -> int:
    """How long the link still moves out when the forward pass has ended."""
    link_free = now = 0
    for unit, way in zip(chain.units, ways, strict=True):
        now += unit.forward_ns
        if way.write_ns:
            link_free = max(link_free, now) + way.write_ns
    return max(0, link_free - now)


def _read_wait_ns(chain: Chain, ways: Sequence[Way]) -> int:
    """How long the backward pass waits for the link, which begins with it."""
    link_free = now = computed = 0
    for unit, way in zip(reversed(chain.units), reversed(ways), strict=True):
        link_free += way.read_ns
        if way.read_ns:
            now = max(now, link_free)
        now += unit.backward_ns + way.added_ns
        computed += unit.backward_ns + way.added_ns
    return now - computed
