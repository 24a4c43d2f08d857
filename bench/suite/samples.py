"""Samples of many turns: one record for each thing measured, its turns kept apart.

A record has the fields that say what it is, unit ("ns"), raw_ns with the samples of all turns in
their order, turns with how many of them each turn has ("raw"), its median and, of turns that share
processes, which start of these it belongs to ("start") and how many others had turns between its
("beside"), and the quantiles of all. The median and the band (p10, p90) are of raw_ns. A tail is of
the single calls of all turns where these are known; where a turn knows more than it prints, it is
the median of what the turns print. A tail of fewer samples than LEAST is left out; in place of p999
the largest stands (most_ns, of most_of samples).
Samples of one turn resemble each other: a comparison has to draw turns, not samples (compare.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from bench.benchlib.record import Record, number
from bench.benchlib.units import time_text

_OF_A_TURN = ("start", "beside")
_OF_SAMPLES = (
    *("raw_ns", "turns", *_OF_A_TURN, "median_ns"),
    *("p10", "p90", "p99", "p999", "samples", "calls_ns"),
)
BAND = {"p10": 0.1, "p90": 0.9}
TAILS = {"p99": 0.99, "p999": 0.999}
LEAST = {"p99": 100, "p999": 1000}  # samples
UNIT = "ns"
WAITS = {"spin": "spinning", "sleep": "sleeping"}  # of a program -> of a record
HALF = "half a round trip"
# Processor time of each side in seconds for 10^9 bytes moved, of records that have it.
COSTS = ("first_cpu_s_per_gb", "second_cpu_s_per_gb")
# How often the first side's process slept in a round trip, and its processor time for one.
SLEPT = ("switches_per_trip", "cpu_ns_per_trip")
# Of a turn, in addition to its samples.
_OF_TURNS = (
    *(*COSTS, *SLEPT, "call_cpu_ns", "loop_ns", "rank_bytes", "p50_ns", "p99_ns"),
    *("cpu_ns", "memory_bytes", "arena_bytes"),
)
LOOPS = "loop_by_turn_ns"  # loop_ns of each turn, in their order
# What tells one thing measured from another.
KEYS = ("topic", "name", "transport", "op", "size", "ranks", "language", "wait", "timed")


def p2p_fields(name: str, peer: str, transport: str, size: float, **more: str) -> Record:
    """Return what a record of one transfer begins with; size: bytes."""
    head: Record = {"topic": "p2p", "name": name, "peer": peer, "transport": transport}
    return {**head, "size": int(size), "depth": 1, **more}


def quantile(values: Sequence[float], fraction: float) -> float:
    """Return the sample at a fraction of the order; at least one sample."""
    ordered = sorted(values)
    return ordered[int(fraction * (len(ordered) - 1) + 0.5)]


def turn(
    fields: Record,
    raw_ns: Sequence[float],
    known: Record | None = None,
    calls_ns: Sequence[int] | None = None,
) -> Record:
    """Return the record of one turn.

    known: quantiles of more samples than raw_ns has. calls_ns: single calls where raw_ns has the
    means of several; tails are of the calls.
    """
    if calls_ns:
        high = {name: quantile(calls_ns, fraction) for name, fraction in TAILS.items()}
        known = {"samples": len(calls_ns), **high}
    whole = [round(ns) for ns in raw_ns]
    count = int(number(known, "samples")) if known else len(whole)
    enough = [name for name in TAILS if count >= LEAST[name]]
    tails = {name: quantile(whole, TAILS[name]) for name in enough}
    tails |= {name: number(known, name) for name in enough if known and name in known}
    calls: Record = {"calls_ns": list(calls_ns)} if calls_ns else {}
    middle = _middle(whole)
    return {**fields, "unit": UNIT, **middle, **tails, "samples": count, "raw_ns": whole, **calls}


def _middle(raw_ns: Sequence[float]) -> Record:
    band = {name: quantile(raw_ns, fraction) for name, fraction in BAND.items()}
    return {"median_ns": quantile(raw_ns, 0.5), **band}


def key_of(record: Record) -> tuple[object, ...]:
    """Return what a record is about."""
    return tuple(record.get(name) for name in KEYS)


def raw_of(record: Record) -> list[int]:
    """Return all samples, in nanoseconds."""
    return cast("list[int]", record["raw_ns"])


def figure(record: Record, name: str) -> float:
    """Return a quantile of a record by its name; the band's from its samples."""
    return quantile(raw_of(record), BAND[name]) if name in BAND else number(record, name)


def turns_of(record: Record) -> list[list[int]]:
    """Return the samples of each turn."""
    raw = raw_of(record)
    parts, start = [], 0
    for one in cast("list[Record]", record["turns"]):
        end = start + int(number(one, "raw"))
        parts.append(raw[start:end])
        start = end
    return parts


def starts_of(record: Record) -> dict[object, list[list[int]]]:
    """Return the samples of each turn, by the start of the processes that took them."""
    found: dict[object, list[list[int]]] = {}
    turns = cast("list[Record]", record["turns"])
    for place, (one, raw) in enumerate(zip(turns, turns_of(record), strict=True)):
        found.setdefault(one.get("start", (place,)), []).append(raw)
    return found


def grouped(turns: Sequence[Record]) -> dict[tuple[object, ...], list[Record]]:
    """Return the records of each key."""
    found: dict[tuple[object, ...], list[Record]] = {}
    for record in turns:
        found.setdefault(key_of(record), []).append(record)
    return found


def merge(turns: Sequence[Record]) -> list[Record]:
    """Return one record for each key, in the order of their first turns."""
    return [_merge_one(of_key) for of_key in grouped(turns).values()]


def _merge_one(turns: list[Record]) -> Record:
    def middle_of(names: Sequence[str]) -> dict[str, float]:
        shared = [name for name in names if all(name in one for one in turns)]
        return {name: quantile([number(one, name) for one in turns], 0.5) for name in shared}

    apart = {*_OF_SAMPLES, *_OF_TURNS, "parts"}  # of a turn, or of some turns only
    fields = {name: value for name, value in turns[0].items() if name not in apart}
    raw = [ns for record in turns for ns in raw_of(record)]
    tails: Record = {**middle_of(tuple(TAILS))}
    calls = _calls_of(turns)
    if calls is not None:
        tails |= {name: quantile(calls, TAILS[name]) for name in TAILS if len(calls) >= LEAST[name]}
        if "p999" not in tails:
            tails |= {"most_ns": max(calls), "most_of": len(calls)}
    costs: Record = {**middle_of(_OF_TURNS)}
    if "loop_ns" in costs:
        costs[LOOPS] = [number(one, "loop_ns") for one in turns]
    if all("parts" in one for one in turns):
        parts = [cast("dict[str, float]", one["parts"]) for one in turns]
        costs["parts"] = {name: quantile([of[name] for of in parts], 0.5) for name in parts[0]}
    return {
        **fields,
        **costs,
        **_middle(raw),
        **tails,
        "samples": sum(int(number(one, "samples")) for one in turns),
        "turns": [_turn_of(one) for one in turns],
        "raw_ns": raw,
    }


def _turn_of(record: Record) -> Record:
    shared = {name: record[name] for name in _OF_A_TURN if name in record}
    return {"raw": len(raw_of(record)), "median_ns": record["median_ns"], **shared}


def _calls_of(turns: Sequence[Record]) -> list[int] | None:
    """Return all single calls; None where some turn knows more than it prints."""
    found: list[int] = []
    for one in turns:
        calls = cast("list[int]", one["calls_ns"]) if "calls_ns" in one else raw_of(one)
        if len(calls) != int(number(one, "samples")):
            return None
        found += calls
    return found


def tail_text(record: Record, name: str) -> str:
    """Return a quantile; in place of the highest the largest of too few samples, named as such."""
    if name in record:
        return time_text(figure(record, name))
    if name == "p999" and "most_ns" in record:
        return f"most of {number(record, 'most_of'):.0f}: {time_text(number(record, 'most_ns'))}"
    return "-"
