"""What collectives should reach compared with Gloo, OpenMPI and the floors, and where they do not.

A target holds in every cell (operation, size, row) that it is about, and each that does not hold is
named with its figure: a mean over cells would hide the one that somebody needs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.benchlib.record import Record, number, text
from bench.benchlib.units import size_text
from bench.suite.collective_tables import Known, by_who, of_floor, over, rival_of, row_of
from bench.suite.collectives import COPY_FLOOR, NOTHING
from bench.suite.layout import geometric
from bench.suite.peers import OURS
from bench.suite.settings import KIB, MIB, PLAIN

GLOO, MPI = "gloo", "OpenMPI"
FLOOR_SHARE = 0.85  # of the copy floor, where three times Gloo's speed lies above it
_PRIVATE = ("same", "fresh")
_OTHERS = (
    *("broadcast", "all_gather", "reduce_scatter", "all_to_all", "gather", "scatter", "barrier"),
)
_CROWDED_MEAN = 2.0  # of all cells with more ranks than cores


@dataclass(frozen=True, slots=True)
class Target:
    """One thing wanted.

    about: whether it is about a record. beside: the other's time over rdmatensor's counts, of the
    copy floor the share, of a backend that does nothing rdmatensor's time over its. or_floor: a
    share of FLOOR_SHARE is enough, too.
    """

    what: str
    about: Callable[[Record], bool]
    beside: str
    limit: float
    or_floor: bool = False

    @property
    def is_most(self) -> bool:
        """Whether a figure should be at most the limit."""
        return self.beside == NOTHING

    def holds(self, figure: float) -> bool:
        """Whether a figure meets it."""
        return figure <= self.limit if self.is_most else figure >= self.limit

    def figure(self, record: Record, known: Known) -> tuple[float, str] | None:
        """Return the figure of a record, and its words; None where it was not measured."""
        share = of_floor(record, known)
        if self.beside == COPY_FLOOR:
            return None if share is None else (share.value, share.words)
        other = rival_of(record, known.get(self.beside, {}))
        ratio = over(record, other) if self.is_most else over(other, record)
        if ratio is None or share is None or not self.or_floor:
            return None if ratio is None else (ratio, f"{ratio:.2f}")
        is_near = ratio < self.limit and share.value >= FLOOR_SHARE
        return (self.limit if is_near else ratio), f"{ratio:.2f}, of the floor {share.words}"


def _pair(op: str, size: int, *rows: str) -> Callable[[Record], bool]:
    """Two ranks over shared memory, in these rows; in all where none is named."""
    return lambda record: (
        (record["op"], record["size"], record["ranks"], record["transport"]) == (op, size, 2, "shm")
        and (not rows or row_of(record) in rows)
    )


def _is_crowded(record: Record) -> bool:
    """Whether there were more ranks than cores; a result of before cores were kept says neither."""
    return "cores" in record and number(record, "ranks") > number(record, "cores")


def _over(transport: str, least: float, most: float) -> Callable[[Record], bool]:
    """Cells of a path where each rank had a core."""
    return lambda record: (
        record["transport"] == transport
        and "cores" in record
        and not _is_crowded(record)
        and least <= number(record, "size") <= most
    )


def _is_other(record: Record) -> bool:
    return record["op"] in _OTHERS and _over("shm", 0, math.inf)(record)


TARGETS = (
    Target("8 B all_reduce over doing nothing", _pair("all_reduce", 8), NOTHING, 1.25),
    Target("64 KiB all_reduce, Gloo", _pair("all_reduce", 64 * KIB), GLOO, 20),
    Target("1 MiB all_reduce, Gloo", _pair("all_reduce", MIB), GLOO, 6),
    Target("1 MiB all_reduce, OpenMPI", _pair("all_reduce", MIB), MPI, 1),
    Target("64 MiB all_reduce, Gloo", _pair("all_reduce", 64 * MIB, *_PRIVATE), GLOO, 3.5),
    Target(
        "64 MiB all_reduce in the arena, Gloo", _pair("all_reduce", 64 * MIB, "arena"), GLOO, 10
    ),
    # the floor: the least work of a two-shot all_reduce (reduce_scatter, then all_gather)
    Target("64 MiB all_reduce, copy floor", _pair("all_reduce", 64 * MIB), COPY_FLOOR, 0.8),
    Target("8 B send over doing nothing", _pair("send", 8), NOTHING, 1.5),
    Target("64 MiB send, Gloo", _pair("send", 64 * MIB, *_PRIVATE), GLOO, 2.5),
    Target("64 MiB send, OpenMPI", _pair("send", 64 * MIB, *_PRIVATE), MPI, 1),
    Target(
        "64 MiB send in the arena, copy floor", _pair("send", 64 * MIB, "arena"), COPY_FLOOR, 0.9
    ),
    Target(
        f"others over shm, Gloo (or {FLOOR_SHARE:g} of the copy floor)",
        _is_other,
        GLOO,
        3,
        or_floor=True,
    ),
    Target("tcp up to 64 KiB, Gloo", _over("tcp", 0, 64 * KIB), GLOO, 2),
    Target("tcp above 64 KiB, Gloo", _over("tcp", 64 * KIB + 1, math.inf), GLOO, 1.2),
    Target("more ranks than cores, Gloo", _is_crowded, GLOO, 1),
)


def lines(records: Sequence[Record]) -> list[str]:
    """Return a line for each target that something was measured of."""
    known = by_who(records)
    found, crowded = [], []
    for target in TARGETS:
        figures = [
            (*figure, record)
            for record in known.get(OURS, {}).values()
            if target.about(record) and (figure := target.figure(record, known)) is not None
        ]
        if figures:
            found.append(_line(target, figures))
        if target.about is _is_crowded:
            crowded = [figure for figure, _, _ in figures]
    if crowded:
        mean = geometric(crowded)
        met = "met" if mean >= _CROWDED_MEAN else "short"
        found.append(
            f"target: more ranks than cores, Gloo, geometric mean >= {_CROWDED_MEAN:g}: "
            f"{mean:.2f}, {met}"
        )
    return found


def _line(target: Target, figures: Sequence[tuple[float, str, Record]]) -> str:
    wanted = f"{'<=' if target.is_most else '>='} {target.limit:g}"
    short = sorted(
        (one for one in figures if not target.holds(one[0])),
        key=lambda one: one[0],
        reverse=target.is_most,
    )
    names = ", ".join(f"{_cell(record)} {words}" for _, words, record in short)
    met = f"{len(figures) - len(short)} of {len(figures)}" if len(figures) > 1 else figures[0][1]
    return f"target: {target.what} {wanted}: {met}" + (f"; short: {names}" if short else ", met")


def _cell(record: Record) -> str:
    words = [text(record, "op"), size_text(number(record, "size"))]
    words += [] if row_of(record) == PLAIN else [row_of(record)]
    return " ".join([*words, f"({number(record, 'ranks'):.0f} ranks, {record['transport']})"])
