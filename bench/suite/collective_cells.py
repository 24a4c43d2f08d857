"""Cells of collectives' results, and how two contestants compare in one."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from bench.benchlib.record import Record, text
from bench.suite import samples
from bench.suite.collectives import COPY_FLOOR, net_ns, net_turns
from bench.suite.peers import OURS
from bench.suite.settings import PLAIN

Cell = tuple[object, ...]
Known = dict[str, dict[Cell, Record]]  # by contestant


def cell_of(record: Record, row: str | None = None) -> Cell:
    """Return what those share who did the same; row: as if it were another one's."""
    keys = ("transport", "ranks", "op", "size")
    return (*(record.get(key) for key in keys), row or row_of(record))


def row_of(record: Record) -> str:
    """Return how the tensors were used; older files have the plain row only."""
    return str(record.get("row", PLAIN))


def by_who(records: Sequence[Record]) -> Known:
    """Return the records of each contestant by their cells."""
    found: Known = {}
    for record in records:
        found.setdefault(text(record, "contestant"), {})[cell_of(record)] = record
    return found


def rival_of(record: Record, theirs: dict[Cell, Record]) -> Record | None:
    """Return a rival's record beside one: who has no arena uses the same tensors again."""
    row = "same" if row_of(record) == "arena" else row_of(record)
    return theirs.get(cell_of(record, row))


def round_trip_ns(record: Record, known: Known) -> float | None:
    """Return what ours sends 8 B there and back in, of its path, ranks and row; None: unknown."""
    sent = known.get(OURS, {}).get(cell_of({**record, "op": "send", "size": 8}))
    return None if sent is None else 2 * net_ns(sent)


def over(record: Record | None, other: Record | None) -> float | None:
    """Return how many times as long as another one takes, without what the ranks do themselves."""
    if record is None or other is None or record is other:
        return None
    if net_ns(record) <= 0 or net_ns(other) <= 0:
        return None
    return net_ns(record) / net_ns(other)


@dataclass(frozen=True, slots=True)
class Share:
    """Of the copy floor's rate, as each turn had it."""

    by_turn: tuple[float, ...]

    @property
    def value(self) -> float:
        """The median of the turns', of an even number the mean of the two in the middle."""
        return statistics.median(self.by_turn)

    @property
    def words(self) -> str:
        """The same, with the least and the most where there are several."""
        if len(self.by_turn) == 1:
            return f"{self.value:.2f}"
        return f"{self.value:.2f} ({min(self.by_turn):.2f}-{max(self.by_turn):.2f})"


def of_floor(record: Record, known: Known) -> Share | None:
    """Return the share of the copy floor's rate, taken in each turn; None for a floor.

    Both are in the processes of one turn, so that what slows it down slows both; over the medians
    of all turns, a slow one of either would count for itself.
    """
    floor = known.get(COPY_FLOOR, {}).get(cell_of(record, PLAIN))
    if floor is None or text(record, "peer") == "floor":
        return None
    both = [
        [samples.quantile(of_turn, 0.5) for of_turn in net_turns(one)] for one in (floor, record)
    ]
    if len(both[0]) != len(both[1]) or min(map(min, both)) <= 0:
        return None  # nobody knows which belong together, or noise is more than what there is
    return Share(tuple(copies / own for copies, own in zip(*both, strict=True)))
