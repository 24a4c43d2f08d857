"""Compare ours, perftest and the raw verbs floor, in turns, in one run, on one host.

Usage: bash ci/rig/run.sh -- .venv/bin/python bench/rdma_floor.py [--rounds 10] [--sizes 8,4096]
           [--minutes 9] [--out FILE]

The floor is bench/floor/verbs_floor.c: what plain libibverbs gives, with a QP of each side and none
of our library. What it takes beyond perftest is the floor's own doing, what ours takes beyond it is
our library. "raw read, 10 us" spins for so long before each post, as ours computes there: what it
takes beyond raw read and the 10 us is the device's, which is idle again by then. Who waits for a
message spins: the floor and perftest on a completion or on the byte that comes last, ours until it
sleeps. Runs where the rig gives a device, with the programs of build/bench (see rdma.py). Only the
ratios mean anything: SoftRoCE is software, and under emulation every instruction is emulated
besides.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))  # run as a file: `bench` is beside it
from bench import rdma
from bench.benchlib import rig
from bench.benchlib.verdict import size_text

FLOOR = rdma.PROGRAM.parent / "verbs_floor"
OURS = "ours"
TYPICAL, AVERAGE = 4, 3  # columns of perftest's rows: the median in us, MiB/s on average
SIZES = (8, 4096)
PAUSE = ", 10 us"  # of a floor's operation that computes before each post
PAUSE_NS = 10_000


@dataclass(frozen=True, slots=True)
class Comparison:
    """Contestants that take turns, and whose time (or rate) is divided by whose."""

    case: rdma.Case
    floors: tuple[str, ...]  # operations of verbs_floor, with PAUSE or without
    ratios: tuple[tuple[str, str], ...]

    @property
    def names(self) -> tuple[str, ...]:
        """All contestants, in the order of the first round."""
        return (OURS, *self.case.tools, *(f"raw {op}" for op in self.floors))


def comparisons(sizes: Sequence[int]) -> list[Comparison]:
    """Return messages and reads of each size, and writes in a row."""
    found = []
    for size in sizes:
        count = 1000 if size <= 1024 else 300
        messages = ("ib_write_lat", "ib_send_lat")
        found += [
            Comparison(
                rdma.Case(f"message {size_text(size)}", messages, size, count, 1, TYPICAL),
                ("write", "imm", "imm" + PAUSE, "send"),
                (
                    ("raw write", "ib_write_lat"),
                    ("raw send", "ib_send_lat"),
                    ("raw imm", "ib_send_lat"),
                    (OURS, "raw imm"),  # a write with an immediate is what ours posts
                    (OURS, "raw imm" + PAUSE),
                    (OURS, "ib_send_lat"),
                ),
            ),
            Comparison(
                rdma.Case(
                    f"read {size_text(size)}",
                    ("ib_read_lat",),
                    size,
                    count,
                    1,
                    TYPICAL,
                    is_read=True,
                ),
                ("read", "read" + PAUSE),
                (
                    ("raw read", "ib_read_lat"),
                    (OURS, "raw read"),
                    (OURS, "raw read" + PAUSE),
                    (OURS, "ib_read_lat"),
                ),
            ),
        ]
    rate = rdma.Case("write 1 MiB", ("ib_write_bw",), rdma.MIB, 48, 16, AVERAGE)
    pairs = (("raw write", "ib_write_bw"), (OURS, "raw write"), (OURS, "ib_write_bw"))
    return [*found, Comparison(rate, ("write",), pairs)]


def floor(case: rdma.Case, operation: str) -> rdma.Turn:
    """Run the floor once: the median in us and how trips spread, or MiB/s."""
    words = [str(FLOOR), "--device", os.environ["RIG_DEVICE"], "--gid", os.environ["RIG_GID_INDEX"]]
    words += ["--latency" if case.is_latency else "--bandwidth"]
    words += ["--ops", operation.removesuffix(PAUSE)]
    words += ["--pause", str(PAUSE_NS)] * operation.endswith(PAUSE)
    words += ["--sizes", str(case.size_bytes), "--count", str(case.count), "--passes", "1"]
    words += ["--depth", str(case.depth)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=rdma.LIMIT_S)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(words)}: {done.stderr.strip()}")
    line = json.loads(done.stdout)
    if not case.is_latency:
        return rdma.Turn(float(line["mib_per_s"]))
    middle, p10, p90 = (float(line[name]) / 1000 for name in ("median_ns", "p10", "p90"))
    return rdma.Turn(middle, p10, p90, rdma.raw_us(line.get("raw_ns")))


def acts(comparison: Comparison, ports: list[int]) -> dict[str, Callable[[], rdma.Turn]]:
    """Return what each contestant's turn is."""
    case = comparison.case

    def perftest(tool: str) -> rdma.Turn:
        return rdma.theirs(case, tool, ports.pop())

    return {
        OURS: partial(rdma.ours, case, {}),
        **{tool: partial(perftest, tool) for tool in case.tools},
        **{f"raw {op}": partial(floor, case, op) for op in comparison.floors},
    }


def compare(
    comparison: Comparison, rounds: int, ports: list[int], end_s: float
) -> dict[str, object]:
    """Let all have a turn in each round, and print."""
    names = comparison.names
    turns = rdma.take_turns(acts(comparison, ports), rounds, end_s)
    for name in names:
        show_turns(comparison.case, name, turns[name])
    ratios = {}
    for who, over in comparison.ratios:
        pairs = zip(turns[who], turns[over], strict=True)
        ratios[f"{who} / {over}"] = quartiles = rdma.quartiles(
            [a.value / b.value for a, b in pairs]
        )
        lower, middle, upper = quartiles
        print(
            f"{comparison.case.name:<14} {who + ' / ' + over:<28}"
            f" {middle:.2f} ({lower:.2f} to {upper:.2f})",
            flush=True,
        )
    return {
        "case": comparison.case.name,
        "is_latency": comparison.case.is_latency,
        "turns": {name: [asdict(turn) for turn in turns[name]] for name in names},
        "ratios": ratios,
    }


def show_turns(case: rdma.Case, name: str, turns: Sequence[rdma.Turn]) -> None:
    """Print a contestant's line: the median of its turns, and how the turns and trips spread."""
    values = [turn.value for turn in turns]
    lower, middle, upper = rdma.quartiles(values)
    unit = "us" if case.is_latency else "MiB/s"
    line = f"{case.name:<14} {name:<14} {middle:9.1f} {unit} ({lower:.1f} to {upper:.1f})"
    if case.is_latency:
        p10, p90 = (
            statistics.median(getattr(turn, key) for turn in turns) for key in ("p10", "p90")
        )
        line += f", in a turn p10 {p10:.1f}, p90 {p90:.1f}"
    print(f"{line}; {len(turns)} turns", flush=True)


def sizes_of(text: str) -> tuple[int, ...]:
    """Read bytes, separated by commas."""
    return tuple(int(word) for word in text.split(","))


def main() -> int:
    """Compare everything; 0 if all ran, whatever the ratios."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=10, help="turns of each; 3 at least")
    parser.add_argument("--sizes", type=sizes_of, default=SIZES, help="of messages and reads")
    parser.add_argument("--minutes", type=float, default=rdma.MINUTES, help="about, of all")
    parser.add_argument("--out", type=Path, default=Path("rdma_floor.json"), help="in RIG_OUT")
    arguments = parser.parse_args()
    kept = rig.Kept()
    if arguments.rounds < rdma.LEAST_ROUNDS:
        parser.error("--rounds: quartiles want three turns at least")
    chosen = comparisons(arguments.sizes)
    ports_needed = arguments.rounds * sum(len(one.case.tools) for one in chosen)
    ports = list(range(rdma.FIRST_PORT, rdma.FIRST_PORT + ports_needed))
    kernel, means = os.uname().release, os.environ["RIG_MEANS"]
    print(
        f"one host, {means}, kernel {kernel}, {os.environ['RIG_DEVICE']}; medians of"
        f" {arguments.rounds} turns, quartiles",
        flush=True,
    )
    budget = rdma.Budget(arguments.minutes, len(chosen))
    rows: list[dict[str, object]] = []
    for one in chosen:
        rows.append(compare(one, arguments.rounds, ports, budget.next_end_s()))
        kept.so_far(arguments.out, rows, rounds=arguments.rounds)
    kept.finish(arguments.out, rows, rounds=arguments.rounds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
