"""Generated tables of collectives: how others stand beside ours, and each cell where they win."""

from __future__ import annotations

import math
from collections.abc import Sequence

from bench.benchlib.record import Record, Result, number
from bench.benchlib.verdict import size_text, time_text
from bench.suite import doc_reasons
from bench.suite.collective_cells import (
    Known,
    by_who,
    cell_of,
    of_floor,
    over,
    rival_of,
    row_of,
)
from bench.suite.collectives import is_net_of_one_loop, net_samples
from bench.suite.doc_words import (
    ROOM,
    Loss,
    Notes,
    head,
    is_same_code,
    is_same_machine,
    marked,
    spread_of,
    table,
    with_notes,
)
from bench.suite.peers import OURS
from bench.suite.settings import MIB, PLAIN, ROWS

_RIVALS = {"gloo": "Gloo", "OpenMPI": "Open MPI"}  # by contestant
_USES = {
    PLAIN: "tensors that nobody touches (plain)",
    "same": "the same tensors again and again (same)",
    "fresh": "new private storage each time (fresh)",
    "arena": "born in the arena (arena)",
}
_ONE_LOOP = (
    "Of what the ranks do themselves this file has the median of one turn, the one in the middle,"
    " which is taken off the samples of all."
)
_FLOOR_FROM_BYTES = 16 * MIB  # the floor has what is less in its caches, which nobody rewrites
_Pair = tuple[Record, Record, float]  # ours, a rival's, its time over ours


def block(result: Result, without: Sequence[Result] = ()) -> str:
    """Return both tables and where they come from; empty where nothing is to be told.

    without: results shown before; cells that they have of the same machine and commit are left out.
    """
    return _made(result, without)[0]


def losses(result: Result, without: Sequence[Result] = ()) -> list[Loss]:
    """Return what is lost in it."""
    return _made(result, without)[1].losses


def means(*results: Result) -> str:
    """Return the first table of each, and where it comes from."""
    return "\n\n".join("\n\n".join(block(one).split("\n\n")[:2]) for one in results)


def _made(result: Result, without: Sequence[Result]) -> tuple[str, Notes]:
    records = [one for one in result.quietest.records if "missing" not in one]
    of_here = [other for other in without if is_same_code(other, result)]
    shown = {
        cell_of(one)
        for other in of_here
        for one in other.quietest.records
        if one.get("peer") == OURS
    }
    known = by_who(records)
    ours = [one for one in records if one["peer"] == OURS and cell_of(one) not in shown]
    notes = Notes()
    if not ours:
        return "", notes
    pairs = {
        (row, rival): [
            (one, theirs, ratio)
            for one in ours
            if row_of(one) == row
            for theirs in [rival_of(one, known.get(rival, {}))]
            for ratio in [over(theirs, one)]
            if theirs is not None and ratio is not None
        ]
        for row in (PLAIN, *ROWS)
        for rival in _RIVALS
    }
    where = f"{ours[0]['transport']}, {ours[0]['ranks']} ranks"
    lost = _losses(pairs, known, notes)
    heads = (f"{where}: faster is", "tensors", "ours / its time, and its over ours", "why")
    whose = "" if len(of_here) == len(without) else "Of another commit than those above: "
    if not all(is_same_machine(other, result) for other in without):
        whose = "On another machine than those above: "
    parts = [whose + head(result, ours), _means(where, pairs), table(heads, lost) if lost else ""]
    text = "\n\n".join(part for part in parts if part)
    floors = _floors(where, ours, known)
    text = with_notes(text, _told(notes, ours, known))
    one_loop = _ONE_LOOP if any(map(is_net_of_one_loop, records)) else ""
    return "\n\n".join(part for part in (text, floors, one_loop) if part), notes


def _means(where: str, pairs: dict[tuple[str, str], list[_Pair]]) -> str:
    """Return the geometric mean of each size, and the least and the most of its operations."""
    sizes = sorted({number(one, "size") for of in pairs.values() for one, _, _ in of} - {0.0})
    rows = []
    for (row, rival), of in pairs.items():
        cells = []
        for size in sizes:
            ratios = [ratio for one, _, ratio in of if number(one, "size") == size]
            cells.append(_mean(ratios) if ratios else "")
        if any(cells):
            rows.append((f"{_RIVALS[rival]}, {_USES[row]}", *cells))
    heads = (f"{where}: its time over ours, mean (least-most)", *map(size_text, sizes))
    return table(heads, rows)


def _floors(where: str, ours: Sequence[Record], known: Known) -> str:
    """Return the shares of the copy floor of what is more than caches hold; empty without any."""
    uses = [row for row in (PLAIN, *ROWS) if any(row_of(one) == row for one in ours)]
    shares: dict[str, dict[str, str]] = {}
    for one in ours:
        share = of_floor(one, known)
        if share is not None and number(one, "size") >= _FLOOR_FROM_BYTES:
            what = f"{one['op']}, {size_text(number(one, 'size'))}"
            shares.setdefault(what, {})[row_of(one)] = share.words
    if not shares:
        return ""
    heads = (f"{where}: share of the copy floor, the turns' median (least-most)", *uses)
    return table(heads, [(what, *(of.get(use, "") for use in uses)) for what, of in shares.items()])


def _mean(ratios: Sequence[float]) -> str:
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    least, most = (marked(ratio).strip("*") for ratio in (min(ratios), max(ratios)))
    return f"{marked(mean)} ({least}-{most})"


def _losses(
    pairs: dict[tuple[str, str], list[_Pair]], known: Known, notes: Notes
) -> list[tuple[str, ...]]:
    """Return a row for each rival, use of the tensors and reason: what is slower, by what."""
    cells: dict[tuple[str, str, str], dict[float, list[str]]] = {}
    for (row, rival), of in pairs.items():
        for ours, theirs, ratio in sorted(of, key=lambda pair: (number(pair[0], "size"), pair[2])):
            if ratio >= ROOM:
                continue
            why = doc_reasons.of_collective(ours, theirs, known)
            letter = notes.mark(notes.lost(_loss(ours, _RIVALS[rival], ratio, why)))
            of_size = cells.setdefault((rival, row, letter), {})
            of_size.setdefault(number(ours, "size"), []).append(_lost(ours, theirs, ratio))
    return [
        (_RIVALS[rival], row, ". ".join(_of_size(*lost) for lost in of_size.items()), letter)
        for (rival, row, letter), of_size in cells.items()
    ]


def _loss(ours: Record, who: str, ratio: float, why: str) -> Loss:
    size = number(ours, "size")
    cell = size_text(size) if size else ""
    ranks = "" if ours["ranks"] == 2 else f", {ours['ranks']} ranks"
    topic = f"collectives, {ours['transport']}{ranks}"
    return Loss(topic, who, cell, f"{ours['op']}, {row_of(ours)}", ratio, why)


def _of_size(size: float, lost: Sequence[str]) -> str:
    return (f"{size_text(size)}: " if size else "") + "; ".join(lost)


def _lost(ours: Record, theirs: Record, ratio: float) -> str:
    """Return a cell: both times without what the ranks do themselves, and their ratio."""
    own, other = (spread_of(net_samples(one)) for one in (ours, theirs))
    return f"{ours['op']} {own} / {other}, {marked(ratio)}"


def _told(notes: Notes, ours: Sequence[Record], known: Known) -> Notes:
    """Return the notes with what a call of torch takes here, where that is a reason."""
    nothing = [
        share_ns
        for record in ours
        if number(record, "size") <= doc_reasons.SMALL_BYTES
        for share_ns in [doc_reasons.share_of_call(record, known)]
        if share_ns is not None
    ]
    offers = {doc_reasons.CALLS: "", doc_reasons.SHARED: " but offer its core three times"}
    for reason, but in offers.items():
        if nothing and reason in notes:
            told = " to ".join(dict.fromkeys(time_text(of(nothing)) for of in (min, max)))
            notes.extend(reason, f" (a backend that does nothing{but} takes {told})")
    return notes
