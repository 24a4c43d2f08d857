"""What was measured, as tables of text: one renderer for all that is timed, and topics' own."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from bench.benchlib.record import Record, number, text
from bench.benchlib.units import size_text, time_text
from bench.suite import (
    busy,
    collectives,
    costs,
    crossover,
    horovod,
    links,
    lossy,
    models,
    ps,
    samples,
    scale,
    setup,
    transfers,
    verbs,
)
from bench.suite.layout import geometric, layout
from bench.suite.peers import RDMATENSOR
from bench.suite.settings import KIB, PLAIN, ROWS

_NO_RATE_BYTES = 1024  # below it a rate says nothing
_SLEEPS = 0.5  # of a round trip, in which a side waits once: fewer sleeps are no way of waiting
_WIDTH = 120
NAMES = {"gloo": "Gloo", "OpenMPI": "Open MPI"}  # of the other libraries of collectives
Cell = tuple[object, ...]
Known = dict[str, dict[Cell, Record]]  # by name


def measured(records: Sequence[Record]) -> list[Record]:
    """Return the records of measurements: not those of missing peers."""
    return [record for record in records if "missing" not in record]


def missing(records: Sequence[Record]) -> list[str]:
    """Return a line for each peer that was not there."""
    return [
        f"missing in {record['topic']}: {record['peer']} ({record['missing']})"
        + (f"; to get it: {record['get']}" if record["get"] else "")
        for record in records
        if "missing" in record
    ]


def cell_of(record: Record) -> Cell:
    """Return what those share who are compared: all but who they are and how they wait."""
    is_python = record.get("language") == "Python"
    keys = ("topic", "op", "transport", "size", "ranks", "timed")
    return (*(record.get(key) for key in keys), is_python)


def fastest_of(records: Sequence[Record], peer: str) -> dict[Cell, Record]:
    """Return a peer's fastest record of each cell and way of waiting."""
    best: dict[Cell, Record] = {}
    for record in records:
        key = (*cell_of(record), record.get("wait"))
        if record["peer"] == peer and (
            key not in best or number(record, "median_ns") < number(best[key], "median_ns")
        ):
            best[key] = record
    return best


def factors_of(record: Record, own: dict[Cell, Record]) -> tuple[float | None, float | None]:
    """Return the ratio of a record's time to rdmatensor's: waiting alike, and to spinning.

    None where rdmatensor did not wait so. The second is that of peers that sleep, and may have no
    choice: a floor that sleeps does not bound what spins.
    """
    if record["peer"] == RDMATENSOR:
        return None, None
    cell, wait = cell_of(record), record.get("wait")
    is_mixed = wait == samples.WAITS["sleep"] and record["peer"] != "floor"
    alike, spinning = own.get((*cell, wait)), own.get((*cell, "spinning"))
    return _times(record, alike), _times(record, spinning) if is_mixed else None


def _times(record: Record, own: Record | None) -> float | None:
    return None if own is None else number(record, "median_ns") / number(own, "median_ns")


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _cost(record: Record, name: str) -> str:
    return f"{number(record, name):.3g}" if name in record else "-"


def _what(record: Record) -> str:
    words = [str(record[key]) for key in ("op", "transport") if record.get(key)]
    words += [size_text(number(record, "size"))] if number(record, "size") > 0 else []
    words += [f"{record['ranks']} ranks"] if record.get("ranks") else []
    return ", ".join(words)


def _waited(record: Record) -> str:
    """How a peer waited; of one that was to sleep how often it did, where that is known."""
    wait = str(record.get("wait", record.get("waits", "never")))
    if wait != samples.WAITS["sleep"] or samples.SLEPT[0] not in record:
        return wait
    slept = number(record, samples.SLEPT[0])
    word = wait if slept >= _SLEEPS else f"hardly {wait}"
    return f"{word} ({slept:.2f} times a trip, CPU {time_text(number(record, samples.SLEPT[1]))})"


def grouped(records: Sequence[Record]) -> list[Record]:
    """Sort by cells, in the order in which they came, rdmatensor first."""
    places = {key: place for place, key in enumerate(dict.fromkeys(map(cell_of, records)))}
    return sorted(records, key=lambda one: (places[cell_of(one)], one["peer"] != RDMATENSOR))


def timed(name: str, records: Sequence[Record]) -> str:
    """Return the table of records that are one time of one size: time, tails, rate, ratios."""
    own, floors = fastest_of(records, RDMATENSOR), fastest_of(records, "floor")
    kept = {id(record) for record in floors.values()}
    cpu = ("first side's CPU s/GB", "second side's")
    has_rate = name != "cold start"
    factors = ("over spinning", "over rdmatensor")
    heads = (name, "who", "p50", "p99", "p999", "GB/s each way", *cpu, *factors)
    lines = []
    for one in grouped([one for one in records if one["peer"] != "floor" or id(one) in kept]):
        size, median_ns = number(one, "size"), number(one, "median_ns")
        alike, mixed = factors_of(one, own)
        lines.append(
            (
                _what(one),
                ", ".join((text(one, "name"), _waited(one), text(one, "timed"))),
                time_text(median_ns),
                *(samples.tail_text(one, tail) for tail in samples.TAILS),
                f"{size / median_ns:.3f}" if has_rate and size >= _NO_RATE_BYTES else "-",
                *(_cost(one, cost) for cost in samples.COSTS),
                *map(_figure, (mixed, alike)),
            )
        )
    return layout(heads, lines)


def _p2p(records: Sequence[Record]) -> str:
    kinds: dict[str, list[Record]] = {}
    for one in records:
        kinds.setdefault(transfers.kind_of(one), []).append(one)
    return "\n\n".join(timed(kind, of_kind) for kind, of_kind in kinds.items())


# ---- Collectives --------------------------------------------------------------------------------

_HEADS = (
    *("", "who", "size", "tensors", "p50", "p90", "call p99", "call p999", "alone", "net"),
    *("algbw GB/s", "busbw GB/s", "CPU a call", "CPU s/GB", "of floor", "over rdmatensor"),
)
_NOTE = (
    "alone: the same loop without communication, where the ranks use the tensors; net: the rest "
    "without that of its own turn, which bandwidths and ratios are of. CPU: of all ranks together. "
    "of floor: the copy floor's time over this one's. An arena's row has the others' of the same "
    "tensors next to it."
)


def row_of(record: Record) -> str:
    """Return how the tensors were used."""
    return str(record.get("row", PLAIN))


def call_of(record: Record, row: str | None = None) -> Cell:
    """Return what records share that did the same; row: as if it were another one's."""
    keys = ("topic", "transport", "ranks", "op", "size")
    return (*(record.get(key) for key in keys), row or row_of(record))


def by_name(records: Sequence[Record]) -> Known:
    """Return the records of each name by what they did."""
    found: Known = {}
    for record in records:
        found.setdefault(text(record, "name"), {})[call_of(record)] = record
    return found


def other_of(record: Record, others: dict[Cell, Record]) -> Record | None:
    """Return another's record of the same call; without an arena, of the same tensors again."""
    row = "same" if row_of(record) == "arena" else row_of(record)
    return others.get(call_of(record, row))


def over(record: Record | None, other: Record | None) -> float | None:
    """Return the ratio of both times, without what the ranks do themselves."""
    if record is None or other is None or record is other:
        return None
    took, others = collectives.net_ns(record), collectives.net_ns(other)
    return took / others if took > 0 and others > 0 else None


def _collectives(records: Sequence[Record]) -> str:
    known = by_name(records)
    places = {key: place for place, key in enumerate(dict.fromkeys(map(call_of, records)))}
    ranks = {RDMATENSOR: 0, "floor": 2}
    ordered = sorted(
        records, key=lambda one: (places[call_of(one)], ranks.get(text(one, "peer"), 1))
    )
    parts = [
        layout(_HEADS, [_call(record, known) for record in ordered]),
        textwrap.fill(_NOTE, _WIDTH),
        *(
            textwrap.fill(line, _WIDTH, subsequent_indent="    ")
            for line in [*verdicts(records), *verbs.shares(records)]
        ),
    ]
    return "\n".join(parts)


def _call(record: Record, known: Known) -> tuple[str, ...]:
    how, size = record.get("waits", "never"), number(record, "size")
    has_loop, is_large = "loop_ns" in record, size >= _NO_RATE_BYTES
    floor = known.get(collectives.COPY_FLOOR, {}).get(call_of(record, PLAIN))
    rates = [
        f"{number(record, name):.2f}" if is_large and name in record else "-"
        for name in ("algbw_gb_per_s", "busbw_gb_per_s")
    ]
    net_ns = collectives.net_ns(record)
    return (
        f"{record['op']}, {record['transport']}, {record['ranks']} ranks",
        text(record, "name") + (f", {how}" if how != "never" else ""),
        size_text(size) if record["op"] != "barrier" else "-",
        row_of(record),
        *(samples.tail_text(record, name) for name in ("median_ns", "p90", "p99", "p999")),
        samples.tail_text(record, "loop_ns") if has_loop else "-",
        ("-" * (net_ns < 0) + time_text(abs(net_ns))) if has_loop else "-",
        *rates,
        samples.tail_text(record, "call_cpu_ns"),
        _cost(record, "cpu_s_per_gb") if is_large else "-",
        _figure(over(floor, record)) if record["peer"] != "floor" else "-",
        _figure(over(record, known.get(RDMATENSOR, {}).get(call_of(record)))),
    )


def verdicts(records: Sequence[Record]) -> list[str]:
    """Return a line for each path, number of ranks, row and other library.

    Each has the geometric mean of the ratios, and all calls in which the other one is faster.
    """
    known = by_name(records)
    groups: dict[Cell, list[Record]] = {}
    for one in known.get(RDMATENSOR, {}).values():
        groups.setdefault((one["transport"], one["ranks"], row_of(one)), []).append(one)
    lines = []
    for (transport, ranks, way), own in sorted(
        groups.items(), key=lambda item: (PLAIN, *ROWS).index(str(item[0][2]))
    ):
        for who, name in NAMES.items():
            ratios = [
                (ratio, f"{one['op']} {size_text(number(one, 'size'))}".removesuffix(" 0 B"))
                for one in own
                if (ratio := over(other_of(one, known.get(who, {})), one)) is not None
            ]
            if not ratios:
                continue
            cores = f" on {own[0]['cores']} cores" if "cores" in own[0] else ""
            faster = ", ".join(f"{what} ({of:.2f})" for of, what in sorted(ratios) if of < 1)
            lines.append(
                f"{transport}, {ranks} ranks{cores}, {way}: {name}'s time over rdmatensor's, "
                f"geometric mean of {len(ratios)}: {geometric([of for of, _ in ratios]):.2f}; "
                f"{name} is faster in: {faster or 'none'}"
            )
    return lines


def _hosts(records: Sequence[Record]) -> str:
    """A line for each operation and size, with each algorithm's time and tail."""
    names = list(dict.fromkeys(text(one, "name") for one in records))
    found: dict[Cell, dict[str, Record]] = {}
    for one in records:
        found.setdefault((one["op"], one["size"]), {})[text(one, "name")] = one
    parts = []
    for head, name in (("median", "median_ns"), ("p99.9 of single calls", "p999")):
        lines = [
            (
                str(op),
                size_text(float(str(size))),
                *(samples.tail_text(of[who], name) for who in names),
            )
            for (op, size), of in found.items()
        ]
        parts.append(layout((head, "size", *names), lines))
    for name in names:
        ratios = [
            number(of[name], "median_ns") / number(of["auto"], "median_ns") for of in found.values()
        ]
        if name != "auto":
            parts.append(f"{name}'s time over auto's, geometric mean: {geometric(ratios):.2f}")
    return "\n\n".join(parts[:2]) + "\n\n" + "\n".join(parts[2:])


def _setup(records: Sequence[Record]) -> str:
    """Time until ranks can work, memory, and how both grow with their number."""
    own = fastest_of(records, RDMATENSOR)
    lines = [
        (
            f"{one['transport']} {one['timed']}",
            text(one, "name"),
            f"{one['ranks']}",
            time_text(number(one, "median_ns")),
            *(time_text(of(samples.raw_of(one))) for of in (min, max)),
            _figure(factors_of(one, own)[0]),
            f"{number(one, 'rank_bytes') / KIB:.0f} KiB" if "rank_bytes" in one else "-",
        )
        for one in grouped(records)
    ]
    heads = ("", "who", "ranks", "p50", "least", "most", "over rdmatensor", "memory of a rank")
    notes = []
    for name, curve in setup.curves(records).items():
        time, held = setup.power(curve), setup.memory(curve)
        if time is not None:
            notes.append(f"{name}: grows as ranks^{time[1]:.2f}")
        if held is not None:
            kib = [of / KIB for of in held]
            notes[-1] += f"; memory of a rank {kib[0]:.0f} KiB and {kib[1]:.0f} KiB for each other"
    return "\n".join([layout(heads, lines), *notes])


TABLES = {
    "p2p": _p2p,
    "collectives": _collectives,
    "setup": _setup,
    "models": models.show,
    "convergence": models.show_curves,
    "scale": scale.show,
    "busy": busy.show,
    "ps": ps.show,
    "crossover": crossover.show,
    "hosts": _hosts,
    "links": links.show,
    "lossy": lossy.show,
    "costs": costs.show,
    "horovod": horovod.show,
}


def of_topic(records: Sequence[Record], topic: str) -> list[Record]:
    """Return what was measured for a topic."""
    return [record for record in measured(records) if record["topic"] == topic]


def table_of(topic: str, records: Sequence[Record]) -> str:
    """Return a topic's table; records: of all topics."""
    return TABLES[topic](of_topic(records, topic))


def show(records: Sequence[Record]) -> str:
    """Return all tables, and which peers were missing."""
    shown = [topic for topic in TABLES if of_topic(records, topic)]
    parts = [f"{topic}\n{table_of(topic, records)}" for topic in shown]
    return "\n\n".join([*parts, "\n".join(missing(records))]).rstrip()
