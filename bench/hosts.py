"""Compare collectives that go by way of hosts with those that do not, on one machine.

Usage: python -m bench.hosts [--layout 0011] [--turns 3] [--rounds 8] [--out FILE]

Ranks with the same digit in the layout share memory; others treat each other as remote
(RDMATENSOR_TEST_HOST) and use TCP over loopback. A turn is a set of fresh processes in which all
algorithms and Gloo alternate on the same tensors; each sample is the mean of some calls in a row on
the slowest rank. "auto" is what the library chooses. "flat" is the fastest of the others at each
size, which is a harder rival than any one of them, "messages" what would be chosen among them. The
processes share this machine's cores, and no wire is between them: what is compared is the work, not
a network. Beside the medians stand the tails of single calls, of the slowest rank of each, and the
processor time of all ranks.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

from bench.benchlib.machine import ROOT, Watch, stamp
from bench.benchlib.pairs import run_ranks
from bench.benchlib.record import Record, Result, Run, number, text, write
from bench.suite import samples
from bench.suite.collectives import by_key, over_ranks
from bench.suite.layout import layout

HIERARCHICAL = "hierarchical"
AUTO = "auto"
FLAT = ("messages", "ring", "halving-doubling", "tree")
GLOO = "gloo"
NAMES = (HIERARCHICAL, AUTO, *FLAT, GLOO)
OPERATIONS = ("all_reduce", "broadcast", "barrier")
SIZES = (8, 256, 4096, 16384, 65536, 262144, 1 << 20, 4 << 20, 16 << 20)
TURN_PATIENCE_S = 500.0


def turn(layout: str, sizes: str, rounds: int) -> list[Record]:
    """Run fresh processes once; return a record for each algorithm, operation and size."""
    printed = run_ranks(
        "hosts",
        len(layout),
        *("--layout", layout),
        *("--algorithms", ",".join([HIERARCHICAL, AUTO, *FLAT])),
        *("--operations", ",".join(OPERATIONS)),
        *("--sizes", sizes),
        *("--rounds", str(rounds)),
        environment={"PYTHONPATH": str(ROOT)},
        timeout_s=TURN_PATIENCE_S,
    )
    found = []
    for of_ranks in by_key(printed).values():
        fields: Record = {
            "topic": "hosts",
            "transport": "shm within hosts, tcp between",
            "layout": layout,
            **{name: of_ranks[0][name] for name in ("contestant", "op", "size", "ranks")},
            "timed": "mean of calls in a row, slowest rank",
        }
        cpu_ns = samples.quantile(over_ranks(of_ranks, "cpu_ns", sum), 0.5)
        each_ns = over_ranks(of_ranks, "each_ns", max)
        slowest = over_ranks(of_ranks, "raw_ns", max)
        found.append(samples.turn({**fields, "call_cpu_ns": cpu_ns}, slowest, calls_ns=each_ns))
    return found


def with_costs(record: Record) -> Record:
    """Add the processor time of all ranks for 10^9 bytes of the operation; a barrier has none."""
    if record["op"] == "barrier":
        return record
    return {**record, "cpu_s_per_gb": number(record, "call_cpu_ns") / number(record, "size")}


def cells_of(
    records: list[Record], show: Callable[[Record], str]
) -> dict[tuple[str, int], dict[str, str]]:
    """Return what is shown of each operation and size, by contestant."""
    table: dict[tuple[str, int], dict[str, str]] = {}
    for record in records:
        key = (text(record, "op"), int(number(record, "size")))
        table.setdefault(key, {})[text(record, "contestant")] = show(record)
    return table


def beside(records: list[Record]) -> list[str]:
    """Return the lines of what stands beside the medians: tails of single calls, and their cost."""
    tails = cells_of(records, lambda one: samples.tail_text(one, "p999"))
    costs = cells_of(
        records, lambda one: f"{one['cpu_s_per_gb']:.3g}" if "cpu_s_per_gb" in one else "-"
    )
    heads = ("p99.9 of single calls", "CPU s/GB")
    tables = []
    for head, table in zip(heads, (tails, costs), strict=True):
        rows = [
            (f"{operation} {size}", *(of_cell.get(name, "-") for name in NAMES))
            for (operation, size), of_cell in table.items()
        ]
        tables.append(layout((head, *NAMES), rows))
    return tables


def rows_of(records: list[Record]) -> list[str]:
    """Return the lines of the table: medians in us, and how many times faster we are."""
    table: dict[tuple[str, int], dict[str, float]] = {}
    for record in records:
        key = (text(record, "op"), int(number(record, "size")))
        table.setdefault(key, {})[text(record, "contestant")] = number(record, "median_ns") / 1000
    heads = ("messages/hier", "flat/hier", "flat/auto", "gloo/auto")
    lines = [f"{'us':<20}" + "".join(f"{name:>17}" for name in (*NAMES, *heads))]
    ratios: dict[str, list[float]] = {}
    for (operation, size), us in table.items():
        flat = min(us[name] for name in FLAT)
        row = (
            us["messages"] / us[HIERARCHICAL],
            flat / us[HIERARCHICAL],
            flat / us[AUTO],
            us[GLOO] / us[AUTO],
        )
        for head, ratio in zip(heads, row, strict=True):
            ratios.setdefault(f"{operation} {head}", []).append(ratio)
        lines.append(
            f"{operation:<11}{size:>9}"
            + "".join(f"{us[name]:17.1f}" for name in NAMES)
            + "".join(f"{ratio:17.2f}" for ratio in row)
        )
    means = (f"{name} {statistics.geometric_mean(of):.2f}" for name, of in ratios.items())
    lines.append("geometric means: " + ", ".join(means))
    return lines


def main() -> int:
    """Take the turns, print the table; 0 whatever came out."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layout", default="0011")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)))
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    layout, sizes = str(arguments.layout), str(arguments.sizes)
    watch = Watch()
    with watch:
        found = [
            record
            for _ in range(arguments.turns)
            for record in turn(layout, sizes, arguments.rounds)
        ]
    records = [with_costs(record) for record in samples.merge(found)]
    print("\n".join([*rows_of(records), *beside(records)]))
    print(f"layout {layout}; others kept {watch.foreign_cpus:.1f} cores busy")
    if arguments.out is not None:
        run = Run(records, watch.foreign_cpus, watch.seconds)
        command = f"python -m bench.hosts --layout {layout} --turns {arguments.turns}"
        write(Result("hosts", command, stamp(), [run]), arguments.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
