"""What the library costs apart from messages, each figure with its target where there is one.

Lists of blocks, one large write over TCP, memory of idle connections, system calls and wire bytes,
the import of the package, and many small sums in one call. A ratio is of medians of one run.
"""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from bench.benchlib import programs
from bench.benchlib.pairs import WORKERS, run_ranks
from bench.benchlib.record import Record, number, summaries, text
from bench.benchlib.units import rate_text, size_text, time_text
from bench.suite import rounds
from bench.suite.layout import layout
from bench.suite.peers import OURS, Peer
from bench.suite.settings import KIB, Settings

TOPIC = "costs"
ROOM = 0.85  # of a target that a loaded machine may take before a test fails
_IMPORTS = 15
_IDLE_BYTES, _WIRE_BYTES = 16 * KIB, 32


@dataclass(frozen=True, slots=True)
class Row:
    """One line: a figure, what it is compared with, and its target.

    is_absolute: a time or a size of this machine, which no test asserts.
    """

    what: str
    beside: str
    ours: str
    figure: float | None
    target: float | None = None
    better: Literal["higher", "lower"] = "higher"
    is_absolute: bool = False

    def holds(self, room: float = 1.0) -> bool | None:
        """Whether the target is met; None without one."""
        if self.target is None or self.figure is None:
            return None
        if self.better == "higher":
            return self.figure >= self.target * room
        return self.figure <= self.target / room


def _medians(records: Sequence[Record]) -> dict[str, float]:
    return {
        text(one, "contestant"): number(one, "median_ns") for one in records if "median_ns" in one
    }


def _write_many(records: Sequence[Record]) -> list[Row]:
    medians, first = _medians(records), records[0]
    count, size = number(first, "blocks"), number(first, "block_bytes")
    one_ns = medians.pop("one write")
    what = f"{first['transport']} {count:g} blocks of {size_text(size)}"
    beside = f"{rate_text(count * size, one_ns)} one write"
    targets = {"write_many in order": 0.8}
    return [
        Row(
            f"{what}, {name}",
            beside,
            rate_text(count * size, ns),
            one_ns / ns,
            targets.get(name),
        )
        for name, ns in medians.items()
    ]


def _tcp_throughput(records: Sequence[Record]) -> list[Row]:
    ours_ns = next(number(one, "median_ns") for one in records if one["contestant"] == "ours")
    others = [one for one in records if one["contestant"] != "ours"]
    best = min(others, key=lambda one: number(one, "median_ns"))
    size, best_ns = number(best, "size"), number(best, "median_ns")
    beside = f"{rate_text(size, best_ns)} {best['contestant']}"
    name = f"tcp write + notify {size_text(size)}"
    return [Row(name, beside, rate_text(size, ours_ns), best_ns / ours_ns, 0.9)]


def _idle_memory(records: Sequence[Record]) -> list[Row]:
    (one,) = summaries(list(records))
    parts = (f"{number(one, f'{of}_bytes') / KIB:.1f} KiB {of}" for of in ("private", "arena"))
    what = f"{one['transport']} idle connection, bytes"
    return [Row(what, "-", " + ".join(parts), number(one, "ours_bytes"), _IDLE_BYTES, "lower")]


def _overhead(records: Sequence[Record]) -> list[Row]:
    rows = []
    for one in summaries(list(records)):
        side = f"{one['transport']} side {number(one, 'side'):g}"
        if one["transport"] == "tcp":
            extra = number(one, "wire_overhead_bytes")
            what = f"{side}: wire bytes beyond a write"
            rows.append(Row(what, "-", f"{extra:.1f} B", extra, _WIRE_BYTES, "lower"))
        elif one["calls_per_write"] is not None:
            # it polls its sockets while it spins, once in many writes
            calls = number(one, "calls_per_write")
            words = f"{calls:g} + wake-ups {number(one, 'wakeups_per_write'):g}"
            rows.append(Row(f"{side}: system calls of a write", "-", words, calls, 0.02, "lower"))
    return rows


def _imports_rows(records: Sequence[Record]) -> list[Row]:
    medians = _medians(records)
    numpy = f"{time_text(medians['numpy'])} import numpy"
    ours_ns, context_ns = medians["ours"], medians["Context"]
    return [
        Row(
            "import rdmatensor, ms",
            numpy,
            time_text(ours_ns),
            ours_ns / 1e6,
            100.0,
            "lower",
            is_absolute=True,
        ),
        Row("rdmatensor.Context", numpy, time_text(context_ns), None),
    ]


def _coalesced(records: Sequence[Record]) -> list[Row]:
    found = {(text(one, "peer"), text(one, "way")): one for one in records}
    rows = []
    for (peer, way), one in found.items():
        if peer != OURS:
            continue
        took = number(one, "median_ns")
        what = f"{number(one, 'tensors'):.0f} sums of {size_text(number(one, 'size'))}, {way}"
        for name, other in (("Gloo", ("gloo", way)), ("one by one", (OURS, "one by one"))):
            if other in found and other != (peer, way):
                theirs = number(found[other], "median_ns")
                target = 20.0 if (way, name) == ("coalesced", "one by one") else None
                beside = f"{time_text(theirs)} {name}"
                rows.append(Row(what, beside, time_text(took), theirs / took, target))
    return rows


def _import_ns(statement: str) -> int:
    program = (
        "import sys, time; started = time.perf_counter_ns()\n"
        f"{statement}\n"
        "took = time.perf_counter_ns() - started\n"
        "assert 'torch' not in sys.modules, 'torch came along'\n"
        "print(took)"
    )
    done = subprocess.run(  # elsewhere: the sources here would hide the installed package
        [sys.executable, "-c", program], cwd=WORKERS, capture_output=True, text=True, check=True
    )
    return int(done.stdout)


def _imports() -> list[Record]:
    statements = {
        "ours": "import rdmatensor",
        "Context": "import rdmatensor; rdmatensor.Context",
        "numpy": "import numpy",
    }
    taken: dict[str, list[int]] = {name: [] for name in statements}
    for _ in range(_IMPORTS + 1):
        for name, statement in statements.items():
            taken[name].append(_import_ns(statement))
    return [
        {"contestant": name, "median_ns": sorted(ns[1:])[_IMPORTS // 2], "raw_ns": ns[1:]}
        for name, ns in taken.items()
    ]


@dataclass(frozen=True, slots=True)
class Cost:
    """How one cost is measured, and its rows."""

    run: Callable[[], list[Record]]
    rows: Callable[[Sequence[Record]], list[Row]]


def _perf(command: str, *words: str) -> Callable[[], list[Record]]:
    return functools.partial(programs.run, command, *words)


def _on(command: str, rows: Callable[[Sequence[Record]], list[Row]]) -> dict[str, Cost]:
    return {
        f"{command}, {transport}": Cost(_perf(command, "--transport", transport), rows)
        for transport in ("shm", "tcp")
    }


COSTS: Mapping[str, Cost] = {
    "tcp_throughput": Cost(_perf("tcp_throughput"), _tcp_throughput),
    **_on("write_many", _write_many),
    **_on("idle_memory", _idle_memory),
    **_on("overhead", _overhead),
    "import": Cost(_imports, _imports_rows),
    "coalesced": Cost(functools.partial(run_ranks, "coalesced", 2), _coalesced),
}


def taken(name: str) -> list[Record]:
    """Measure one cost; return its records."""
    return [
        {
            **one,
            "topic": TOPIC,
            "op": name,
            "peer": OURS if who in ("ours", OURS) else who,
        }
        for one in COSTS[name].run()
        for who in [str(one.get("contestant", OURS))]
    ]


def measure(_: Settings, __: list[Peer], progress: rounds.Progress) -> list[Record]:
    """Measure all, once."""
    turns = [(name, functools.partial(taken, name)) for name in COSTS]
    found, failed = rounds.take(turns, 1, float("inf"), progress)
    return found + failed


def rows_of(records: Sequence[Record]) -> list[Row]:
    """Return the rows of all costs that there are records of."""
    by_name: dict[str, list[Record]] = {}
    for one in records:
        by_name.setdefault(text(one, "op"), []).append(one)
    return [row for name, of_it in by_name.items() for row in COSTS[name].rows(of_it)]


def show(records: Sequence[Record]) -> str:
    """A line for each figure."""
    words = {True: "yes", False: "NO", None: "-"}
    lines = [
        (
            row.what,
            row.beside,
            row.ours,
            "-" if row.figure is None else f"{row.figure:.3g}",
            "-"
            if row.target is None
            else f"{'>=' if row.better == 'higher' else '<='} {row.target:g}",
            words[row.holds()],
        )
        for row in rows_of(records)
    ]
    return layout(("", "compared with", OURS, "figure", "target", "met"), lines)
