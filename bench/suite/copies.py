"""The copy variant of `bench models` beside UCX's tagged messages, one way and in a row.

A rival that we made ourselves has to be as fast as what others would use in its place, or to beat
it says nothing: at least 0.9 of UCX's rate of the same sizes over the same path. UCX receives into
one buffer again and again; the variant into a gradient's own memory, from Python.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence

from bench.benchlib import programs
from bench.benchlib.pairs import run_pair
from bench.benchlib.record import Record, number, text
from bench.benchlib.verdict import size_text
from bench.suite import rounds, samples
from bench.suite.peers import COPIES
from bench.suite.settings import KIB, MIB, Settings

TOPIC = "copies"
WANTED = 0.9
VARIANT, UCX = "copy variant", "UCX tag"
HEADS = ("tensors in a row", VARIANT, UCX, "variant / UCX")
_SIZES = (256 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB)
_QUICK_SIZES = (MIB, 16 * MIB)
_VOLUME = 128 * MIB  # of UCX's messages
_UCX_PATHS = {"shm": "sm,self", "tcp": "tcp,self"}
_PATIENCE_S = 60.0


def measure(settings: Settings, progress: rounds.Progress) -> list[Record]:
    """Let both have their turns; return a record for each of them, path and size."""
    sizes = _QUICK_SIZES if settings.is_quick else _SIZES
    turns: list[tuple[str, rounds.Turn]] = []
    for path in settings.transports:
        turns.append((f"{VARIANT}, {path}", functools.partial(_variant, path, sizes)))
        turns += [
            (f"{UCX}, {path} {size_text(size)}", functools.partial(_ucx, path, size))
            for size in sizes
        ]
    count = settings.rounds or 3
    found, failed = rounds.take(turns, count, settings.seconds_of("models") / 4, progress)
    return samples.merge(found) + failed


def record_of(who: str, path: str, size: int, raw_ns: Sequence[float]) -> Record:
    """Return one turn; raw_ns: of one tensor."""
    fields: Record = {
        "topic": TOPIC,
        "contestant": who,
        "peer": COPIES if who == VARIANT else "ucx",
        "transport": path,
        "size": size,
        "timed": "a tensor of many in a row",
    }
    return samples.turn(fields, raw_ns)


def _variant(path: str, sizes: Sequence[int]) -> list[Record]:
    printed = run_pair(
        "copy_rate",
        *("--sizes", ",".join(map(str, sizes))),
        environment={"RDMATENSOR_TRANSPORT": path},
    )
    return [
        record_of(
            VARIANT,
            path,
            int(number(one, "size")),
            [ns / number(one, "tensors") for ns in samples.raw_of(one)],
        )
        for one in printed
    ]


def _ucx(path: str, size: int) -> list[Record]:
    words = ["-t", "tag_bw", "-s", str(size), "-n", str(max(5, _VOLUME // size)), "-w", "5"]
    return [record_of(UCX, path, size, [each_ns(_run(words, path))])]


def _run(words: list[str], path: str) -> str:
    return programs.run_ucx(words, _UCX_PATHS[path], programs.free_port(), _PATIENCE_S)


def each_ns(printed: str) -> float:
    """Return the time of one message of all, by ucx_perftest's last line of CSV."""
    lines = [line for line in printed.splitlines() if re.match(r"\s*\d+,\d", line)]
    if not lines:
        raise RuntimeError(f"ucx_perftest printed no figures: {printed[-1000:]}")
    return float(lines[-1].split(",")[3]) * 1000


def _cells(records: Sequence[Record]) -> dict[tuple[str, int], dict[str, float]]:
    """Return the rates of each path and size, in 10^9 bytes a second."""
    cells: dict[tuple[str, int], dict[str, float]] = {}
    for record in records:
        size = int(number(record, "size"))
        cell = cells.setdefault((text(record, "transport"), size), {})
        cell[text(record, "contestant")] = size / number(record, "median_ns")
    return dict(sorted(cells.items()))


def rows(records: Sequence[Record]) -> list[tuple[str, ...]]:
    """Return a line of a table for each path and size: GB/s, and their ratio."""
    return [
        (
            f"{path} {size_text(size)}",
            *(f"{rates[who]:.2f} GB/s" if who in rates else "-" for who in (VARIANT, UCX)),
            f"{rates[VARIANT] / rates[UCX]:.2f}" if len(rates) == 2 else "-",
        )
        for (path, size), rates in _cells(records).items()
    ]


def verdicts(records: Sequence[Record]) -> list[str]:
    """Say where the variant is no slower than what others have, and where it is."""
    lines = []
    for path in dict.fromkeys(text(record, "transport") for record in records):
        ratios = {
            size: rates[VARIANT] / rates[UCX]
            for (of, size), rates in _cells(records).items()
            if of == path and len(rates) == 2
        }
        short = [f"{size_text(size)} {one:.2f}" for size, one in ratios.items() if one < WANTED]
        if ratios:
            lines.append(
                f"{path}, {VARIANT}, rate over UCX's tag >= {WANTED:g}: "
                f"{len(ratios) - len(short)} of {len(ratios)} sizes"
                + (f"; short: {', '.join(short)}" if short else "")
            )
    return lines
