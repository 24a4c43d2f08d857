"""Write README's tables of messages from bench/results/p2p.json, between their two comments.

    python bench/readme.py            writes it
    python bench/readme.py --check    exit status 1 where README says something else

The figures are those of the run that others disturbed least. A rival that is faster than ours by
more than a twentieth (less never counts, compare.py) makes the row say what ours does more.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))  # run as a file: `bench` is beside it
from bench.benchlib.machine import ROOT
from bench.benchlib.record import Record, Result, load, number, text
from bench.benchlib.verdict import size_text, time_text
from bench.suite import samples, streams
from bench.suite.p2p import KNOWN
from bench.suite.peers import OURS

README = ROOT / "README.md"
RESULTS = ROOT / "bench" / "results" / "p2p.json"
BEGIN, END = "<!-- bench/readme.py: p2p.json -->", "<!-- bench/readme.py: end -->"
RIVALS = {"floor": "floor", "grpc-cpp": "gRPC C++", "ucx": "UCX"}
ROOM = 0.95
_ODD = 0.5  # of a plain socket's time, more than what is known explains
_UNKNOWN = "why is not known yet"
_REASONS = "what ours does more, where it lost"
_COPY_FROM_BYTES = 256 << 10  # from here on the copy's time tells, below it what goes with it
_LARGE_BYTES = 16 << 20  # a message whose head and acknowledgement take no share of its time
_SMALL = "a notification that can wake a sleeper, and a check that the region still lives"
_TCP = "a header, a notification, and an acknowledgement once the bytes are in place"


def block(result: Result) -> str:
    """Return the lines of the tables: single messages, and messages in a row; and their head."""
    run = result.quietest
    machine = result.machine
    halves = [one for one in run.records if one.get("timed") == samples.HALF]
    halves = [one for one in halves if one.get("language") != "Python"]
    of_ours = [one for one in halves if one["peer"] == OURS]
    turns = min(len(samples.turns_of(one)) for one in of_ours)
    rows = [_row(ours, halves, run.records) for ours in sorted(of_ours, key=_place)]
    head = (
        f"`{result.command.replace('rdmatensor', 'python -m rdmatensor', 1)}`, {turns} turns of"
        f" each, commit {machine['commit']}, {machine['cores']} cores of"
        f" {'a virtual ' if machine['is_virtual'] else ''}{machine['processor']}"
        f" (family/model/stepping {machine['family_model']}), Linux {machine['kernel']};"
        f" others kept {run.foreign_cpus:.2f} of the cores busy. Compare ratios rather than times:"
    )
    heads = ("half a round trip, C", "ours", *RIVALS.values(), _REASONS)
    return "\n".join([head, "", *_lines([heads, *rows]), "", *_in_a_row(run.records)])


def _lines(cells: Sequence[tuple[str, ...]]) -> list[str]:
    heads, *rows = cells
    return ["| " + " | ".join(row) + " |" for row in (heads, ("---",) * len(heads), *rows)]


def _in_a_row(records: Sequence[Record]) -> list[str]:
    """Return the lines of messages in a row: time of each, and the floor's over it."""
    spinning = samples.WAITS["spin"]
    rows = [one for one in records if streams.is_stream(one) and one["wait"] == spinning]
    ways = list(dict.fromkeys(text(one, "timed") for one in rows))
    cells: list[tuple[str, ...]] = [("each of many, spinning, C", *ways, _REASONS)]
    for transport, size in dict.fromkeys((one["transport"], one["size"]) for one in rows):
        pairs = {
            (one["timed"], one["peer"]): one
            for one in rows
            if (one["transport"], one["size"]) == (transport, size)
        }
        line, reasons = [f"{transport} {size_text(float(str(size)))}"], []
        for way in ways:
            ours, rival = pairs.get((way, OURS)), pairs.get((way, "floor"))
            if ours is None or rival is None:
                line.append("")
                continue
            ratio = number(rival, "median_ns") / number(ours, "median_ns")
            line.append(f"{time_text(number(ours, 'median_ns'))}, {_marked(ratio)}")
            if ratio < ROOM:
                known = reason(ours, "floor", records)
                is_odd = transport == "tcp" and ratio < _ODD
                reasons.append(f"{way}: {_UNKNOWN}" if is_odd else known)
        cells.append((*line, "; ".join(dict.fromkeys(reasons))))
    return _lines(cells)


def _place(record: Record) -> tuple[bool, bool, float]:
    is_sleeping = record["wait"] == samples.WAITS["sleep"]
    return record["transport"] != "shm", is_sleeping, number(record, "size")


def _row(ours: Record, halves: Sequence[Record], records: Sequence[Record]) -> tuple[str, ...]:
    same = [one for one in halves if all(one[key] == ours[key] for key in ("transport", "size"))]
    cells, reasons = [], []
    for peer in RIVALS:
        # gRPC sleeps, whoever it stands beside
        alike = [one for one in same if one["wait"] == ours["wait"] or peer == "grpc-cpp"]
        rivals = [one for one in alike if one["peer"] == peer]
        if not rivals:
            cells.append("")
            continue
        best = min(rivals, key=lambda one: number(one, "median_ns"))
        ratio = number(best, "median_ns") / number(ours, "median_ns")
        name = text(best, "contestant").removeprefix(RIVALS[peer]).strip()
        name = "" if peer == "floor" else f"{name}: "
        cells.append(f"{name}{time_text(number(best, 'median_ns'))}, {_marked(ratio)}")
        if ratio < ROOM:
            reasons.append(reason(ours, peer, records))
    what = f"{ours['transport']} {size_text(number(ours, 'size'))}, {ours['wait']}"
    own = time_text(number(ours, "median_ns"))
    return what, own, *cells, "; ".join(dict.fromkeys(reasons))


def _marked(ratio: float) -> str:
    mark = "**" if ratio < ROOM else ""
    digits = 0 if ratio >= 10 else 2 if ratio >= 0.095 else 3
    return f"{mark}{ratio:.{digits}f}{mark}"


def reason(ours: Record, peer: str, records: Sequence[Record]) -> str:
    """Return what ours does that a faster rival does not, or that nobody knows it.

    Raises ValueError for gRPC, which is slower everywhere.
    """
    if peer not in ("floor", "ucx"):
        raise ValueError(f"{peer} is faster in {ours['transport']} {ours['size']}, and why?")
    if ours["transport"] == "tcp":
        is_explained = peer == "floor" or number(ours, "size") < _LARGE_BYTES
        return _TCP if is_explained else f"{RIVALS[peer]}: {_UNKNOWN}"
    if number(ours, "size") < _COPY_FROM_BYTES:
        return _SMALL
    share = _share_of_read_copy(number(ours, "size"), records)
    return (
        f"stores that pay where the peer reads the bytes; then the best copy takes {share:.2f} of"
        f" our time"
    )


def _share_of_read_copy(size: float, records: Sequence[Record]) -> float:
    """Return the best copy's time over ours, until a peer knows that has read the last bytes."""
    cell = [one for one in records if one.get("timed") == KNOWN and one["size"] == size]
    times = {
        is_ours: min(number(one, "median_ns") for one in cell if (one["peer"] == OURS) == is_ours)
        for is_ours in (False, True)
    }
    return times[False] / times[True]


def written(readme: str, result: Result) -> str:
    """Return README with the table in its place. Raises ValueError where it has none."""
    before, begin, rest = readme.partition(f"{BEGIN}\n")
    _, end, after = rest.partition(f"{END}\n")
    if not begin or not end:
        raise ValueError(f"README has no place for the table: {BEGIN} ... {END}")
    return f"{before}{begin}{block(result)}\n\n{end}{after}"


def main(words: Sequence[str]) -> int:
    """Write or compare; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="change nothing")
    chosen = parser.parse_args(words)
    readme = README.read_text(encoding="utf-8")
    wanted = written(readme, load(RESULTS))
    if chosen.check:
        if wanted != readme:
            sys.stderr.write("README is not what p2p.json gives: python bench/readme.py\n")
        return int(wanted != readme)
    README.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
