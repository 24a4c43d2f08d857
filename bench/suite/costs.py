"""What the library costs apart from single messages, each figure with its target.

Lists of blocks, one large write over TCP, memory of idle connections, switches and wire bytes of a
write, the import of the package, and many small sums in one call. A ratio is of medians of one run.
"""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from bench.benchlib import programs
from bench.benchlib.pairs import WORKERS, run_ranks
from bench.benchlib.record import Record, number, text
from bench.benchlib.units import size_text, time_text
from bench.suite import rounds
from bench.suite.layout import layout
from bench.suite.peers import RDMATENSOR, Peer
from bench.suite.settings import KIB, MIB, Settings

TOPIC = "costs"
ROOM = 0.85  # of a target that a loaded machine may take before a test fails
_IMPORTS = 15
_IMPORT_PATIENCE_S = 60.0
_PATHS = ("shm", "tcp")


@dataclass(frozen=True, slots=True)
class Row:
    """One line: a figure, what it is compared with, and its target.

    is_most: the target is the most that the figure may be. is_absolute: a time or a size of this
    machine, which no test asserts.
    """

    what: str
    baseline: str
    measured: str
    figure: float
    target: float | None = None
    is_most: bool = False
    is_absolute: bool = False

    def holds(self, room: float = 1.0) -> bool | None:
        """Whether the target is met; None without one."""
        if self.target is None:
            return None
        if self.is_most:
            return self.figure <= self.target / room
        return self.figure >= self.target * room


def _medians(records: Sequence[Record]) -> dict[str, float]:
    return {text(one, "name"): number(one, "median_ns") for one in records}


def _ratio(what: str, name: str, other_ns: float, own_ns: float, target: float | None) -> Row:
    baseline = f"{time_text(other_ns)} {name}"
    return Row(what, baseline, time_text(own_ns), other_ns / own_ns, target)


def _write_many(records: Sequence[Record]) -> list[Row]:
    medians, first = _medians(records), records[0]
    count, size = number(first, "blocks"), number(first, "size")
    one_ns = medians.pop("one write")
    what = f"{first['transport']} {count:g} blocks of {size_text(size)}"
    return [
        _ratio(f"{what}, {name}", "one write", one_ns, ns, 0.8 if "in order" in name else None)
        for name, ns in medians.items()
    ]


def _wire(records: Sequence[Record]) -> list[Row]:
    one = next(record for record in records if record["name"] == RDMATENSOR)
    extra = number(one, "wire_bytes_per_item") - number(one, "size")
    what = f"tcp: wire bytes of a write beyond its {size_text(number(one, 'size'))}"
    return [Row(what, "-", f"{extra:.1f} B", extra, 32.0, is_most=True)]


def _large_write(records: Sequence[Record]) -> list[Row]:
    medians, size = _medians(records), number(records[0], "size")
    what = f"tcp write + notify {size_text(size)}"
    return [_ratio(what, "a plain socket", medians["floor"], medians[RDMATENSOR], 0.9)]


def _idle_memory(records: Sequence[Record]) -> list[Row]:
    (one,) = records
    parts = (f"{number(one, f'{of}_bytes') / KIB:.1f} KiB {of}" for of in ("private", "arena"))
    each = number(one, "private_bytes") + number(one, "arena_bytes")
    what = f"{one['transport']} idle connection, bytes"
    return [Row(what, "-", " + ".join(parts), each, 16.0 * KIB, is_most=True)]


def _switches(records: Sequence[Record]) -> list[Row]:
    one = next(record for record in records if record["name"] == RDMATENSOR)
    figures = [number(one, name) for name in ("switches_per_trip", "wakeups_per_item")]
    words = f"{figures[0]:g}, {figures[1]:g} wake-ups"
    what = "shm: context switches of a write that spins"
    return [Row(what, "-", words, figures[0], 0.02, is_most=True, is_absolute=True)]


def _import(records: Sequence[Record]) -> list[Row]:
    medians = _medians(records)
    numpy = f"{time_text(medians['numpy'])} import numpy"
    limits = {"import rdmatensor": 100.0, "rdmatensor.Context": None}
    return [
        Row(f"{name}, ms", numpy, time_text(ns), ns / 1e6, limits[name], True, True)
        for name, ns in medians.items()
        if name in limits
    ]


def _coalesced(records: Sequence[Record]) -> list[Row]:
    found = {(text(one, "name"), text(one, "way")): one for one in records}
    rows = []
    for (name, way), one in found.items():
        what = f"{number(one, 'tensors'):.0f} sums of {size_text(number(one, 'size'))}, {way}"
        for who, other in (("Gloo", ("gloo", way)), ("one by one", (RDMATENSOR, "one by one"))):
            if name == RDMATENSOR and other in found and other != (name, way):
                target = 20.0 if (way, who) == ("coalesced", "one by one") else None
                other_ns, own_ns = (number(of, "median_ns") for of in (found[other], one))
                rows.append(_ratio(what, who, other_ns, own_ns, target))
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
        [sys.executable, "-c", program],
        cwd=WORKERS,
        capture_output=True,
        text=True,
        check=True,
        timeout=_IMPORT_PATIENCE_S,
    )
    return int(done.stdout)


def _imports() -> list[Record]:
    statements = {
        "import rdmatensor": "import rdmatensor",
        "rdmatensor.Context": "import rdmatensor; rdmatensor.Context",
        "numpy": "import numpy",
    }
    taken: dict[str, list[int]] = {name: [] for name in statements}
    for _ in range(_IMPORTS + 1):
        for name, statement in statements.items():
            taken[name].append(_import_ns(statement))
    return [
        {"name": name, "median_ns": sorted(ns[1:])[_IMPORTS // 2], "raw_ns": ns[1:]}
        for name, ns in taken.items()
    ]


Cost = tuple[Callable[[], list[Record]], Callable[[Sequence[Record]], list[Row]]]


def _perf(*words: str) -> Callable[[], list[Record]]:
    return functools.partial(programs.run, *words)


def _idle(path: str) -> Callable[[], list[Record]]:
    environment = {"RDMATENSOR_TRANSPORT": path}
    return functools.partial(run_ranks, "idle_memory", 2, environment=environment)


_SMALL = ("--transport", "tcp", "--size", "8", "--count", "1000", "--rounds", "3")
_LARGE = ("--transport", "tcp", "--size", str(64 * MIB), "--count", "5", "--rounds", "20")
COSTS: Mapping[str, Cost] = {
    "large write, tcp": (_perf("streams", *_LARGE), _large_write),
    "wire bytes, tcp": (_perf("streams", *_SMALL), _wire),
    **{
        f"write_many, {path}": (_perf("write_many", "--transport", path), _write_many)
        for path in _PATHS
    },
    **{f"idle_memory, {path}": (_idle(path), _idle_memory) for path in _PATHS},
    "switches": (_perf("latency"), _switches),
    "import": (_imports, _import),
    "coalesced": (functools.partial(run_ranks, "coalesced", 2), _coalesced),
}


def taken(name: str) -> list[Record]:
    """Measure one cost; return its records."""
    found = [{"name": RDMATENSOR, **one} for one in COSTS[name][0]()]
    return [{**one, "topic": TOPIC, "op": name, "peer": one["name"]} for one in found]


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
    return [row for name, of_it in by_name.items() for row in COSTS[name][1](of_it)]


def show(records: Sequence[Record]) -> str:
    """A line for each figure."""
    words = {True: "yes", False: "NO", None: "-"}
    lines = [
        (
            row.what,
            row.baseline,
            row.measured,
            f"{row.figure:.3g}",
            "-" if row.target is None else f"{'<=' if row.is_most else '>='} {row.target:g}",
            words[row.holds()],
        )
        for row in rows_of(records)
    ]
    return layout(("", "compared with", RDMATENSOR, "figure", "target", "met"), lines)
