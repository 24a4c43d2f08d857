"""Rows of the C programs: from the records of one run to what the table says."""

from __future__ import annotations

from bench.benchlib.record import Record, number, summaries, text
from bench.benchlib.verdict import Row, rate_text, size_text, time_text

_IDLE_BYTES = 16 << 10
_WIRE_BYTES = 32


def shm_write(records: list[Record]) -> list[Row]:
    """Writes over shared memory against the best copy."""
    rows = []
    for record in summaries(records):
        size = number(record, "size")
        call = f"until the call returns: {number(record, 'ratio_call'):.3f}"
        rows.append(
            Row(
                f"shm {size_text(size)} write + notify, C",
                f"{rate_text(size, number(record, 'floor_ns'))} {text(record, 'best_floor')}",
                rate_text(size, number(record, "ours_ns")),
                number(record, "ratio"),
                0.9,
                note=f"until the peer knows; {call}",
            )
        )
    return rows


def shm_latency(records: list[Record]) -> list[Row]:
    """One way of 8 B over shared memory."""
    (record,) = summaries(records)
    ours_ns, floor_ns = number(record, "ours_ns"), number(record, "floor_ns")
    return [
        Row(
            "shm 8 B one way, C",
            f"{time_text(floor_ns)} store and spin",
            f"{time_text(ours_ns)} = {ours_ns / floor_ns:.2f} floors",
            ours_ns / 1e3,
            0.5,
            better="lower",
            is_absolute=True,
            note="ratio and target in us",
        )
    ]


def write_many(records: list[Record]) -> list[Row]:
    """Lists of blocks against one large write."""
    (record,) = summaries(records)
    count, size = number(record, "blocks"), number(record, "block_bytes")
    one_ns = number(record, "one_ns")
    what = f"{text(record, 'transport')} write_many of {count:g} x {size_text(size)}"
    one = f"{rate_text(count * size, one_ns)} one write"
    return [
        Row(
            f"{what}, {how}",
            one,
            rate_text(count * size, one_ns / number(record, key)),
            number(record, key),
            target,
        )
        for how, key, target in (
            ("in order", "ratio", 0.8),
            ("shuffled on both sides", "ratio_shuffled", None),
            ("as single writes", "ratio_one_by_one", None),
        )
    ]


def tcp_throughput(records: list[Record]) -> list[Row]:
    """A large write over loopback TCP against the best plain sockets."""
    (record,) = summaries(records)
    size = number(record, "size")
    tried = number(record, "configurations")
    return [
        Row(
            f"tcp {size_text(size)} write + notify, C",
            f"{rate_text(size, number(record, 'floor_ns'))} best of {tried:g} kinds of sockets",
            rate_text(size, number(record, "ours_ns")),
            number(record, "ratio"),
            0.9,
        )
    ]


def tcp_latency(records: list[Record]) -> list[Row]:
    """One way of 8 B over loopback TCP against plain sockets that wait in the same way."""
    return [
        Row(
            f"tcp 8 B one way, C, {wait}ing",
            f"{time_text(number(record, 'floor_single_ns'))} plain socket",
            time_text(number(record, "ours_single_ns")),
            number(record, "times_floor_single"),
            1.2,
            better="lower",
            note=f"median of single trips; of batches: {number(record, 'times_floor'):.3f}"
            + _slept(record),
        )
        for record in summaries(records)
        for wait in [{"spin": "spinn", "sleep": "sleep"}[text(record, "wait")]]
    ]


def _slept(record: Record) -> str:
    """How often each slept in a round trip, where they were told to; older files do not say."""
    if record["wait"] != "sleep" or "ours_switches_per_trip" not in record:
        return ""
    ours, floor = (number(record, f"{who}_switches_per_trip") for who in ("ours", "floor"))
    return f"; slept {ours:.2f} times a round trip, the socket {floor:.2f} times"


def registration(records: list[Record]) -> list[Row]:
    """What memory costs at first, and that it does not cost it again."""
    medians = {text(record, "contestant"): number(record, "median_ns") for record in records}
    size = size_text(number(records[0], "size"))
    populate = f"{time_text(medians['populate'])} memfd, populated"
    return [
        Row(f"{name} {size}", populate if "alloc" in key else "-", time_text(medians[key]), *ends)
        for name, key, ends in (
            ("allocate in the arena", "alloc", (medians["populate"] / medians["alloc"], None)),
            ("free and allocate again", "alloc again", (None, None)),
            ("register existing memory of", "register", (None, None)),
            ("first write of 8 B into", "first write", (None, None)),
            ("second write of 8 B into", "second write", (None, None)),
        )
    ]


def idle_memory(records: list[Record]) -> list[Row]:
    """Memory of a connection on which nothing moves."""
    return [
        Row(
            f"{text(record, 'transport')} idle connection, memory",
            "-",
            f"{number(record, 'private_bytes') / 1024:.1f} KiB private + "
            f"{number(record, 'arena_bytes') / 1024:.1f} KiB arena",
            number(record, "ours_bytes"),
            _IDLE_BYTES,
            better="lower",
            note=f"bytes; {number(record, 'descriptors'):g} descriptors",
        )
        for record in summaries(records)
    ]


def growth(records: list[Record]) -> list[Row]:
    """What many transfers leave behind, in bytes for each thousand of them."""
    rows = []
    for record in summaries(records):
        grown = number(record, "private_bytes") + number(record, "arena_bytes")
        transfers = number(record, "transfers")
        rows.append(
            Row(
                f"{text(record, 'transport')} growth, {text(record, 'side')}",
                "-",
                f"{grown:g} B after {transfers:g} transfers",
                grown / transfers,
                1.0,
                better="lower",
                note="bytes a transfer: malloc's pages come and go, a leak of a word shows",
            )
        )
    return rows


def overhead(records: list[Record]) -> list[Row]:
    """System calls and wire bytes of a write."""
    rows = []
    for record in summaries(records):
        side = f"side {number(record, 'side'):g}"
        if text(record, "transport") == "shm":
            calls = record["calls_per_write"]
            rows.append(
                Row(
                    f"shm system calls per write, {side}",
                    "-",
                    "not counted here"
                    if calls is None
                    else f"{calls} + wake-ups {number(record, 'wakeups_per_write'):g}",
                    None if calls is None else number(record, "calls_per_write"),
                    0.02,  # looks at sockets while it spins, once in many writes
                    better="lower",
                    note=f"numbers of the calls: {record['calls']}",
                )
            )
        else:
            rows.append(
                Row(
                    f"tcp wire overhead per write, {side}",
                    "-",
                    f"{number(record, 'wire_overhead_bytes'):.1f} B with the acknowledgement",
                    number(record, "wire_overhead_bytes"),
                    _WIRE_BYTES,
                    better="lower",
                )
            )
    return rows
