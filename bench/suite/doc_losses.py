"""README's table of everything that a rival does faster: who, by what, and why."""

from __future__ import annotations

from collections.abc import Sequence

from bench.benchlib.record import Result
from bench.suite import doc_collectives, doc_messages
from bench.suite.doc_words import Loss, is_same_code, is_same_machine, marked, table


def block(*results: Result) -> str:
    """Return a row for each rival and reason; it says what another machine or commit gave."""
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
    rows = [(topic, who, _cells(lost), why) for (topic, who, why), lost in told.items()]
    return table(heads, rows)


def _of(result: Result, before: list[Result]) -> list[Loss]:
    """Return what is lost in a result; before: those of collectives that were told, which grow."""
    if all(one.get("topic") != "collectives" for one in result.quietest.records):
        return doc_messages.losses(result)
    lost = doc_collectives.losses(result, before)
    before.append(result)
    return lost


def _cells(lost: Sequence[Loss]) -> str:
    by_cell: dict[str, list[str]] = {}
    for loss in lost:
        words = f"{loss.of} {marked(loss.ratio).strip('*')}".strip()
        by_cell.setdefault(loss.cell, []).append(words)
    return "; ".join(f"{cell}: {', '.join(words)}" for cell, words in by_cell.items())
