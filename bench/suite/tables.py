"""What was measured, as tables of text."""

from __future__ import annotations

from collections.abc import Sequence

from bench.benchlib.record import Record, number, text
from bench.benchlib.units import size_text, time_text
from bench.suite import (
    breakdown,
    busy_tables,
    collective_tables,
    convergence,
    copies,
    costs,
    hosts,
    links,
    samples,
    scale,
    streams,
    targets,
    tensors,
)
from bench.suite import models as training
from bench.suite.exposure import Exposed
from bench.suite.layout import layout
from bench.suite.peers import OURS
from bench.suite.settings import KIB, MIB
from bench.suite.setup import curves, memory, power

_NO_RATE_BYTES = 1024  # below it a rate says nothing
_SLEEPS = 0.5  # of a round trip, in which a side waits once: who slept in fewer did not wait so


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


def cell_of(record: Record) -> tuple[object, ...]:
    """Return what contestants share who are compared: all but who they are and how they wait."""
    is_python = record.get("language") == "Python"
    keys = ("topic", "op", "transport", "size", "ranks", "timed")
    return (*(record.get(key) for key in keys), is_python)


def best_floors(records: Sequence[Record]) -> list[Record]:
    """Leave out all but the fastest floor of each cell."""
    best: dict[tuple[object, ...], Record] = {}
    for record in records:
        if record["peer"] == "floor":
            key = (*cell_of(record), record.get("wait"))
            if key not in best or number(record, "median_ns") < number(best[key], "median_ns"):
                best[key] = record
    kept = {id(record) for record in best.values()}
    return [one for one in records if one["peer"] != "floor" or id(one) in kept]


def ours_of(records: Sequence[Record]) -> dict[tuple[object, ...], Record]:
    """Return our fastest record of each cell and way of waiting."""
    best: dict[tuple[object, ...], Record] = {}
    for record in records:
        if record["peer"] == OURS:
            key = (*cell_of(record), record.get("wait"))
            if key not in best or number(record, "median_ns") < number(best[key], "median_ns"):
                best[key] = record
    return best


def factors_of(
    record: Record, ours: dict[tuple[object, ...], Record]
) -> tuple[float | None, float | None]:
    """Return how many times as long as we somebody takes: waiting alike, and over our spinning.

    None where we did not wait so. The second is that of rivals who sleep, and may have no choice:
    a floor that sleeps is no floor under what spins.
    """
    if record["peer"] == OURS:
        return None, None
    cell, wait = cell_of(record), record.get("wait")
    spinning = ours.get((*cell, "spinning"))
    is_mixed = wait == "sleeping" and record["peer"] != "floor"
    return (
        _over(record, ours.get((*cell, wait))),
        _over(record, spinning) if is_mixed else None,
    )


def _over(record: Record, ours: Record | None) -> float | None:
    return None if ours is None else number(record, "median_ns") / number(ours, "median_ns")


_APART = (streams.is_stream, streams.is_cold, streams.is_read)  # have tables of their own


def p2p(records: Sequence[Record]) -> str:
    """Time of one transfer and its rate, what gains, messages in a row, reads, and a cold start."""
    rows = [one for one in records if streams.is_stream(one)]
    cold = [one for one in records if streams.is_cold(one)]
    read = [one for one in records if streams.is_read(one)]
    single = [one for one in records if not any(of(one) for of in _APART)]
    gains = tensors.gains(single)
    heads = ("what gains", "slot", *(name for name, _, _ in tensors.GAINS))
    parts = [
        _transfers("one transfer", single),
        f"{layout(heads, gains)}\n{tensors.GAINS_NOTE}" if gains else "",
        _transfers("messages in a row", rows),
        _transfers("one-sided reads", read),
        _cold(cold) if cold else "",
    ]
    return "\n\n".join(part for part in parts if part)


def _cost(record: Record, name: str) -> str:
    """Processor time is not known of all."""
    return f"{number(record, name):.3g}" if name in record else "-"


def _cold(records: Sequence[Record]) -> str:
    return layout(
        ("cold start", "who", "p50", "least", "most"),
        [
            (
                f"{record['transport']}, {size_text(number(record, 'size'))} of memory",
                f"{text(record, 'contestant')}: {text(record, 'timed').removeprefix(streams.COLD)}",
                time_text(number(record, "median_ns")),
                time_text(min(samples.raw_of(record))),
                time_text(max(samples.raw_of(record))),
            )
            for record in records
        ],
    )


def _transfers(name: str, records: Sequence[Record]) -> str:
    """Time, rate and processor time of each side; "" without records."""
    ours = ours_of(records)
    factors = ("over our spinning", "times ours, waiting alike")
    cpu = ("first side's CPU s/GB", "second side's")
    heads = (name, "who", "p50", "p99", "p999", "GB/s each way", *cpu, *factors)
    lines = []
    for record in _grouped(best_floors(records)):
        size, median_ns = number(record, "size"), number(record, "median_ns")
        lines.append(
            (
                f"{text(record, 'transport')} {size_text(size)}",
                f"{text(record, 'contestant')}, {_waited(record)}, {record['timed']}",
                time_text(median_ns),
                *(samples.tail_text(record, name) for name in ("p99", "p999")),
                f"{size / median_ns:.3f}" if size >= _NO_RATE_BYTES else "-",
                *(_cost(record, name) for name in samples.COSTS),
                _figure(factors_of(record, ours)[1]),
                _factor(record, ours),
            )
        )
    return layout(heads, lines) if lines else ""


def _waited(record: Record) -> str:
    """How somebody waited; of who was to sleep how often it did, where that is known."""
    wait = text(record, "wait")
    if wait != samples.WAITS["sleep"] or samples.SLEPT[0] not in record:
        return wait
    slept = number(record, samples.SLEPT[0])
    word = wait if slept >= _SLEEPS else f"hardly {wait}"
    return f"{word} ({slept:.2f} times a trip, CPU {time_text(number(record, samples.SLEPT[1]))})"


def _factor(record: Record, ours: dict[tuple[object, ...], Record]) -> str:
    return _figure(factors_of(record, ours)[0])


def _figure(factor: float | None) -> str:
    return "-" if factor is None else f"{factor:.2f}"


def _grouped(records: Sequence[Record]) -> list[Record]:
    """Sort by what contestants share, in the order in which it came, ours first."""
    places = {key: place for place, key in enumerate(dict.fromkeys(map(cell_of, records)))}
    return sorted(records, key=lambda one: (places[cell_of(one)], one["peer"] != OURS))


def setup(records: Sequence[Record]) -> str:
    """Time until ranks can work, memory, and how both grow with their number."""
    ours = ours_of(records)
    heads = ("", "who", "ranks", "p50", "least", "most", "times ours", "memory of a rank")
    lines = [
        (
            f"{record['transport']} {record['timed']}",
            text(record, "contestant"),
            f"{record['ranks']}",
            time_text(number(record, "median_ns")),
            time_text(min(samples.raw_of(record))),
            time_text(max(samples.raw_of(record))),
            _factor(record, ours),
            _kib(number(record, "rank_bytes")) if "rank_bytes" in record else "-",
        )
        for record in _grouped(records)
    ]
    fits = [line for name, curve in curves(records).items() for line in _fits(name, curve)]
    return "\n".join([layout(heads, lines), *fits])


def _fits(name: str, curve: Sequence[Record]) -> list[str]:
    time, held = power(curve), memory(curve)
    words = [] if time is None else [f"grows as ranks^{time[1]:.2f}"]
    if held is not None:
        words.append(f"memory of a rank {_kib(held[0])} and {_kib(held[1])} for each other")
    return [f"{name}: {'; '.join(words)}"] if words else []


def _kib(size_bytes: float) -> str:
    return f"{size_bytes / KIB:.0f} KiB"


def models(records: Sequence[Record]) -> str:
    """Time of a training step, what of it communication costs, memory, and the targets."""
    heads = (
        *("", "who", "p50", "p10", "p90", "exposed", "99 % of draws", "share", "CPU a step"),
        *("memory MiB", "arena MiB", "times planned", "from Gloo's"),
    )
    planned = training.planned_of(records)
    exposed = training.exposures(records)
    lines = []
    for record in sorted(records, key=training.place_of):
        ours = planned.get(training.cell_of(record))
        has_floor = "share" in record
        lines.append(
            (
                _model_name(record),
                text(record, "contestant"),
                *(time_text(samples.figure(record, name)) for name in ("median_ns", "p10", "p90")),
                collective_tables.signed_time(number(record, "exposed_ns")) if has_floor else "-",
                _drawn(exposed.get(samples.key_of(record))),
                f"{100 * number(record, 'share'):.0f} %" if has_floor else "-",
                time_text(number(record, "cpu_ns")),
                *(_mib(record, name) for name in ("memory_bytes", "arena_bytes")),
                f"{number(record, 'median_ns') / number(ours, 'median_ns'):.2f}" if ours else "-",
                f"{number(record, 'distance'):.1g}"
                if record["peer"] != "floor" and "distance" in record
                else "-",
            )
        )
    steps = sorted(records, key=training.place_of)
    parts = breakdown.rows(steps, _model_name)
    more = ["", layout(breakdown.HEADS, parts), ""] if parts else []
    fault_heads, faults = breakdown.faults(steps, _model_name)
    more += ([] if more else [""]) + [layout(fault_heads, faults), ""] if faults else []
    return "\n".join(
        [layout(heads, lines), *more, *training.apart(records), *targets.of_models(records)]
    )


def _drawn(exposed: Exposed | None) -> str:
    found = None if exposed is None else exposed.interval
    if found is None:
        return "-"
    return " to ".join(map(collective_tables.signed_time, found))


def _mib(record: Record, name: str) -> str:
    """MiB; older files have none of some."""
    return f"{number(record, name) / MIB:.0f}" if record.get(name) else "-"


def _model_name(record: Record) -> str:
    """A model, its parameters, and by how much its widths were divided."""
    scaled = "" if record["divisor"] == 1 else f", widths / {record['divisor']}"
    mib = number(record, "size") / (1 << 20)
    return f"{record['op']} {mib:.1f} MiB{scaled}, {record['transport']}, {record['ranks']} ranks"


def curves_of_losses(records: Sequence[Record]) -> str:
    """When each contestant's loss had fallen how far."""
    return layout(convergence.HEADS, convergence.rows(records))


def rates_of_copies(records: Sequence[Record]) -> str:
    """The copy variant of models, and what others would use in its place."""
    return layout(copies.HEADS, copies.rows(records))


TABLES = {
    "p2p": p2p,
    "collectives": collective_tables.show,
    "setup": setup,
    "models": models,
    "convergence": curves_of_losses,
    "copies": rates_of_copies,
    "scale": scale.show,
    "busy": busy_tables.show,
    "hosts": hosts.show,
    "links": links.show,
    "costs": costs.show,
}


def of_topic(records: Sequence[Record], topic: str) -> list[Record]:
    """Return what was measured for a topic."""
    return [record for record in measured(records) if record["topic"] == topic]


def table_of(topic: str, records: Sequence[Record]) -> str:
    """Return a topic's table; records: of all topics."""
    return TABLES[topic](of_topic(records, topic))


def show(records: Sequence[Record]) -> str:
    """Return all tables, and who was missing."""
    shown = [topic for topic in TABLES if of_topic(records, topic)]
    parts = [f"{topic}\n{table_of(topic, records)}" for topic in shown]
    return "\n\n".join([*parts, "\n".join(missing(records))]).rstrip()
