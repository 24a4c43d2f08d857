"""What the library costs apart from single messages, each figure with its target.

Lists of blocks, one large write over TCP, memory of idle connections, switches and wire bytes of a
write, the import of the package, and many small sums in one call. A ratio is of medians of one run.

HELD has ratios that tell CI whether something became far slower: of the fastest samples of both
sides of one run, since other processes only ever add to a sample. Their targets are 0.6 to 0.8 of
what quiet runs give, of Gloo half, as busy cores make it look worse. Under burners, the loops'
median counts: processes that wait for a core make one loop slow and another fast.
"""

from __future__ import annotations

import functools
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from bench.benchlib import programs
from bench.benchlib.pairs import WORKERS, run_ranks
from bench.benchlib.record import Record, number, text
from bench.benchlib.units import size_text, time_text
from bench.suite import busy, collectives, rounds, samples
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
    machine, which no test asserts. room: the share of the target that a test asks for.
    """

    what: str
    baseline: str
    measured: str
    figure: float
    target: float | None = None
    is_most: bool = False
    is_absolute: bool = False
    room: float = ROOM

    def holds(self, *, with_room: bool = False) -> bool | None:
        """Whether the target is met; None without one."""
        if self.target is None:
            return None
        room = self.room if with_room else 1.0
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


# ---- Ratios that are held ------------------------------------------------------------------------


def _all_reduce(transport: str, size: int) -> list[Record]:
    options = {**_BOTH, "operations": ["all_reduce"], "sizes": [size], "rounds": 8}
    printed = run_ranks(
        "collectives", 2, options, environment={"RDMATENSOR_TRANSPORT": transport}, timeout_s=90.0
    )
    return [
        {
            "name": of_ranks[0]["name"],
            "raw_ns": [max(both) for both in zip(*map(samples.raw_of, of_ranks), strict=True)],
        }
        for of_ranks in collectives.by_key(printed).values()
    ]


def _busy(transport: str, call: str, load: str, size: int, between_ms: int) -> list[Record]:
    cell = {"calls": [call], "loads": [load], "sizes": [size], "between_ms": [between_ms]}
    printed = run_ranks(
        busy.TOPIC,
        2,
        {**_BOTH, **cell, "seconds": 0.2, "loops": 5},
        environment={"RDMATENSOR_TRANSPORT": transport},
        timeout_s=90.0,
    )
    found = [busy.record_of(one, transport) for one in collectives.by_key(printed).values()]
    return [{**one, "raw_ns": [statistics.median(samples.raw_of(one))]} for one in found]


def _held(least: float, own: str = RDMATENSOR, other: str = "") -> Callable[..., list[Row]]:
    """Return the row of a ratio; other: a name, else of all but rdmatensor's."""

    def rows(records: Sequence[Record]) -> list[Row]:
        of_both = (
            [min(samples.raw_of(one)) for one in records if one["name"] == own],
            [
                min(samples.raw_of(one))
                for one in records
                if one["name"] == other or (not other and one["name"] != own)
            ],
        )
        if not all(of_both):
            raise RuntimeError("a peer has no samples")
        own_ns, other_ns = (max(1.0, min(found)) for found in of_both)  # a clock may stand still
        texts = f"{time_text(other_ns)} {other or 'the others'}", time_text(own_ns)
        return [Row(text(records[0], "op"), *texts, other_ns / own_ns, least, room=1.0)]

    return rows


_BOTH = {"ranks": 2, "backends": [RDMATENSOR, "gloo"]}
_EIGHT = ("--size", "8", "--rounds", "8", "--count", "200")
_TRIPS = ("--size", str(MIB), "--rounds", "8", "--count", "20")
# name -> what is measured, and the least ratio.
_PROGRAMS = {
    "shm 1 MiB until the peer knows, and copies": (
        ("shm_write", "--size", str(MIB), "--rounds", "30"),
        _held(0.75),
    ),
    "shm 8 B one way, and a flag": (("latency", *_EIGHT), _held(0.2)),
    "tcp 8 B one way, and a socket": (("latency", "--transport", "tcp", *_EIGHT), _held(0.6)),
    "tcp 1 MiB one way, and a socket": (("latency", "--transport", "tcp", *_TRIPS), _held(0.6)),
    "shm 1 MiB in a slot, and a ring and a copy": (
        ("tensors", "--size", str(MIB), "--count", "40", "--rounds", "4"),
        _held(0.7, "slot", "copy"),
    ),
}
_SUMS = {("shm", MIB): 3.0, ("shm", 64 * KIB): 7.0, ("tcp", MIB): 0.8}
_BURNED = {
    ("shm", "all_reduce", "spin:2", MIB, 0): 0.95,
    ("shm", "all_reduce", "nap:2", MIB, 0): 2.6,
    ("shm", "all_reduce", "matmul:2", 64 * KIB, 0): 5.2,
    ("tcp", "all_gather", "spin:2", 64 * KIB, 2): 0.9,
    ("shm", busy.DDP, "spin:2", MIB, 0): 0.9,
}


Cost = tuple[Callable[[], list[Record]], Callable[[Sequence[Record]], list[Row]]]


def _perf(*words: str) -> Callable[[], list[Record]]:
    return functools.partial(programs.run, *words)


def _idle(path: str) -> Callable[[], list[Record]]:
    environment = {"RDMATENSOR_TRANSPORT": path}
    return functools.partial(run_ranks, "idle_memory", 2, {}, environment=environment)


HELD: Mapping[str, Cost] = {
    **{name: (_perf(*words), rows) for name, (words, rows) in _PROGRAMS.items()},
    **{
        f"all_reduce of {size_text(size)} over {path}, and Gloo's": (
            functools.partial(_all_reduce, path, size),
            _held(least),
        )
        for (path, size), least in _SUMS.items()
    },
    **{
        f"{call} of {size_text(size)} over {path}, {load}, {between_ms} ms between, and Gloo's": (
            functools.partial(_busy, path, call, load, size, between_ms),
            _held(least),
        )
        for (path, call, load, size, between_ms), least in _BURNED.items()
    },
}
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
    "coalesced": (functools.partial(run_ranks, "coalesced", 2, {}), _coalesced),
    **HELD,
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
