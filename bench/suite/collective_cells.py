"""Cells of collectives' results, and how two contestants compare in one."""

from __future__ import annotations

from collections.abc import Sequence

from bench.benchlib.record import Record, text
from bench.suite.collectives import COPY_FLOOR, net_ns
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


def over(record: Record | None, other: Record | None) -> float | None:
    """Return how many times as long as another one takes, without what the ranks do themselves."""
    if record is None or other is None or record is other:
        return None
    if net_ns(record) <= 0 or net_ns(other) <= 0:
        return None
    return net_ns(record) / net_ns(other)


def of_floor(record: Record, known: Known) -> float | None:
    """Return the share of the copy floor's rate; None for a floor."""
    floor = known.get(COPY_FLOOR, {}).get(cell_of(record, PLAIN))
    return over(floor, record) if text(record, "peer") != "floor" else None
