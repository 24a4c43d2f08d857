"""Generated tables of point to point: single messages, many in a row, reads, what gains what."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from bench.benchlib.record import Record, Result, number, text
from bench.benchlib.verdict import size_text, time_text
from bench.suite import doc_reasons, reads, samples, streams, tensors
from bench.suite.doc_words import ROOM, Loss, Notes, head, marked, spread, table, with_notes
from bench.suite.p2p import KNOWN
from bench.suite.peers import OURS

RIVALS = {"floor": "memcpy and flag; plain socket", "grpc-cpp": "gRPC C++", "ucx": "UCX"}
_BEST = "the best of eight copies, until the peer knows"
_WHY = "where it is slower"


def block(result: Result) -> str:
    """Return the tables of single messages, messages in a row and reads, and where they come from.

    Those of reads only where the result has some.
    """
    return _singles_and_rows(result)[0]


def losses(result: Result) -> list[Loss]:
    """Return what is lost in all of them, and in what gains."""
    return [*_singles_and_rows(result)[1].losses, *_gains(result)[1].losses]


def _singles_and_rows(result: Result) -> tuple[str, Notes]:
    records = result.quietest.records
    halves = [
        one
        for one in records
        if one.get("timed") == samples.HALF and one.get("language") != "Python"
    ]
    ours = sorted((one for one in halves if one["peer"] == OURS), key=_place)
    notes = Notes()
    floor, *others = RIVALS.values()
    heads = ("half a round trip, C", "ours", floor, _BEST, *others, _WHY)
    singles = table(heads, [_row(one, halves, records, notes) for one in ours])
    parts = [head(result, ours), singles, _in_a_row(records, notes)]
    if any(map(reads.is_read, records)):
        parts.append(_of_reads(records, notes))
    return with_notes("\n\n".join(parts), _told(notes, records)), notes


def gains(result: Result) -> str:
    """Return what pre-exchanged addresses, zero copy, packing and the transport gain."""
    return _gains(result)[0]


def _gains(result: Result) -> tuple[str, Notes]:
    records = result.quietest.records
    slots = {
        (text(one, "transport"), int(number(one, "size"))): one
        for one in records
        if one.get("contestant") == tensors.SLOT and one.get("timed") == tensors.TENSOR
    }
    notes = Notes()
    if not slots:
        return "No tensors were measured.", notes
    ratios = tensors.ratios(records)
    rows = []
    for (path, size), slot in sorted(slots.items()):
        of_cell = ratios[path, size]
        cells, reasons = [], []
        for what in _GAINS:
            if what not in of_cell:
                cells.append("")
                continue
            cells.append(marked(of_cell[what]))
            if of_cell[what] < ROOM:
                why = doc_reasons.of_gain(path, size, what, _unread(records))
                who = _GAINS[what].partition(": ")[2].removesuffix(" over it")
                loss = Loss(f"a tensor, {path}", who, size_text(size), "", of_cell[what], why)
                reasons.append(notes.lost(loss))
        rows.append((f"{path} {size_text(size)}", spread(slot), *cells, notes.marks(reasons)))
    heads = ("half a round trip of a tensor, read, C", "a static slot", *_GAINS.values(), _WHY)
    text_of_it = f"{head(result, list(slots.values()))}\n\n{table(heads, rows)}"
    return with_notes(text_of_it, notes), notes


_UNREAD = doc_reasons.UNREAD
_GAINS = {
    "dynamic / slot": "pre-exchanged addresses: a dynamic slot over it",
    "copy / slot": "zero copy: ring and copy over it",
    "packed / copy": "no packing: packed over ring and copy",
    "gRPC / packed": "the transport: gRPC over packed",
    "gRPC / slot": "all of it: gRPC over the slot",
}


def _unread(records: Sequence[Record]) -> dict[float, float]:
    return doc_reasons.sizes_unread(one for one in records if one.get("timed") == KNOWN)


def _told(notes: Notes, records: Sequence[Record]) -> Notes:
    """Return the notes with how much faster ours is than a memcpy, where that is a reason."""
    if _UNREAD in notes:
        lost = {loss.cell.partition(",")[0] for loss in notes.losses if loss.why == _UNREAD}
        ratios = [ratio for size, ratio in _unread(records).items() if size_text(size) in lost]
        words = " to ".join(dict.fromkeys(f"{of(ratios):.1f}" for of in (min, max)))
        notes.extend(_UNREAD, f" ({words} times its speed)")
    return notes


def _in_a_row(records: Sequence[Record], notes: Notes) -> str:
    rows = [one for one in records if streams.is_stream(one)]
    halves = {
        doc_reasons.halves_key(one): number(one, "median_ns")
        for one in records
        if one.get("timed") == samples.HALF
    }
    medians = {
        doc_reasons.rows_key(one, is_both=text(one, "timed").endswith(streams.WAYS[True])): number(
            one, "median_ns"
        )
        for one in rows
    }
    reason = functools.partial(
        doc_reasons.in_a_row, halves=halves, rows=medians, unread=_unread(records)
    )
    return _by_way("each of many, C", "messages in a row", rows, reason, notes)


def _of_reads(records: Sequence[Record], notes: Notes) -> str:
    rows = [one for one in records if reads.is_read(one)]
    return _by_way("one-sided reads, C", "reads", rows, doc_reasons.of_read, notes)


def _by_way(
    what: str,
    topic: str,
    rows: Sequence[Record],
    reason: Callable[[Record, Record], str],
    notes: Notes,
) -> str:
    """Return a table with a column for each way: its time, and the floor's and rivals' over it.

    reason: of ours and of a rival that is faster.
    """
    ways = list(dict.fromkeys(text(one, "timed") for one in rows))
    lines = []
    keys = ("transport", "size", "wait")
    of_ours = sorted((one for one in rows if one["peer"] == OURS), key=_place)
    for cell in dict.fromkeys(tuple(one[key] for key in keys) for one in of_ours):
        path, size, wait = cell
        cells, reasons = [], []
        for way in ways:
            of_way = [one for one in rows if one["timed"] == way and is_beside(one, *cell)]
            ours = next((one for one in of_way if one["peer"] == OURS), None)
            best = best_of_peers(of_way)
            if ours is None or not best:
                cells.append("")
                continue
            words = [spread(ours)]
            for peer, rival in best.items():
                ratio = number(rival, "median_ns") / number(ours, "median_ns")
                name = "" if peer == "floor" else f"{RIVALS[peer]} "
                words.append(f"{name}{marked(ratio)}")
                if ratio < ROOM:
                    why = reason(ours, rival)
                    reasons.append(notes.lost(_loss(topic, ours, rival, way, ratio, why)))
            cells.append(", ".join(words))
        lines.append(
            (f"{path} {size_text(float(str(size)))}, {wait}", *cells, notes.marks(reasons))
        )
    return table((what, *ways, _WHY), lines)


def is_beside(record: Record, path: object, size: object, wait: object) -> bool:
    """Whether it is of a path and size and waits alike, but for gRPC, which sleeps."""
    is_alike = record["wait"] == wait or record["peer"] == "grpc-cpp"
    return is_alike and (record["transport"], record["size"]) == (path, size)


def best_of_peers(records: Sequence[Record]) -> dict[str, Record]:
    """Return the fastest record of each peer that is there, the floor first."""
    found: dict[str, Record] = {}
    for peer in RIVALS:
        rivals = [one for one in records if one["peer"] == peer]
        if rivals:
            found[peer] = min(rivals, key=lambda one: number(one, "median_ns"))
    return found


def _place(record: Record) -> tuple[bool, bool, float]:
    is_sleeping = record["wait"] == samples.WAITS["sleep"]
    return record["transport"] != "shm", is_sleeping, number(record, "size")


def _row(
    ours: Record, halves: Sequence[Record], records: Sequence[Record], notes: Notes
) -> tuple[str, ...]:
    cell = (ours["transport"], ours["size"], ours["wait"])
    found = dict.fromkeys(RIVALS, "")
    reasons = []
    for peer, best in best_of_peers([one for one in halves if is_beside(one, *cell)]).items():
        name = RIVALS[peer]
        ratio = number(best, "median_ns") / number(ours, "median_ns")
        way = text(best, "contestant").removeprefix(name).strip()
        words = f"{'' if peer == 'floor' else f'{way}: '}{spread(best)}, {marked(ratio)}"
        found[peer] = f"{words}{_slept(best)}"
        if ratio < ROOM:
            why = doc_reasons.of_message(ours, best, _unread(records))
            reasons.append(notes.lost(_loss("one message", ours, best, "", ratio, why)))
    copied, of_copy = _best_copy(ours, records, notes)
    cells = (found["floor"], copied, found["grpc-cpp"], found["ucx"])
    what = f"{ours['transport']} {size_text(number(ours, 'size'))}, {ours['wait']}{_slept(ours)}"
    return what, spread(ours), *cells, notes.marks([*reasons, *of_copy])


def _loss(topic: str, ours: Record, theirs: Record, of: str, ratio: float, why: str) -> Loss:
    cell = f"{size_text(number(ours, 'size'))}, {ours['wait']}"
    who = text(theirs, "contestant")
    return Loss(f"{topic}, {ours['transport']}", who, cell, of, ratio, why)


def _slept(record: Record) -> str:
    """Return how often somebody who was to sleep did, where that was counted."""
    if record["wait"] != samples.WAITS["sleep"] or samples.SLEPT[0] not in record:
        return ""
    return f", slept {number(record, samples.SLEPT[0]):.2f} times a trip"


def _best_copy(ours: Record, records: Sequence[Record], notes: Notes) -> tuple[str, list[str]]:
    """Return the cell of the best of the copies beside ours, and the reason where it is faster.

    Of both until the peer knows that has read the last bytes.
    """
    keys = ("transport", "size", "wait")
    cell = [
        one
        for one in records
        if one.get("timed") == KNOWN and all(one[key] == ours[key] for key in keys)
    ]
    known = [one for one in cell if one["peer"] == OURS]
    copies = [one for one in cell if one["peer"] != OURS]
    if not known or not copies:
        return "", []
    best = min(copies, key=lambda one: number(one, "median_ns"))
    ratio = number(best, "median_ns") / number(known[0], "median_ns")
    name = text(best, "contestant").removeprefix("copy: ")
    took = time_text(number(known[0], "median_ns"))
    reasons = []
    if ratio < ROOM:
        why = doc_reasons.of_copy(known[0], best)
        loss = _loss("one message, until the peer knows", ours, best, "", ratio, why)
        reasons.append(notes.lost(loss))
    return f"{name}: {spread(best)}, {marked(ratio)} of {took}", reasons
