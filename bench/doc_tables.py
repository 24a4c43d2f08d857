"""Write the measured tables of README.md from bench/results; the site takes its own from here.

    python -m bench.doc_tables            writes them
    python -m bench.doc_tables --check    exit status 1 where a page or the picture differs

A table stands between `<!-- bench: FILE -->` and `<!-- bench: end -->`; FILE lies below
bench/results. `<!-- bench: FILE; WORDS; WORDS -->` has only the tables whose titles have all of the
words. A cell has the median, with the 10th to the 90th percentile of rdmatensor's samples;
of the others the ratio of their time to rdmatensor's, **bold** where rdmatensor takes over a
twentieth longer. bench/reasons.md has the reasons, written by hand: those whose words are all in a
table's title stand below it if a cell is bold.

`<!-- bench: means FILE... -->` has the means of collectives, `<!-- bench: plain FILE... -->` those
of the plain rows only. docs/_static/collectives.svg is drawn from the same.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from bench import doc_means
from bench.benchlib.machine import ROOT
from bench.benchlib.record import Record, Result, load, number, text
from bench.benchlib.units import size_text
from bench.suite import busy, crossover, lossy, models, ps, samples, scale, tables, transfers
from bench.suite.collectives import net_samples
from bench.suite.layout import geometric
from bench.suite.peers import RDMATENSOR
from bench.suite.settings import MIB, PLAIN, ROWS

PAGES = ("README.md",)  # those of docs/ are filled when the site is built
ROOM = 0.95  # above it a ratio counts as noise, as in compare.py
PICTURE = "docs/_static/collectives.svg"
PICTURED = ("collectives/shm_2_ranks.json", "collectives/tcp_2_ranks.json")
_BLOCK = re.compile(
    r"<!-- bench: (?P<of>(?P<name>[^ ;]+\.json)(?P<words>(?:; [^;>\n]+)*)) -->\n"
    r".*?<!-- bench: end -->",
    re.DOTALL,
)
_MEANS = re.compile(
    r"<!-- bench: (?P<ways>means|plain) (?P<names>[^>]+\.json) -->\n.*?<!-- bench: end -->",
    re.DOTALL,
)
_UNITS = ((1e3, "ns", 1.0), (1e6, "us", 1e3), (1e9, "ms", 1e6), (float("inf"), "s", 1e9))
_WORDS = tables.NAMES
COLD = "cold start"


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table of Markdown."""
    lines = (heads, ("---",) * len(heads), *rows)
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def marked(ratio: float) -> str:
    """Return the ratio of another's time to rdmatensor's, bold where rdmatensor is slower."""
    mark = "**" if ratio < ROOM else ""
    return f"{mark}{_short(ratio)}{mark}"


def _short(ratio: float) -> str:
    digits = 0 if ratio >= 10 else 2 if ratio >= 0.095 else 3
    return f"{ratio:.{digits}f}"


def spread(values_ns: Sequence[float]) -> str:
    """Return the median and the 10th to the 90th percentile, in one unit."""
    middle, low, high = (samples.quantile(values_ns, at) for at in (0.5, *samples.BAND.values()))
    unit, scale = next((unit, scale) for most, unit, scale in _UNITS if middle < most)
    return f"{middle / scale:.3g} {unit} ({low / scale:.3g}-{high / scale:.3g})"


def _name(record: Record) -> str:
    return _WORDS.get(text(record, "name"), text(record, "name"))


def place_of(record: Record) -> tuple[str, str, str]:
    """Return the title of a record's table, and its row and column there."""
    topic, path, size = record["topic"], record["transport"], number(record, "size")
    if topic == "setup":
        return f"setup, {path}, {record['timed']}", _name(record), f"{record['ranks']} ranks"
    if topic == "models":
        column = f"{record['op']}, {size / MIB:.0f} MiB"
        return f"models, {path}, {record['ranks']} ranks", text(record, "name"), column
    if topic == "collectives":
        title = f"collectives, {path}, {record['ranks']} ranks, {tables.row_of(record)}"
        return title, text(record, "op"), size_text(size)
    timed, row = text(record, "timed"), _name(record)
    if transfers.kind_of(record) == COLD:
        timed, row = COLD, f"{row}: {timed.removeprefix(transfers.COLD)}"
    elif record["peer"] in (RDMATENSOR, "floor"):
        row = f"{row}, {record['wait']}"
    python = ", Python" if record.get("language") == "Python" else ""
    return f"p2p, {path}, {timed}{python}", row, size_text(size)


def base_of(records: Sequence[Record], record: Record) -> Record | None:
    """Return rdmatensor's record that another is compared with, of all of the topic."""
    if record["topic"] == "p2p":
        best, cell = tables.fastest_of(records, RDMATENSOR), tables.cell_of(record)
        return best.get((*cell, record.get("wait")), best.get((*cell, "spinning")))
    same = ("transport", "op", "ranks", "size", "row")
    for one in records:
        is_own = one["name"] in (RDMATENSOR, models.PLANNED)
        if is_own and all(one.get(name) == record.get(name) for name in same):
            return one
    return None


# Topics whose table of text is short: heads and rows of it.
WHOLE: Mapping[str, Callable[[Sequence[Record]], tuple[Sequence[str], Sequence[Sequence[str]]]]] = {
    "convergence": lambda records: (models.CURVE_HEADS, models.curve_rows(records)),
    "busy": lambda records: (busy.LOAD_HEADS, busy.load_rows(busy.pairs_of(records))),
    "scale": scale.beyond_rows,
    "ps": lambda records: (ps.HEADS, ps.rows_of(records)),
    "crossover": lambda records: (crossover.CROSSING_HEADS, crossover.crossing_rows(records)),
    "lossy": lambda records: (lossy.HEADS, lossy.rows_of(records)),
    "crossover model": lambda records: (crossover.FIT_HEADS, crossover.fit_rows(records)),
}


def _samples(record: Record) -> Sequence[float]:
    return net_samples(record) if record["topic"] == "collectives" else samples.raw_of(record)


def cell(record: Record, base: Record | None) -> str:
    """Return the median; after it rdmatensor's spread, or another's ratio.

    Of collectives a cell has all libraries, the others by their names.
    """
    if base is None or base is record:
        return spread(_samples(record))
    took, own = (samples.quantile(_samples(one), 0.5) for one in (record, base))
    ratio = marked(took / own) if took > 0 and own > 0 else "-"
    is_joined = record["topic"] == "collectives"
    time = _name(record) if is_joined else spread(_samples(record)).partition(" (")[0] + ","
    return f"{time} {ratio}"


def tables_of(topic: str, records: Sequence[Record]) -> Iterator[tuple[str, str]]:
    """Yield each table of a topic: its title, and the table."""
    if topic in WHOLE:
        yield topic, table(*WHOLE[topic](records))
        return
    parts: dict[str, list[Record]] = {}
    for record in records:
        if topic != "collectives" or record["peer"] != "floor":
            parts.setdefault(place_of(record)[0], []).append(record)
    for title, part in parts.items():
        columns = list(dict.fromkeys(place_of(one)[2] for one in part))
        places: dict[str, dict[str, list[str]]] = {place_of(one)[1]: {} for one in part}
        for record in sorted(part, key=lambda one: one["peer"] != RDMATENSOR):
            _, row, column = place_of(record)
            places[row].setdefault(column, []).append(cell(record, base_of(records, record)))
        rows = [
            (row, *("; ".join(of_row.get(one, [])) for one in columns))
            for row, of_row in places.items()
        ]
        yield title, table([title, *columns], rows)


def reasons_in(page: str) -> list[tuple[tuple[str, ...], str]]:
    """Return each entry of reasons.md: the words that a title has to have, and the reason.

    An entry is a line `- word; word: reason`.
    """
    entries = [line[2:].split(": ", 1) for line in page.splitlines() if line.startswith("- ")]
    return [(tuple(words.split("; ")), reason) for words, reason in entries]


def head(result: Result) -> str:
    """Return where a table comes from."""
    machine = result.machine
    return (
        f"`{result.command.replace('rdmatensor', 'python -m rdmatensor', 1)}`, commit"
        f" {machine['commit']}, {machine['cores']} cores of"
        f" {'a virtual ' if machine['is_virtual'] else ''}{machine['processor']}"
        f" (family/model/stepping {machine['family_model']}), Linux {machine['kernel']}; other"
        f" processes kept {result.quietest.foreign_cpus:.2f} cores busy:"
    )


def block(
    result: Result,
    reasons: Sequence[tuple[tuple[str, ...], str]],
    wanted: Sequence[str] = (),
) -> str:
    """Return the tables of a result, with the reasons below those that have bold cells.

    wanted: words that the title of a table has to have. Raises ValueError if no title has them.
    """
    records = [record for run in result.runs for record in run.records]
    parts = [head(result)]
    for topic in ("p2p", "collectives", "setup", "models", *WHOLE):
        of_topic = tables.of_topic(records, topic.partition(" ")[0])
        for title, lines in tables_of(topic, of_topic) if of_topic else ():
            if not all(word in title for word in wanted):
                continue
            parts.append(lines)
            if "**" in lines:
                found = [why for words, why in reasons if all(word in title for word in words)]
                parts += ["Bold: " + "; ".join(found) + "."] if found else []
    if len(parts) == 1:
        raise ValueError(f"no table of {result.command!r} has {', '.join(wanted)} in its title")
    return "\n\n".join(parts)


def means(results: Sequence[Result], ways: Sequence[str]) -> str:
    """Return a table of means with the least and the most, and where the results come from."""
    rows = [row for result in results for row in doc_means.rows_of(result, ways)]
    sizes = sorted({size for row in rows for size in row.ratios})
    lines = [
        [row.title, *(_mean(row.ratios[size]) if size in row.ratios else "" for size in sizes)]
        for row in rows
    ]
    heads = ["its time over rdmatensor's: mean (least to most)", *map(size_text, sizes)]
    sources = [head(result).removesuffix(":") + "." for result in results]
    return "\n\n".join([table(heads, lines), *sources])


def _mean(ratios: Sequence[float]) -> str:
    return f"{marked(geometric(ratios))} ({_short(min(ratios))} to {_short(max(ratios))})"


def picture(root: Path) -> str:
    """Return the picture of the means as the results have it. Raises OSError without a file."""
    results = [load(root / "bench/results" / name) for name in PICTURED]
    rows = [row for one in results for row in doc_means.rows_of(one, (PLAIN,))]
    return doc_means.picture(rows)


def written(page: str, root: Path) -> str:
    """Return a page with its tables as the results have them.

    Raises OSError without a file, ValueError without a table.
    """
    reasons = reasons_in((root / "bench/reasons.md").read_text(encoding="utf-8"))

    def fill(match: re.Match[str]) -> str:
        wanted = match["words"].split("; ")[1:]
        made = block(load(root / "bench/results" / match["name"]), reasons, wanted)
        return f"<!-- bench: {match['of']} -->\n{made}\n\n<!-- bench: end -->"

    def fill_means(match: re.Match[str]) -> str:
        results = [load(root / "bench/results" / name) for name in match["names"].split()]
        made = means(results, (PLAIN,) if match["ways"] == "plain" else (PLAIN, *ROWS))
        opening = f"<!-- bench: {match['ways']} {match['names']} -->"
        return f"{opening}\n{made}\n\n<!-- bench: end -->"

    return _MEANS.sub(fill_means, _BLOCK.sub(fill, page))


def main(words: Sequence[str], root: Path = ROOT) -> int:
    """Write or compare the pages below a root; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="change nothing")
    is_check = parser.parse_args(words).check
    status = 0
    for name in (*PAGES, PICTURE):
        old = (root / name).read_text(encoding="utf-8") if (root / name).exists() else ""
        new = picture(root) if name == PICTURE else written(old, root)
        if new == old:
            continue
        if is_check:
            sys.stderr.write(f"{name} differs from the results: python -m bench.doc_tables\n")
            status = 1
        else:
            (root / name).write_text(new, encoding="utf-8")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
