"""What was measured of collectives, as tables of text."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence

from bench.benchlib.record import Record, number, text
from bench.benchlib.units import size_text, time_text
from bench.suite import collective_targets, samples, verbs
from bench.suite.collective_cells import (
    Cell,
    Known,
    Share,
    by_who,
    cell_of,
    of_floor,
    over,
    rival_of,
    row_of,
)
from bench.suite.collectives import NOTHING, is_net_of_one_loop, net_ns
from bench.suite.layout import layout
from bench.suite.peers import OURS
from bench.suite.settings import PLAIN, ROWS

_NO_RATE_BYTES = 1024  # below it a rate says nothing
_WIDTH = 120
_NAMES = {"gloo": "Gloo", "OpenMPI": "OpenMPI"}  # rivals, by contestant
# Under the table: what its last columns mean.
NOTES = (
    "CPU: of all ranks together. of floor: the copy floor's time over this one's of the same turn; "
    "the median of the turns', and the least and the most of them.",
    "alone: the same loop without communication; net: what is left without that of its own turn.",
)
_ONE_LOOP = "this file has the loop of one turn only, the one in the middle, which net is without."


def show(records: Sequence[Record]) -> str:
    """Plain rows, rows of tensors that the ranks use, and who won where."""
    plain = [one for one in records if row_of(one) == PLAIN]
    others = [one for one in records if row_of(one) != PLAIN]
    known = by_who(records)
    lines = [*verdicts(records), *collective_targets.lines(records), *verbs.shares(records)]
    parts = [
        _plain(plain, known) if plain else "",
        _rewritten(others, known) if others else "",
        *(NOTES[: 1 + bool(others)]),
        _ONE_LOOP if any(map(is_net_of_one_loop, others)) else "",
        *(textwrap.fill(line, _WIDTH, subsequent_indent="    ") for line in lines),
    ]
    return "\n".join(part for part in parts if part)


def _sorted(records: Sequence[Record], row_matters: bool = False) -> list[Record]:
    """Cells in the order in which they came, ours first, floors last."""
    places: dict[Cell, int] = {}
    for record in records:
        cell = cell_of(record) if row_matters else cell_of(record, PLAIN)
        places.setdefault(cell, len(places))

    def place(record: Record) -> tuple[int, int]:
        cell = cell_of(record) if row_matters else cell_of(record, PLAIN)
        rank = {OURS: 0, "floor": 2}.get(text(record, "peer"), 1)
        return places[cell], rank

    return sorted(records, key=place)


def _who(record: Record) -> str:
    how = record.get("waits", "never")
    return text(record, "contestant") + (f", {how}" if how != "never" else "")


def _plain(records: Sequence[Record], known: Known) -> str:
    heads = (
        *("", "who", "size", "p50", "p90", "call p99", "call p999", "algbw GB/s", "busbw GB/s"),
        *("CPU a call", "CPU s/GB", "of floor", "times ours"),
    )
    ours = known.get(OURS, {})
    return layout(
        heads,
        [
            (
                f"{record['op']}, {record['transport']}, {record['ranks']} ranks",
                _who(record),
                size_text(number(record, "size")) if record["op"] != "barrier" else "-",
                *(samples.tail_text(record, name) for name in ("median_ns", "p90", "p99", "p999")),
                *_bandwidths(record),
                *_costs(record),
                _share(of_floor(record, known)),
                _figure(over(record, ours.get(cell_of(record)))),
            )
            for record in _sorted(records)
        ],
    )


def _rewritten(records: Sequence[Record], known: Known) -> str:
    """Rows in which the ranks write and read: with communication, without it, and what is left."""
    rivals = [name for name in _NAMES if name in known]
    heads = (
        *("tensors that the ranks use", "who", "size", "row", "p50", "call p99", "call p999"),
        *(
            "alone",
            "net",
            "CPU a call",
            "CPU s/GB",
            "of floor",
            *(f"{_NAMES[name]} over it" for name in rivals),
        ),
    )
    return layout(
        heads,
        [
            (
                f"{record['op']}, {record['transport']}, {record['ranks']} ranks",
                _who(record),
                size_text(number(record, "size")),
                row_of(record),
                *(
                    samples.tail_text(record, name)
                    for name in ("median_ns", "p99", "p999", "loop_ns")
                ),
                signed_time(net_ns(record)),
                *_costs(record),
                _share(of_floor(record, known)),
                *(_figure(over(rival_of(record, known[name]), record)) for name in rivals),
            )
            for record in _sorted(records)
        ],
    )


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _share(share: Share | None) -> str:
    return "-" if share is None else share.words


def signed_time(ns: float) -> str:
    """Below 0 noise was larger than what there was to see."""
    return f"-{time_text(-ns)}" if ns < 0 else time_text(ns)


def _bandwidths(record: Record) -> tuple[str, str]:
    names = ("algbw_gb_per_s", "busbw_gb_per_s")
    is_real = number(record, "size") >= _NO_RATE_BYTES and record["contestant"] != NOTHING
    if not is_real or names[0] not in record:
        return "-", "-"
    return f"{number(record, names[0]):.2f}", f"{number(record, names[1]):.2f}"


def _costs(record: Record) -> tuple[str, str]:
    has_rate = "cpu_s_per_gb" in record and number(record, "size") >= _NO_RATE_BYTES
    return (
        samples.tail_text(record, "call_cpu_ns"),
        f"{number(record, 'cpu_s_per_gb'):.3g}" if has_rate else "-",
    )


def verdicts(records: Sequence[Record]) -> list[str]:
    """Return a line for each path, number of ranks, way and rival.

    Each has the geometric mean of its time over ours, and all in which it is faster.
    """
    lines = []
    for row in (PLAIN, *ROWS):
        of_row = [one for one in records if row_of(one) == row]
        groups = dict.fromkeys((one["transport"], one["ranks"]) for one in of_row)
        for transport, ranks in groups:
            ours = [
                one
                for one in of_row
                if (one["transport"], one["ranks"], one["peer"]) == (transport, ranks, OURS)
            ]
            for name in _NAMES:
                line = _verdict(ours, name, by_who(records).get(name, {}))
                if line:
                    more = " on {cores} cores" if ours and "cores" in ours[0] else ""
                    where = f"{transport}, {ranks} ranks{more.format(**ours[0])}"
                    lines.append(f"{where}, {row}: {line}")
    return lines


def _verdict(ours: Sequence[Record], name: str, theirs: dict[Cell, Record]) -> str:
    ratios = [
        (ratio, f"{one['op']} {size_text(number(one, 'size'))}".removesuffix(" 0 B"))
        for one in ours
        for ratio in [over(rival_of(one, theirs), one)]
        if ratio is not None
    ]
    if not ratios:
        return ""
    mean = math.exp(sum(math.log(ratio) for ratio, _ in ratios) / len(ratios))
    won = ", ".join(f"{what} ({ratio:.2f})" for ratio, what in sorted(ratios) if ratio < 1)
    return (
        f"{_NAMES[name]}'s time over ours, geometric mean of {len(ratios)}: {mean:.2f}; "
        f"{_NAMES[name]} is faster in: {won or 'none'}"
    )
