"""Compare two results of the suite, without calling a difference that lies within the noise.

Three things make the same code differ from run to run, and each has its answer here.

Samples scatter. The figure of each row is the ratio of the medians of all samples, B to A. Samples
of one turn resemble each other, since they share processes, their placement and a moment's load; so
a test that takes each sample for an independent one (Mann-Whitney on all of them) calls nearly
everything significant. Instead whole turns are drawn again, with replacement, and samples within
them: the bootstrap in two stages. The interval from the 0.5th to the 99.5th hundredth of the ratios
that come of it is the noise of the row. With fewer than three turns on a side there is no verdict.

Machines drift. What is not ours - floors, and rivals that are not made of our transports - is the
same in both results; if it moved in the same cell (topic, operation, path, size, ranks), the
machine did. The median of how far those moved, either way, is what the row has to move beyond.

Small differences are of no use even if they are real. A row counts only if its whole interval lies
beyond the limit: 5 %, or the drift where that is more. With some tens of rows the interval alone
would call one of a hundred by chance; that it has to lie wholly beyond the limit makes that rarer.

Only our rows are judged, and only by their medians: tails of a run on a shared machine say more of
the machine. A row of ours that only A has is gone, which is a regression: unless B was not asked
for it, by its topic or its options, and has nobody else in the same cell, or says that it had no
time for some of the topic. The draws begin with the same seed each time, so that a comparison can
be repeated.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from bench.benchlib.record import Record, Result, load, number, text
from bench.benchlib.units import size_text, time_text
from bench.suite import draws, samples, tables
from bench.suite.layout import layout
from bench.suite.peers import COPIES, OURS
from bench.suite.settings import PLAIN, TOPICS

SMALLEST_EFFECT = 0.05
_MACHINE = ("processor", "family_model", "cores", "is_virtual")
_NOTED = ("kernel", "libc", "python", "versions", "huge_pages", "congestion_control")

Verdict = Literal["same", "worse", "better", "too few turns", "gone"]
# Options, each with its value, that do not say which of our rows are measured.
_OF_NO_ROW = ("--peers", "--rounds", "--out", "--report")


class NotComparable(Exception):
    """Two files that say nothing about each other."""


@dataclass(frozen=True, slots=True)
class Line:
    """One of our rows in both results; ratio: B's time over A's, with its interval.

    Of a row that is gone all but A's time is nan.
    """

    what: str
    before_ns: float
    after_ns: float
    ratio: float
    low: float
    high: float
    limit: float
    verdict: Verdict


def read(path: Path) -> Result:
    """Read a file of the suite. Raises NotComparable if it is none."""
    try:
        return load(path)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise NotComparable(f"{path}: no result of the suite: {error!r}") from error


def compare(before: Result, after: Result) -> list[Line]:
    """Return a line for each of our rows that both results have, and for those that are gone.

    Raises NotComparable: other machines, other units, nothing in common.
    """
    for name in _MACHINE:
        ours, theirs = before.machine.get(name), after.machine.get(name)
        if ours != theirs:
            raise NotComparable(f"other machine: {name} is {ours!r} and {theirs!r}")
    rows = [_rows(result) for result in (before, after)]
    common = [key for key in rows[0] if key in rows[1]]
    pairs = [(rows[0][key], rows[1][key]) for key in common]
    for one, other in pairs:
        if one["unit"] != other["unit"]:
            raise NotComparable(f"other unit: {one['unit']!r} and {other['unit']!r}")
    lines = [
        line_of(one, other, drift(one, pairs))
        for one, other in pairs
        if one["peer"] == other["peer"] == OURS
    ]
    if not lines:
        raise NotComparable("the results have none of our rows in common")
    vanished = [
        row
        for key, row in rows[0].items()
        if row["peer"] == OURS and key not in rows[1] and _was_due(row, before, after)
    ]
    return lines + [_gone(row) for row in vanished]


def _was_due(row: Record, before: Result, after: Result) -> bool:
    """Whether a result that lacks our row should have it: others stand there, or it was asked."""
    records = [record for run in after.runs for record in run.records]
    cell = tables.cell_of(row)
    if any("left_out" in record and record["topic"] == row["topic"] for record in records):
        return False  # it says what there was no time for, of which this may be
    if any(tables.cell_of(record) == cell for record in tables.measured(records)):
        return True
    has_topic = any(record["topic"] == row["topic"] for record in records)
    return has_topic and _asked(before) == _asked(after)


def _asked(result: Result) -> list[str]:
    """Return the options of a result's command that decide which rows of a topic there are."""
    kept: list[str] = []
    words = iter(shlex.split(result.command))
    for word in words:
        name, has_value, _ = word.partition("=")
        if name in _OF_NO_ROW:
            if not has_value:
                next(words, None)
        elif word not in TOPICS:
            kept.append(word)
    return sorted(kept)


def _gone(row: Record) -> Line:
    nan = math.nan
    return Line(_name(row), number(row, "median_ns"), nan, nan, nan, nan, nan, "gone")


def notes(before: Result, after: Result) -> list[str]:
    """Say what else differs between two results that can be compared."""
    found = [
        f"{name}: {before.machine.get(name)} and {after.machine.get(name)}"
        for name in _NOTED
        if before.machine.get(name) != after.machine.get(name)
    ]
    if before.name != after.name:
        found.append(f"one is {before.name}, the other {after.name}")
    return found


def _rows(result: Result) -> dict[tuple[object, ...], Record]:
    records = [record for run in result.runs for record in run.records]
    return {samples.key_of(record): record for record in tables.measured(records)}


def drift(row: Record, pairs: Sequence[tuple[Record, Record]]) -> float:
    """Return by how much what is not ours moved in a row's cell: 0.1 is a tenth, either way."""
    moved = [
        abs(math.log(number(other, "median_ns") / number(one, "median_ns")))
        for one, other in pairs
        if one["peer"] not in (OURS, COPIES) and tables.cell_of(one) == tables.cell_of(row)
    ]
    return math.exp(samples.quantile(moved, 0.5)) - 1 if moved else 0.0


def line_of(before: Record, after: Record, moved: float) -> Line:
    """Judge one row; moved: what drift() says of its cell."""
    ratio = number(after, "median_ns") / number(before, "median_ns")
    limit = max(SMALLEST_EFFECT, moved)
    both = [list(samples.starts_of(record).values()) for record in (before, after)]
    low = high = ratio
    verdict: Verdict = "too few turns"
    if min(map(len, both)) >= draws.MIN_TURNS:
        low, high = interval(*both)
        verdict = judge(low, high, limit)
    return Line(
        what=_name(before),
        before_ns=number(before, "median_ns"),
        after_ns=number(after, "median_ns"),
        ratio=ratio,
        low=low,
        high=high,
        limit=limit,
        verdict=verdict,
    )


def judge(low: float, high: float, limit: float) -> Verdict:
    """Return what an interval of ratios means."""
    if low > 1 + limit:
        return "worse"
    return "better" if high < 1 / (1 + limit) else "same"


def interval(before: draws.Starts, after: draws.Starts) -> tuple[float, float]:
    """Return where the ratio of medians lies: turns are drawn, then samples within them.

    The results are of two runs, so that each draws turns of its own.
    """
    chance = np.random.default_rng(draws.SEED)
    drawn = [draws.medians(starts, chance, chance) for starts in (before, after)]
    return draws.interval(drawn[1] / drawn[0])


def _name(record: Record) -> str:
    parts = [text(record, "topic"), text(record, "transport")]
    parts += [str(record[name]) for name in ("op",) if record.get(name)]
    if record.get("ranks"):
        parts.append(f"{record['ranks']} ranks")
    if number(record, "size") > 0 and record["topic"] != "models":  # a model's is its own
        parts.append(size_text(number(record, "size")))
    how = [text(record, "row")] if record.get("row", PLAIN) != PLAIN else []
    if "row" not in record:  # which says it in a word
        how += [str(record[name]) for name in ("timed", "wait") if record.get(name)]
    if record.get("language") == "Python":
        how.append("Python")
    return ", ".join([f"{' '.join(parts)}: {record['contestant']}", *how])


def table(lines: Sequence[Line]) -> str:
    """Lay out all lines; times are medians."""
    heads = ("what", "verdict", "A", "B", "B/A", "99 % of draws", "limit")
    return layout(
        heads,
        [
            (
                line.what,
                line.verdict,
                time_text(line.before_ns),
                *_figures(line),
            )
            for line in lines
        ],
    )


def _figures(line: Line) -> tuple[str, ...]:
    """What a table says of B."""
    if line.verdict == "gone":
        return "-", "-", "-", "-"
    return (
        time_text(line.after_ns),
        f"{line.ratio:.3f}",
        f"{line.low:.3f} to {line.high:.3f}" if line.verdict != "too few turns" else "-",
        f"{100 * line.limit:.0f} %",
    )
