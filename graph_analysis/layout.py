"""Pass: an offset in the arena for every block, so that blocks alive together never overlap.

One sweep over time: dead blocks are freed (neighbouring holes merge), then each new block takes the
smallest hole that fits, else the arena grows. Larger blocks go first within one moment. Holes are
kept sorted by size, so a step costs a binary search.
"""

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass

from graph_analysis.errors import ArgumentError
from graph_analysis.ir import DEFAULT_ALIGNMENT_BYTES, Block, Lifetime, align_up
from graph_analysis.liveness import largest_live_set_bytes


@dataclass(frozen=True, slots=True)
class Layout:
    """Offsets by block name; sizes count every block rounded up to the alignment."""

    offsets: dict[str, int]
    peak_bytes: int
    naive_bytes: int
    lower_bound_bytes: int


class _Holes:
    """Free ranges below the top of the arena. No two touch, so a range is found by either end."""

    def __init__(self) -> None:
        self._by_size: list[tuple[int, int]] = []
        self._end_of: dict[int, int] = {}
        self._start_of: dict[int, int] = {}

    def _add(self, start: int, end: int) -> None:
        insort(self._by_size, (end - start, start))
        self._end_of[start] = end
        self._start_of[end] = start

    def _drop(self, start: int) -> int:
        end = self._end_of.pop(start)
        del self._start_of[end]
        del self._by_size[bisect_left(self._by_size, (end - start, start))]
        return end

    def give_back(self, start: int, end: int) -> None:
        """Free [start, end), merged with the free ranges on both sides."""
        if start in self._start_of:
            start = self._start_of[start]
            self._drop(start)
        if end in self._end_of:
            end = self._drop(end)
        self._add(start, end)

    def take(self, size_bytes: int, top: int) -> int:
        """Offset for size_bytes: the smallest hole that fits, else at the end of the arena.

        The range may reach beyond top, and then starts in the hole below top if there is one.
        """
        at = bisect_left(self._by_size, (size_bytes, -1))
        if at < len(self._by_size):
            start = self._by_size[at][1]
        elif top in self._start_of:
            start = self._start_of[top]
        else:
            return top
        end = self._drop(start)
        if end > start + size_bytes:
            self._add(start + size_bytes, end)
        return start


def arena_layout(
    blocks: Sequence[Block], *, alignment_bytes: int = DEFAULT_ALIGNMENT_BYTES
) -> Layout:
    """Place the blocks; names must be unique. An empty block gets offset 0 and no room."""
    if alignment_bytes < 1 or alignment_bytes & (alignment_bytes - 1):
        raise ArgumentError(f"alignment of {alignment_bytes} bytes is not a power of two")
    aligned = [Block(b.name, align_up(b.size_bytes, alignment_bytes), b.lifetime) for b in blocks]
    offsets = {b.name: 0 for b in aligned if b.size_bytes == 0}
    waiting = [b for b in aligned if b.size_bytes > 0]
    by_first_use = sorted(waiting, key=lambda b: (b.lifetime.first_use, -b.size_bytes, b.name))
    deaths = sorted(waiting, key=lambda b: (b.lifetime.last_use, b.name))
    holes = _Holes()
    peak = died = 0
    for block in by_first_use:
        while deaths[died].lifetime.last_use < block.lifetime.first_use:
            gone = deaths[died]
            start = offsets[gone.name]
            holes.give_back(start, start + gone.size_bytes)
            died += 1
        offset = holes.take(block.size_bytes, peak)
        offsets[block.name] = offset
        peak = max(peak, offset + block.size_bytes)
    return Layout(
        offsets, peak, sum(b.size_bytes for b in aligned), largest_live_set_bytes(aligned)
    )


def joint_lifetime(lifetimes: Sequence[Lifetime]) -> Lifetime:
    """From the first to the last use of a non-empty set of lifetimes that share one block."""
    return Lifetime(
        min(life.first_use for life in lifetimes), max(life.last_use for life in lifetimes)
    )
