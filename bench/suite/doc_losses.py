"""README's table of everything that a rival does faster: who, by what, and why."""

from __future__ import annotations

from collections.abc import Sequence

from bench.benchlib.record import Result
from bench.suite import doc_collectives, doc_messages
from bench.suite.doc_words import Loss, Notes, is_same_code, is_same_machine, marked, table

_NAMED_MOST = 3  # of a cell; docs/measured.md names all


def block(*results: Result) -> str:
    """Return a row for each rival and reason; it says what another machine or commit gave.

    Reasons stand below, each once.
    """
    told: dict[tuple[str, str, str], list[Loss]] = {}
    before: list[Result] = []
    for result in results:
        where = "" if is_same_machine(result, results[0]) else ", another machine"
        if not where and not is_same_code(result, results[0]):
            where = ", another commit"
        for loss in _of(result, before):
            told.setdefault((loss.topic + where, loss.who, loss.why), []).append(loss)
    if not told:
        return "Nothing is."
    heads = ("", "faster is", "its time over ours", "why")
    notes = Notes()
    rows = [(topic, who, _cells(lost), notes.mark(why)) for (topic, who, why), lost in told.items()]
    reasons = "\n".join(f"- {told}." for told in notes.told())
    return f"{table(heads, rows)}\n\n{reasons}"


def _of(result: Result, before: list[Result]) -> list[Loss]:
    """Return what is lost in a result; before: those of collectives that were told, which grow."""
    if all(one.get("topic") != "collectives" for one in result.quietest.records):
        return doc_messages.losses(result)
    lost = doc_collectives.losses(result, before)
    before.append(result)
    return lost


def _cells(lost: Sequence[Loss]) -> str:
    """Return what is lost of each size; of many, how many and which are the least and the most."""
    by_cell: dict[str, list[Loss]] = {}
    for loss in lost:
        by_cell.setdefault(loss.cell, []).append(loss)
    return "; ".join(f"{cell}: {_of_cell(of)}".removeprefix(": ") for cell, of in by_cell.items())


def _of_cell(lost: Sequence[Loss]) -> str:
    if len(lost) <= _NAMED_MOST:
        return ", ".join(map(_named, lost))
    least, *_, most = sorted(lost, key=lambda loss: loss.ratio)
    return f"{len(lost)} cases, {_named(least)} to {_named(most)}"


def _named(loss: Loss) -> str:
    ratio = marked(loss.ratio).strip("*")
    return f"{ratio} ({loss.of})" if loss.of else ratio
