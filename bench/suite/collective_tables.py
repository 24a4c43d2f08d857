"""What was measured of collectives: one table, and where Gloo and OpenMPI are faster."""

from __future__ import annotations

import statistics
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from bench.benchlib.record import Record, number, text
from bench.benchlib.units import size_text, time_text
from bench.suite import samples, verbs
from bench.suite.collectives import COPY_FLOOR, NOTHING, is_net_of_one_loop, net_ns, net_turns
from bench.suite.layout import geometric, layout
from bench.suite.peers import OURS
from bench.suite.settings import PLAIN, ROWS

Cell = tuple[object, ...]
Known = dict[str, dict[Cell, Record]]  # by name
_NO_RATE_BYTES = 1024  # below it a rate says nothing
_WIDTH = 120
_NAMES = {"gloo": "Gloo", "OpenMPI": "OpenMPI"}  # of the others
_HEADS = (
    *("", "who", "size", "tensors", "p50", "p90", "call p99", "call p999", "alone", "net"),
    *("algbw GB/s", "busbw GB/s", "CPU a call", "CPU s/GB", "of floor", "times ours"),
)
_NOTE = (
    "alone: the same loop without communication, where the ranks use the tensors; net: the rest "
    "without that of its own turn, which bandwidths and ratios are of. CPU: of all ranks together. "
    "of floor: the copy floor's time by this one's of the same turn; the median of the turns', the "
    "least and the most. An arena's row has the others' of the same tensors next to it."
)
_ONE_LOOP = "this file has the loop of one turn only, the one in the middle, which net is without."


def cell_of(record: Record, row: str | None = None) -> Cell:
    """Return what records share that did the same; row: as if it were another one's."""
    keys = ("transport", "ranks", "op", "size")
    return (*(record.get(key) for key in keys), row or row_of(record))


def row_of(record: Record) -> str:
    """Return how the tensors were used; older files have the plain row only."""
    return str(record.get("row", PLAIN))


def by_who(records: Sequence[Record]) -> Known:
    """Return the records of each name by their cells."""
    found: Known = {}
    for record in records:
        found.setdefault(text(record, "contestant"), {})[cell_of(record)] = record
    return found


def rival_of(record: Record, theirs: dict[Cell, Record]) -> Record | None:
    """Return another's record of the same cell; without an arena, of the same tensors again."""
    row = "same" if row_of(record) == "arena" else row_of(record)
    return theirs.get(cell_of(record, row))


def over(record: Record | None, other: Record | None) -> float | None:
    """Return the ratio of both times, without what the ranks do themselves."""
    if record is None or other is None or record is other:
        return None
    took, others = net_ns(record), net_ns(other)
    return took / others if took > 0 and others > 0 else None


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
    """Return the share of the copy floor's rate; None for a floor.

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
        return None  # the turns cannot be paired, or noise is more than what there is
    return Share(tuple(copies / own for copies, own in zip(*both, strict=True)))


def show(records: Sequence[Record]) -> str:
    """All cells, and who won where."""
    from bench.suite import targets  # which judges what is here

    known = by_who(records)
    lines = [*verdicts(records), *targets.of_collectives(records), *verbs.shares(records)]
    parts = [
        layout(_HEADS, [_line(record, known) for record in _sorted(records)]),
        textwrap.fill(_NOTE, _WIDTH),
        _ONE_LOOP if any(map(is_net_of_one_loop, records)) else "",
        *(textwrap.fill(line, _WIDTH, subsequent_indent="    ") for line in lines),
    ]
    return "\n".join(part for part in parts if part)


def _sorted(records: Sequence[Record]) -> list[Record]:
    """Cells in the order in which they came, rdmatensor first, floors last."""
    places: dict[Cell, int] = {}
    for record in records:
        places.setdefault(cell_of(record), len(places))
    ranks = {OURS: 0, "floor": 2}
    return sorted(records, key=lambda one: (places[cell_of(one)], ranks.get(text(one, "peer"), 1)))


def _line(record: Record, known: Known) -> tuple[str, ...]:
    how = record.get("waits", "never")
    share = of_floor(record, known)
    ratio = over(record, known.get(OURS, {}).get(cell_of(record)))
    has_loop = "loop_ns" in record
    return (
        f"{record['op']}, {record['transport']}, {record['ranks']} ranks",
        text(record, "contestant") + (f", {how}" if how != "never" else ""),
        size_text(number(record, "size")) if record["op"] != "barrier" else "-",
        row_of(record),
        *(samples.tail_text(record, name) for name in ("median_ns", "p90", "p99", "p999")),
        samples.tail_text(record, "loop_ns") if has_loop else "-",
        signed_time(net_ns(record)) if has_loop else "-",
        *_rates(record),
        "-" if share is None else share.words,
        "-" if ratio is None else f"{ratio:.2f}",
    )


def signed_time(ns: float) -> str:
    """Below 0 noise was larger than what there was to see."""
    return f"-{time_text(-ns)}" if ns < 0 else time_text(ns)


def _rates(record: Record) -> tuple[str, ...]:
    """Bandwidths, and processor time; small sizes have no rate."""
    is_large = number(record, "size") >= _NO_RATE_BYTES
    has_rate = is_large and record["contestant"] != NOTHING
    return (
        *(
            f"{number(record, name):.2f}" if has_rate and name in record else "-"
            for name in ("algbw_gb_per_s", "busbw_gb_per_s")
        ),
        samples.tail_text(record, "call_cpu_ns"),
        f"{number(record, 'cpu_s_per_gb'):.3g}" if is_large and "cpu_s_per_gb" in record else "-",
    )


def verdicts(records: Sequence[Record]) -> list[str]:
    """Return a line for each path, number of ranks, row and other library.

    Each has the geometric mean of the ratios, and all cells in which the other one is faster.
    """
    groups: dict[tuple[object, ...], list[Record]] = {}
    for row in (PLAIN, *ROWS):
        for one in records:
            if row_of(one) == row and one["peer"] == OURS:
                groups.setdefault((one["transport"], one["ranks"], row), []).append(one)
    lines = []
    for (transport, ranks, way), ours in groups.items():
        for who, name in _NAMES.items():
            theirs = by_who(records).get(who, {})
            ratios = [
                (ratio, f"{one['op']} {size_text(number(one, 'size'))}".removesuffix(" 0 B"))
                for one in ours
                if (ratio := over(rival_of(one, theirs), one)) is not None
            ]
            if not ratios:
                continue
            cores = f" on {ours[0]['cores']} cores" if "cores" in ours[0] else ""
            won = ", ".join(f"{what} ({ratio:.2f})" for ratio, what in sorted(ratios) if ratio < 1)
            lines.append(
                f"{transport}, {ranks} ranks{cores}, {way}: {name}'s time over ours, geometric mean"
                f" of {len(ratios)}: {geometric([ratio for ratio, _ in ratios]):.2f}; {name} is"
                f" faster in: {won or 'none'}"
            )
    return lines
