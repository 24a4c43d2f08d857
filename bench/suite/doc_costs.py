"""Generated tables of what a median does not tell: tails, processor time, and a cold start."""

from __future__ import annotations

from collections.abc import Sequence

from bench.benchlib.record import Record, Result, number, text
from bench.benchlib.verdict import size_text, time_text
from bench.suite import reads, samples, streams
from bench.suite.doc_messages import RIVALS, best_of_peers, is_beside
from bench.suite.doc_words import ROOM, head, spread, table
from bench.suite.peers import OURS

_COLUMNS = {OURS: "ours", **RIVALS}
_NOBODY = "-"


def block(result: Result) -> str:
    """Return tails of single messages, processor time a GB, and the steps of a cold start."""
    records = [
        one for one in result.quietest.records if "missing" not in one and one["topic"] == "p2p"
    ]
    in_c = [one for one in records if one.get("language") != "Python"]
    halves = [one for one in in_c if one["timed"] == samples.HALF]
    ours = [one for one in halves if one["peer"] == OURS]
    moved = [one for one in in_c if streams.is_stream(one) or reads.is_read(one)]
    cold = [one for one in records if streams.is_cold(one)]
    parts = [head(result, ours), _tails(halves), _processors(moved), _cold(cold)]
    return "\n\n".join(part for part in parts if part)


def _tails(halves: Sequence[Record]) -> str:
    """Return the median, the 99th hundredth and the 999th thousandth of each of who is fastest."""
    rows = []
    for cell, found in _cells(halves).items():
        ours = found[OURS]
        cells = []
        for peer in _COLUMNS:
            rival = found.get(peer)
            marks = {} if rival is None or peer == OURS else _less(rival, ours)
            cells.append(_NOBODY if rival is None else _tail(rival, marks))
        rows.append((cell, *cells))
    return table(("p50, p99, p99.9 of half a round trip, C", *_COLUMNS.values()), rows)


def _less(rival: Record, ours: Record) -> dict[str, bool]:
    """Return of which figures a rival has less than we, by more than chance is allowed."""
    return {
        name: name in rival and name in ours and number(rival, name) < ROOM * number(ours, name)
        for name in ("median_ns", *samples.TAILS)
    }


def _tail(record: Record, marks: dict[str, bool]) -> str:
    words = [time_text(number(record, "median_ns"))]
    words += [samples.tail_text(record, name) for name in samples.TAILS]
    marked = zip(words, ("median_ns", *samples.TAILS), strict=True)
    return ", ".join(f"**{word}**" if marks.get(name) else word for word, name in marked)


def _processors(moved: Sequence[Record]) -> str:
    """Return what both sides' processors spend on a GB, by way."""
    rows = []
    for cell, found in _cells(moved).items():
        sums = {
            peer: sum(number(one, name) for name in samples.COSTS)
            for peer, one in found.items()
            if all(name in one for name in samples.COSTS)
        }
        if OURS not in sums:
            continue
        cells = []
        for peer in _COLUMNS:
            if peer not in sums:
                cells.append(_NOBODY)
                continue
            of_sides = " + ".join(f"{number(found[peer], name):.3g}" for name in samples.COSTS)
            is_less = peer != OURS and sums[peer] < ROOM * sums[OURS]
            cells.append(f"**{of_sides}**" if is_less else of_sides)
        rows.append((cell, *cells))
    heads = ("CPU seconds for 10^9 bytes, first + second side, C", *_COLUMNS.values())
    return table(heads, rows) if rows else ""


def _cells(records: Sequence[Record]) -> dict[str, dict[str, Record]]:
    """Return of each path, size, way of waiting and way of moving ours and each peer's fastest."""
    found: dict[str, dict[str, Record]] = {}
    for ours in sorted((one for one in records if one["peer"] == OURS), key=_place):
        cell = (ours["transport"], ours["size"], ours["wait"])
        way = text(ours, "timed")
        name = f"{cell[0]} {size_text(number(ours, 'size'))}, {cell[2]}"
        of_way = [one for one in records if one["timed"] == way and is_beside(one, *cell)]
        found[name if way == samples.HALF else f"{name}, {way}"] = {
            OURS: ours,
            **best_of_peers(of_way),
        }
    return found


def _place(record: Record) -> tuple[bool, bool, str, float]:
    is_sleeping = record["wait"] == samples.WAITS["sleep"]
    of_way = "" if record["timed"] == samples.HALF else text(record, "timed")
    return record["transport"] != "shm", is_sleeping, of_way, number(record, "size")


def _cold(cold: Sequence[Record]) -> str:
    """Return how long each step takes, from a context to a second write."""
    rows = [
        (
            f"{one['transport']}, {size_text(number(one, 'size'))} of memory",
            f"{text(one, 'contestant')}: {text(one, 'timed').removeprefix(streams.COLD)}",
            spread(one),
        )
        for one in cold
    ]
    return table(("cold start", "step", "takes"), rows) if rows else ""
