"""The cheapest way for each unit under a budget of peak bytes, by dynamic programming in integers.

Units are taken in the order of the forward pass. A state is what the units until now come to: bytes
that they hold, time that they add, work that the link has left after the forward pass and its lead
in the backward pass. A state is dropped if another is at least as good in all four: each constraint
and the objective only rise with them, so no optimum is lost. Beyond a limit of states the
bytes are counted on a grid, and then the result may miss the optimum, never the budget.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from graph_analysis.errors import ArgumentError
from graph_analysis.keep.choices import Chain, Unit, Way

LIMIT = 3000  # states after one unit
LINKED_LIMIT = 800  # the same where tensors move over a link: each state is compared with all
GRID = 1024  # cells of the budget, beyond the limit


@dataclass(frozen=True, slots=True)
class _State:
    """held_bytes: in memory now; write_ns, read_ns: as in simulate(), relative to now."""

    held_bytes: int
    added_ns: int
    write_ns: int
    read_ns: int
    names: tuple[str, ...]

    @property
    def total_ns(self) -> int:
        return self.added_ns + self.write_ns + self.read_ns

    def is_within(self, other: _State) -> bool:
        """Whether nothing of it is worse than of the other."""
        return (
            self.held_bytes <= other.held_bytes
            and self.added_ns <= other.added_ns
            and self.write_ns <= other.write_ns
            and self.read_ns <= other.read_ns
        )


def solve(chain: Chain, budget_bytes: int) -> tuple[str, ...] | None:
    """The ways that add least time to the step and keep its peak within the budget.

    Returns the name of a way for each unit, or None if no choice fits. Of equally fast choices the
    one with fewer bytes is taken, then the first by the order of ways.
    """
    if chain.end_bytes > budget_bytes or chain.base_bytes > budget_bytes:
        return None
    states = [_State(chain.base_bytes, 0, 0, 0, ())]
    for unit in chain.units:
        fitting = (
            _after(state, unit, way)
            for state in states
            for way in unit.ways
            if state.held_bytes + max(way.forward_bytes, way.backward_bytes) <= budget_bytes
        )
        states = _undominated(fitting, budget_bytes)
    ends = [state for state in states if state.held_bytes + chain.tail_bytes <= budget_bytes]
    if not ends:
        return None
    return min(ends, key=lambda state: (state.total_ns, state.held_bytes)).names


def least_peak(chain: Chain) -> tuple[int, tuple[str, ...]]:
    """The least peak of any choice of ways, and a choice that has it."""
    low = max(chain.base_bytes, chain.end_bytes) - 1
    high = max(
        chain.end_bytes,
        chain.base_bytes
        + sum(
            max(0, *(max(w.held_bytes, w.forward_bytes, w.backward_bytes) for w in unit.ways))
            for unit in chain.units
        )
        + max(0, chain.tail_bytes),
    )
    without_time = _without_time(chain)
    found = solve(without_time, high)
    if found is None:
        raise ArgumentError("the chain has no choice within the sum of all its bytes")
    while high - low > 1:
        middle = (low + high) // 2
        better = solve(without_time, middle)
        if better is None:
            low = middle
        else:
            high, found = middle, better
    return high, found


def _without_time(chain: Chain) -> Chain:
    units = tuple(
        Unit(
            unit.name,
            0,
            0,
            tuple(Way(w.name, w.held_bytes, w.forward_bytes, w.backward_bytes) for w in unit.ways),
        )
        for unit in chain.units
    )
    return Chain(chain.base_bytes, chain.tail_bytes, chain.end_bytes, units)


def _after(state: _State, unit: Unit, way: Way) -> _State:
    """The state after a unit.

    Of the link's work only what exceeds the computation since counts. Reads run against the order
    of units: with C(k) the end of the backward pass of units k to 1, begun at k, and T(k) its
    computation, C(k) = read(k) + max(T(k), C(k-1)); kept is C - T.
    """
    computed = unit.backward_ns + way.added_ns
    return _State(
        state.held_bytes + way.held_bytes,
        state.added_ns + way.added_ns,
        max(0, state.write_ns - unit.forward_ns) + way.write_ns,
        max(0, state.read_ns - computed) + way.read_ns,
        (*state.names, way.name),
    )


def _undominated(states: Iterable[_State], budget_bytes: int) -> list[_State]:
    """The states that no other one beats, fewest bytes first."""
    kept = _front(states)
    has_link = any(state.write_ns or state.read_ns for state in kept)
    if len(kept) <= (LINKED_LIMIT if has_link else LIMIT):
        return kept
    cell = max(1, -(-budget_bytes // GRID))
    best: dict[int, _State] = {}
    for state in kept:
        place = -(-state.held_bytes // cell)
        if place not in best or state.total_ns < best[place].total_ns:
            best[place] = state
    return _front(best.values())


def _front(states: Iterable[_State]) -> list[_State]:
    ordered = sorted(states, key=lambda state: (state.held_bytes, state.total_ns))
    kept: list[_State] = []
    plain: _State | None = None  # of those that leave the link nothing to do, the fastest
    for state in ordered:
        if plain is not None and plain.added_ns <= state.added_ns:
            continue
        if state.write_ns or state.read_ns:
            if any(other.is_within(state) for other in kept):
                continue
        else:
            plain = state  # in order of bytes: a linked state cannot be within one without a link
        kept.append(state)
    return kept
