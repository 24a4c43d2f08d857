"""Compare two results of the suite, without calling a difference that lies within the noise.

Three things make the same code differ from run to run, and each has its answer here.

Samples scatter. The figure of each row is the ratio of the medians of all samples, B to A. Samples
of one turn resemble each other, since they share processes, their placement and a moment's load; so
a test that takes each sample for an independent one calls nearly everything significant. Instead
whole starts of processes are drawn again, with replacement, turns within them, and samples within
these: the bootstrap in three stages. The interval from the 0.5th to the 99.5th hundredth of the
ratios is the noise of the row. Fewer than three turns on a side give no verdict.

Machines drift. What is not rdmatensor's - floors and other libraries - is the same in both results;
if it moved in the same cell (topic, operation, path, size, ranks), the machine did. The median of
how far those moved, either way, is what the row has to move beyond.

Small differences are of no use even if they are real. A row counts only if its whole interval lies
beyond the limit: 5 %, or the drift where that is more.

Only rows of rdmatensor are judged, and only by their medians. A row that only A has is gone, which
is a regression: unless B was not asked for it, by its topic or its options, and has no other row in
the same cell, or says that it had no time for some of the topic. The draws begin with the same seed
each time, so that a comparison can be repeated.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from bench.benchlib.record import Record, Result, load, number, text
from bench.benchlib.units import size_text, time_text
from bench.suite import samples, tables
from bench.suite.layout import layout
from bench.suite.peers import COPIES, RDMATENSOR
from bench.suite.settings import PLAIN, TOPICS

SMALLEST_EFFECT = 0.05
MIN_TURNS = 3  # with processes of their own
DRAWS = 1000
SEED = 20_240_601
TAIL = 0.005  # left out at either end
_MOST_PER_TURN = 100  # samples of a turn that are drawn from, evenly spread
_MACHINE = ("processor", "family_model", "cores", "is_virtual", "link_rate")
_NOTED = ("kernel", "libc", "python", "versions", "huge_pages", "congestion_control")
# Options, each with its value, that do not say which of rdmatensor's rows are measured.
_OF_NO_ROW = ("--peers", "--rounds", "--out", "--report")
Starts = Sequence[Sequence[Sequence[int]]]  # the samples of each turn, by the processes' start
Verdict = Literal["same", "worse", "better", "too few turns", "gone"]


class NotComparable(Exception):
    """Two files that say nothing about each other."""


@dataclass(frozen=True, slots=True)
class Line:
    """A row of rdmatensor in both results; ratio: B's time over A's, with its interval.

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
    except OSError as error:
        raise NotComparable(f"{path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        why = f"it has no {error}" if isinstance(error, KeyError) else error
        raise NotComparable(f"{path} is not a result of `rdmatensor bench --out`: {why}") from error


def compare(before: Result, after: Result) -> list[Line]:
    """Return a line for each of rdmatensor's rows that both results have, and for those gone.

    Raises NotComparable: other machines, other units, nothing in common.
    """
    for name in _MACHINE:
        both = before.machine.get(name), after.machine.get(name)
        if both[0] != both[1]:
            raise NotComparable(f"other machine: {name} is {both[0]!r} and {both[1]!r}")
    rows = [_rows(result) for result in (before, after)]
    pairs = [(rows[0][key], rows[1][key]) for key in rows[0] if key in rows[1]]
    for one, other in pairs:
        if one["unit"] != other["unit"]:
            raise NotComparable(f"other unit: {one['unit']!r} and {other['unit']!r}")
    lines = [
        line_of(one, other, drift(one, pairs))
        for one, other in pairs
        if one["peer"] == other["peer"] == RDMATENSOR
    ]
    if not lines:
        raise NotComparable("the results have no row of rdmatensor in common")
    vanished = [
        row
        for key, row in rows[0].items()
        if row["peer"] == RDMATENSOR and key not in rows[1] and _was_due(row, before, after)
    ]
    nan = math.nan
    return lines + [
        Line(_name(row), number(row, "median_ns"), nan, nan, nan, nan, nan, "gone")
        for row in vanished
    ]


def _was_due(row: Record, before: Result, after: Result) -> bool:
    """Whether a result that lacks a row should have it: others stand there, or it was asked."""
    records = [record for run in after.runs for record in run.records]
    of_topic = [record for record in records if record["topic"] == row["topic"]]
    if any("left_out" in record for record in of_topic):
        return False  # it says what there was no time for, of which this may be
    cell = tables.cell_of(row)
    if any(tables.cell_of(record) == cell for record in tables.measured(records)):
        return True
    return bool(of_topic) and _asked(before) == _asked(after)


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


def notes(before: Result, after: Result) -> list[str]:
    """Return what else differs between two results that can be compared."""
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
    """Return by how much the others moved in a row's cell: 0.1 is a tenth, either way."""
    moved = [
        abs(math.log(number(other, "median_ns") / number(one, "median_ns")))
        for one, other in pairs
        if one["peer"] not in (RDMATENSOR, COPIES) and tables.cell_of(one) == tables.cell_of(row)
    ]
    return math.exp(samples.quantile(moved, 0.5)) - 1 if moved else 0.0


def line_of(before: Record, after: Record, moved: float) -> Line:
    """Judge one row; moved: the drift of its cell."""
    before_ns, after_ns = (number(one, "median_ns") for one in (before, after))
    ratio, limit = after_ns / before_ns, max(SMALLEST_EFFECT, moved)
    both = [list(samples.starts_of(record).values()) for record in (before, after)]
    low = high = ratio
    verdict: Verdict = "too few turns"
    if min(map(len, both)) >= MIN_TURNS:
        low, high = interval(*both)
        verdict = "same"
        if low > 1 + limit:
            verdict = "worse"
        elif high < 1 / (1 + limit):
            verdict = "better"
    return Line(_name(before), before_ns, after_ns, ratio, low, high, limit, verdict)


def interval(before: Starts, after: Starts) -> tuple[float, float]:
    """Return between what the ratio of medians lies, but for the tails."""
    chance = np.random.default_rng(SEED)
    drawn = [_medians(starts, chance) for starts in (before, after)]
    ordered = np.sort(drawn[1] / drawn[0]).tolist()
    return samples.quantile(ordered, TAIL), samples.quantile(ordered, 1 - TAIL)


def _medians(starts: Starts, chance: np.random.Generator) -> NDArray[np.float64]:
    """Return the median of each draw; all turns weigh the same."""
    kept = min(_MOST_PER_TURN, *(len(turn) for turns in starts for turn in turns))
    count = min(map(len, starts))  # turns of a start that are drawn
    thinned = np.array(
        [
            [[turn[i * len(turn) // kept] for i in range(kept)] for turn in turns[:count]]
            for turns in starts
        ]
    )
    start = chance.integers(len(starts), size=(DRAWS, len(starts), 1))
    turn = chance.integers(count, size=(DRAWS, len(starts), count))
    sample = chance.integers(kept, size=(DRAWS, len(starts), count, kept))
    values = thinned[start[..., None], turn[..., None], sample]
    drawn: NDArray[np.float64] = np.median(values.reshape(DRAWS, -1), axis=1)
    return drawn


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
    return ", ".join([f"{' '.join(parts)}: {record['name']}", *how])


def table(lines: Sequence[Line]) -> str:
    """Lay out all lines; times are medians."""
    rows = []
    for line in lines:
        figures = ("-", "-", "-", "-")
        if line.verdict != "gone":
            low_high = f"{line.low:.3f} to {line.high:.3f}"
            figures = (
                time_text(line.after_ns),
                f"{line.ratio:.3f}",
                low_high if line.verdict != "too few turns" else "-",
                f"{100 * line.limit:.0f} %",
            )
        rows.append((line.what, line.verdict, time_text(line.before_ns), *figures))
    return layout(("what", "verdict", "A", "B", "B/A", "99 % of draws", "limit"), rows)
