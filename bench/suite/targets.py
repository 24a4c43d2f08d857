"""What collectives and training steps should reach, and each cell that falls short.

A target holds in every cell (operation, size, row, ranks, path) that it is about. A mean over cells
would hide one that falls short.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.benchlib.record import Record, number, text
from bench.benchlib.units import size_text
from bench.suite import draws, models, samples
from bench.suite.collective_tables import Known, by_who, of_floor, over, rival_of, row_of
from bench.suite.collectives import COPY_FLOOR, NOTHING
from bench.suite.layout import geometric
from bench.suite.peers import OURS
from bench.suite.settings import KIB, MIB, PLAIN

_GLOO, _MPI = "gloo", "OpenMPI"
_NEAR = 0.85  # of the copy floor, where three times Gloo's speed lies above it
_PRIVATE = ("same", "fresh")
_SHM_OPS = (
    *("broadcast", "all_gather", "reduce_scatter", "all_to_all", "gather", "scatter", "barrier"),
)
_CROWDED_MEAN = 2.0  # of all cells with more ranks than cores
_About = Callable[[Record], bool]


@dataclass(frozen=True, slots=True)
class Cell:
    """One figure of a target."""

    name: str
    value: float
    words: str


@dataclass(frozen=True, slots=True)
class _Target:
    """about: whether it is about a record of rdmatensor's. other: see _figure()."""

    what: str
    about: _About
    other: str
    limit: float
    or_floor: bool = False  # _NEAR of the copy floor is enough as well


def _pair(op: str, size: int, *rows: str) -> _About:
    """Two ranks over shared memory, in these rows; in all where none is named."""
    return lambda record: (
        (record["op"], record["size"], record["ranks"], record["transport"]) == (op, size, 2, "shm")
        and (not rows or row_of(record) in rows)
    )


def _is_crowded(record: Record) -> bool:
    """Whether there were more ranks than cores; older results do not name the cores."""
    return "cores" in record and number(record, "ranks") > number(record, "cores")


def _each_has_a_core(transport: str, least: float, most: float, ops: Sequence[str] = ()) -> _About:
    return lambda record: (
        record["transport"] == transport
        and "cores" in record
        and not _is_crowded(record)
        and least <= number(record, "size") <= most
        and (not ops or record["op"] in ops)
    )


_COLLECTIVES = (
    _Target("8 B all_reduce over doing nothing", _pair("all_reduce", 8), NOTHING, 1.25),
    _Target("64 KiB all_reduce, Gloo", _pair("all_reduce", 64 * KIB), _GLOO, 20),
    _Target("1 MiB all_reduce, Gloo", _pair("all_reduce", MIB), _GLOO, 6),
    _Target("1 MiB all_reduce, OpenMPI", _pair("all_reduce", MIB), _MPI, 1),
    _Target("64 MiB all_reduce, Gloo", _pair("all_reduce", 64 * MIB, *_PRIVATE), _GLOO, 3.5),
    _Target("64 MiB in the arena, Gloo", _pair("all_reduce", 64 * MIB, "arena"), _GLOO, 10),
    # the floor: the least work of a two-shot all_reduce (reduce_scatter, then all_gather)
    _Target("64 MiB all_reduce, copy floor", _pair("all_reduce", 64 * MIB), COPY_FLOOR, 0.8),
    _Target("8 B send over doing nothing", _pair("send", 8), NOTHING, 1.5),
    _Target("64 MiB send, Gloo", _pair("send", 64 * MIB, *_PRIVATE), _GLOO, 2.5),
    _Target("64 MiB send, OpenMPI", _pair("send", 64 * MIB, *_PRIVATE), _MPI, 1),
    _Target("64 MiB send in the arena", _pair("send", 64 * MIB, "arena"), COPY_FLOOR, 0.9),
    _Target(
        f"others over shm, Gloo (or {_NEAR:g} of the copy floor)",
        _each_has_a_core("shm", 0, math.inf, _SHM_OPS),
        _GLOO,
        3,
        or_floor=True,
    ),
    _Target("tcp up to 64 KiB, Gloo", _each_has_a_core("tcp", 0, 64 * KIB), _GLOO, 2),
    _Target("tcp above 64 KiB, Gloo", _each_has_a_core("tcp", 64 * KIB + 1, math.inf), _GLOO, 1.2),
    _Target("more ranks than cores, Gloo", _is_crowded, _GLOO, 1),
)


def of_collectives(records: Sequence[Record]) -> list[str]:
    """Return a line for each target that something was measured of."""
    known = by_who(records)
    lines = []
    for target in _COLLECTIVES:
        ours = filter(target.about, known.get(OURS, {}).values())
        cells = [cell for one in ours if (cell := _figure(target, one, known)) is not None]
        lines += line(target.what, cells, target.limit, is_most=target.other == NOTHING)
        if cells and target.about is _is_crowded:
            mean = geometric([one.value for one in cells])
            lines += line(f"{target.what}, mean", [Cell("", mean, f"{mean:.2f}")], _CROWDED_MEAN)
    return lines


def _figure(target: _Target, record: Record, known: Known) -> Cell | None:
    """Another's time over rdmatensor's; that over doing nothing; the share of the copy floor."""
    share = of_floor(record, known)
    if target.other == COPY_FLOOR:
        return None if share is None else Cell(_name(record), share.value, share.words)
    other = rival_of(record, known.get(target.other, {}))
    ratio = over(record, other) if target.other == NOTHING else over(other, record)
    if ratio is None:
        return None
    if share is None or not target.or_floor:
        return Cell(_name(record), ratio, f"{ratio:.2f}")
    is_near = ratio < target.limit and share.value >= _NEAR
    words = f"{ratio:.2f}, of the floor {share.words}"
    return Cell(_name(record), target.limit if is_near else ratio, words)


def _name(record: Record) -> str:
    words = [text(record, "op"), size_text(number(record, "size"))]
    words += [] if row_of(record) == PLAIN else [row_of(record)]
    return " ".join([*words, f"({number(record, 'ranks'):.0f} ranks, {record['transport']})"])


def line(what: str, cells: Sequence[Cell], limit: float, *, is_most: bool = False) -> list[str]:
    """Return the line of a target, which names the cells that fall short; none without cells."""
    if not cells:
        return []
    sign = -1 if is_most else 1
    short = [one for one in cells if sign * one.value < sign * limit]
    short.sort(key=lambda one: sign * one.value)
    names = ", ".join(f"{one.name} {one.words}".strip() for one in short)
    met = f"{len(cells) - len(short)} of {len(cells)}" if len(cells) > 1 else cells[0].words
    head = f"target: {what} {'<=' if is_most else '>='} {limit:g}: {met}"
    return [f"{head}; short: {names}" if short else f"{head}, met"]


# Of a planned step: names in models.CONTESTANTS, the fastest of which counts in each model; whether
# exposed times are compared (the planned step's over the other's) or whole steps (the other's over
# the planned one's); the limit.
_MODELS = (
    ("the better server over gRPC", ("grpc_cpp", "grpc"), False, 2.0),
    ("copy variant", ("variant",), False, 1.5),
    ("DDP", ("adopted",), False, 0.97),  # no slower, but for noise
    ("DDP, not adopted", ("copied",), True, 0.5),
    ("DDP on Gloo", ("gloo",), True, 0.2),
)


def of_models(records: Sequence[Record]) -> list[str]:
    """Return a line for each target of a planned step, with how far chance could move a figure.

    A step that was no slower than the one without communication says nothing of exposed times.
    """
    planned, exposed = models.planned_of(records), models.exposures(records)
    lines = []
    for name, rivals, is_exposed, limit in _MODELS:
        cells = []
        for rival in _fastest(records, [models.CONTESTANTS[one] for one in rivals]):
            ours = planned.get(models.cell_of(rival))
            where = f"{rival['op']} ({rival['transport']})"
            if ours is None:
                continue
            if not is_exposed:
                ratio = draws.ratio(rival, ours)
                cells.append(Cell(where, ratio.value, ratio.words))
                continue
            both = [exposed.get(samples.key_of(one)) for one in (ours, rival)]
            if both[0] is not None and both[1] is not None and both[1].ns > 0:
                words = f"{both[0].words}, its {both[1].words}"
                cells.append(Cell(where, both[0].ns / both[1].ns, words))
        what = "exposed time over its" if is_exposed else "its step over the planned one"
        lines += line(f"{name}, {what}", cells, limit, is_most=is_exposed)
    return lines


def _fastest(records: Sequence[Record], contestants: Sequence[str]) -> list[Record]:
    """Return the fastest of some in each cell."""
    best: dict[object, Record] = {}
    for record in sorted(records, key=lambda one: number(one, "median_ns")):
        if record["contestant"] in contestants:
            best.setdefault(models.cell_of(record), record)
    return sorted(best.values(), key=models.place_of)
