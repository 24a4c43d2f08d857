"""What collectives should reach beside Gloo, OpenMPI and the floors, and where they fall short.

A target holds in every cell (operation, size, row) that it is about, and each that does not hold is
named with its figure: a mean over cells would hide the one that somebody needs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.benchlib.record import Record, number, text
from bench.benchlib.units import size_text
from bench.suite.collective_cells import Known, by_who, of_floor, over, rival_of, row_of
from bench.suite.collectives import NOTHING
from bench.suite.peers import OURS
from bench.suite.settings import KIB, MIB, PLAIN

GLOO, MPI = "gloo", "OpenMPI"
FLOOR_SHARE = 0.85  # of the copy floor, where three times Gloo's speed lies above it
_PRIVATE = ("same", "fresh")
_OTHERS = (
    *("broadcast", "all_gather", "reduce_scatter", "all_to_all", "gather", "scatter", "barrier"),
)


def _no_words(_: Record, __: Known) -> str:
    return ""


@dataclass(frozen=True, slots=True)
class Target:
    """One thing wanted.

    about: whether a record of ours is one that it is about. figure: of such a record, what is
    compared; None where it was not measured. limit: at least, or at most where is_most. told: of
    such a record, how the figure is told; empty: as it is.
    """

    what: str
    about: Callable[[Record], bool]
    figure: Callable[[Record, Known], float | None]
    limit: float
    is_most: bool = False
    told: Callable[[Record, Known], str] = _no_words

    def holds(self, figure: float) -> bool:
        """Whether a figure meets it."""
        return figure <= self.limit if self.is_most else figure >= self.limit


def _beside(who: str) -> Callable[[Record, Known], float | None]:
    """Another's time over ours."""
    return lambda record, known: over(rival_of(record, known.get(who, {})), record)


def _beside_nothing(record: Record, known: Known) -> float | None:
    """Our time over that of a backend that does nothing."""
    return over(record, rival_of(record, known.get(NOTHING, {})))


def _share(record: Record, known: Known) -> float | None:
    """Of the copy floor's rate."""
    share = of_floor(record, known)
    return None if share is None else share.value


def _share_words(record: Record, known: Known) -> str:
    """The same, with what turns differ by."""
    share = of_floor(record, known)
    return "" if share is None else share.words


def _gloo_or_floor(record: Record, known: Known) -> float | None:
    """Gloo's time over ours, or the limit where the copy floor leaves no room for more."""
    gloo, share = _beside(GLOO)(record, known), _share(record, known)
    if gloo is not None and gloo < 3 and share is not None and share >= FLOOR_SHARE:
        return 3.0
    return gloo


def _gloo_and_floor_words(record: Record, known: Known) -> str:
    """Gloo's time over ours, and the share of the copy floor where there is one."""
    gloo, share = _beside(GLOO)(record, known), _share_words(record, known)
    return f"{gloo:.2f}, of the floor {share}" if gloo is not None and share else ""


def _pair(op: str, size: int, *rows: str) -> Callable[[Record], bool]:
    """Two ranks over shared memory, in these rows; in all where none is named."""
    return lambda record: (
        (record["op"], record["size"], record["ranks"], record["transport"]) == (op, size, 2, "shm")
        and (not rows or row_of(record) in rows)
    )


def _is_crowded(record: Record) -> bool:
    """Whether there were more ranks than cores; a result of before cores were kept says neither."""
    return "cores" in record and number(record, "ranks") > number(record, "cores")


def _has_cores(record: Record) -> bool:
    """Whether each rank had a core."""
    return "cores" in record and number(record, "ranks") <= number(record, "cores")


def _over_tcp(least: int, most: float) -> Callable[[Record], bool]:
    return lambda record: (
        record["transport"] == "tcp"
        and _has_cores(record)
        and least <= number(record, "size") <= most
    )


TARGETS = (
    Target(
        "8 B all_reduce over doing nothing", _pair("all_reduce", 8), _beside_nothing, 1.25, True
    ),
    Target("64 KiB all_reduce, Gloo", _pair("all_reduce", 64 * KIB), _beside(GLOO), 20),
    Target("1 MiB all_reduce, Gloo", _pair("all_reduce", MIB), _beside(GLOO), 6),
    Target("1 MiB all_reduce, OpenMPI", _pair("all_reduce", MIB), _beside(MPI), 1),
    Target("64 MiB all_reduce, Gloo", _pair("all_reduce", 64 * MIB, *_PRIVATE), _beside(GLOO), 3.5),
    Target(
        "64 MiB all_reduce in the arena, Gloo",
        _pair("all_reduce", 64 * MIB, "arena"),
        _beside(GLOO),
        10,
    ),
    # the floor: the least work of a two-shot all_reduce (reduce_scatter, then all_gather)
    Target(
        "64 MiB all_reduce, copy floor",
        _pair("all_reduce", 64 * MIB),
        _share,
        0.8,
        told=_share_words,
    ),
    Target("8 B send over doing nothing", _pair("send", 8), _beside_nothing, 1.5, True),
    Target("64 MiB send, Gloo", _pair("send", 64 * MIB, *_PRIVATE), _beside(GLOO), 2.5),
    Target("64 MiB send, OpenMPI", _pair("send", 64 * MIB, *_PRIVATE), _beside(MPI), 1),
    Target(
        "64 MiB send in the arena, copy floor",
        _pair("send", 64 * MIB, "arena"),
        _share,
        0.9,
        told=_share_words,
    ),
    Target(
        f"others over shm, Gloo (or {FLOOR_SHARE:g} of the copy floor)",
        lambda record: (
            record["op"] in _OTHERS and record["transport"] == "shm" and _has_cores(record)
        ),
        _gloo_or_floor,
        3,
        told=_gloo_and_floor_words,
    ),
    Target("tcp up to 64 KiB, Gloo", _over_tcp(0, 64 * KIB), _beside(GLOO), 2),
    Target("tcp above 64 KiB, Gloo", _over_tcp(64 * KIB + 1, math.inf), _beside(GLOO), 1.2),
    Target("more ranks than cores, Gloo", _is_crowded, _beside(GLOO), 1),
)
_CROWDED_MEAN = 2.0  # of all cells with more ranks than cores


def lines(records: Sequence[Record]) -> list[str]:
    """Return a line for each target that something was measured of."""
    known = by_who(records)
    ours = list(known.get(OURS, {}).values())
    found = []
    for target in TARGETS:
        figures = [
            (figure, record)
            for record in ours
            if target.about(record) and (figure := target.figure(record, known)) is not None
        ]
        if figures:
            found.append(_line(target, figures, known))
    crowded = [
        figure
        for record in ours
        if _is_crowded(record) and (figure := _beside(GLOO)(record, known)) is not None
    ]
    if crowded:
        mean = math.exp(sum(map(math.log, crowded)) / len(crowded))
        met = "met" if mean >= _CROWDED_MEAN else "short"
        found.append(
            f"target: more ranks than cores, Gloo, geometric mean >= {_CROWDED_MEAN:g}: "
            f"{mean:.2f}, {met}"
        )
    return found


def _line(target: Target, figures: Sequence[tuple[float, Record]], known: Known) -> str:
    wanted = f"{'<=' if target.is_most else '>='} {target.limit:g}"
    short = sorted(
        ((figure, record) for figure, record in figures if not target.holds(figure)),
        key=lambda pair: pair[0],
        reverse=target.is_most,
    )
    told = {id(record): target.told(record, known) or f"{of:.2f}" for of, record in figures}
    names = ", ".join(f"{_cell(record)} {told[id(record)]}" for _, record in short)
    met = f"{len(figures) - len(short)} of {len(figures)}"
    if len(figures) == 1:
        met = told[id(figures[0][1])]
    return f"target: {target.what} {wanted}: {met}" + (f"; short: {names}" if short else ", met")


def _cell(record: Record) -> str:
    row = row_of(record)
    words = [text(record, "op"), size_text(number(record, "size"))]
    words += [] if row == PLAIN else [row]
    return " ".join([*words, f"({number(record, 'ranks'):.0f} ranks, {record['transport']})"])
