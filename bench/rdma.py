"""Compare our writes over verbs with perftest's, in turns, in one run, on one host.

Usage: bash ci/rig/run.sh --memory 3072 -- .venv/bin/python bench/rdma.py
           [--group writes|qps|qps64|flags] [--pairs 10] [--minutes 9] [--out FILE]

Runs where the rig gives a device (RIG_DEVICE and RIG_GID_INDEX, see docs/rig.md), with the programs
of build/bench (`cmake -S . -B build/bench -DCMAKE_BUILD_TYPE=Release -DRDMATENSOR_BUILD_BENCH=ON`).
Only the ratios mean anything: SoftRoCE is software, and under emulation every instruction is
emulated besides.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

sys.path.append(str(Path(__file__).resolve().parents[1]))  # run as a file: `bench` is beside it
from bench.benchlib import rig
from bench.benchlib.programs import BUILD_DIR

PROGRAM = BUILD_DIR / "bench" / "verbs_write"
LIMIT_S = 120.0
MINUTES = 9.0  # of a run: the rig ends one after ten
LEAST_ROUNDS = 3  # of two, quartiles lie beyond both
LISTEN_S = 20.0
FIRST_PORT = 18600
MIB = 1 << 20
LISTENS = "0A"  # the state in /proc/net/tcp


@dataclass(frozen=True, slots=True)
class Case:
    """What all do: perftest's tools, and the same sizes, counts and depths for us."""

    name: str
    tools: tuple[str, ...]  # rivals of the same turns of ours
    size_bytes: int
    count: int
    depth: int
    column: int  # of perftest's row: MiB/s on average, or the median in us
    target: float = 0.0  # ours over theirs (bandwidth: at least; latency: at most); 0: none
    qps: int = 1  # of each peer; perftest gives each writes of its own, we stripe each write
    ours: Mapping[str, Mapping[str, str]] = field(default_factory=lambda: {"ours": {}})  # settings
    is_slot: bool = False  # a tensor's trip in place of a write's
    is_read: bool = False  # a read's
    is_both_ways: bool = False  # perftest writes in both directions at once, and adds them up

    @property
    def is_latency(self) -> bool:
        """Whether less is better."""
        return self.tools[0].endswith("_lat")


WRITES = (
    Case("write 1 MiB", ("ib_write_bw",), MIB, 48, 16, 3, 0.97),
    Case("write 8 MiB", ("ib_write_bw",), 8 * MIB, 8, 4, 3, 0.97),
    # A write that is polled for in memory, and a send, which takes a receive as our immediate does.
    Case("write + notify 8 B", ("ib_write_lat", "ib_send_lat"), 8, 1000, 1, 4, 1.15),
)
# MiB, writes, of which are under way. perftest wants five of each QP at least: ten pairs of 64 MiB
# move 30 GiB, which is a run of its own.
STREAMS = ((1, 48, 16), (8, 8, 4), (64, 5, 2))
QPS = tuple(
    Case(f"write {mib} MiB, {qps} QPs", ("ib_write_bw",), mib * MIB, count, depth, 3, 0.97, qps)
    for mib, count, depth in STREAMS
    for qps in (1, 2, 4)
)
# A device that promises no order is made to do with flags all the same: what they would save.
BY_FLAG = {"RDMATENSOR_VERBS_NOTIFY": "flag", "RDMATENSOR_VERBS_FLAG_UNSAFE": "1"}
ANNOUNCED = {"ours, imm": {}, "ours, flag": BY_FLAG}
FLAGS = tuple(
    Case(f"slot {size} B", ("ib_write_lat",), size, 500, 1, 4, 1.15, ours=ANNOUNCED, is_slot=True)
    for size in (8, 4096)
)
GROUPS = {
    "writes": WRITES,
    "qps": tuple(case for case in QPS if case.size_bytes < 64 * MIB),
    "qps64": tuple(case for case in QPS if case.size_bytes == 64 * MIB),
    "flags": FLAGS,
}
Taken = TypeVar("Taken")


@dataclass(frozen=True, slots=True)
class Turn:
    """What one turn gave: MiB/s, or the median in us one way and how trips spread.

    raw: the trips in us one way, in their order, as far as the program tells them.
    """

    value: float
    p10: float = 0.0
    p90: float = 0.0
    raw: tuple[float, ...] = ()


class Budget:
    """The time of a run, of which each case gets an equal part of what is left."""

    def __init__(self, minutes: float, cases: int) -> None:
        self._end_s = time.monotonic() + 60 * minutes
        self._cases_left = cases

    def next_end_s(self) -> float:
        """Return when the next case should be over."""
        now_s = time.monotonic()
        share_s = (self._end_s - now_s) / max(self._cases_left, 1)
        self._cases_left -= 1
        return now_s + share_s


def take_turns(
    acts: Mapping[str, Callable[[], Taken]],
    rounds: int,
    end_s: float = math.inf,
    most: Callable[[int], int] = int,
    after: Callable[[Mapping[str, list[Taken]]], None] | None = None,
) -> dict[str, list[Taken]]:
    """Let all have a turn in each round, beginning with another one each time.

    After LEAST_ROUNDS none begins that would not be over by end_s, were it as long as the mean.
    most: gives the largest of several processes' numbers, where these take turns together. after:
    has all turns so far, after each of them.
    """
    names = list(acts)
    turns: dict[str, list[Taken]] = {name: [] for name in names}
    began_s = time.monotonic()
    for number in range(rounds):
        now_s = time.monotonic()
        is_late = number >= LEAST_ROUNDS and now_s + (now_s - began_s) / number > end_s
        if most(int(is_late)):
            break
        first = number % len(names)
        for name in names[first:] + names[:first]:
            turns[name].append(acts[name]())
            if after is not None:
                after(turns)
    return turns


def raw_us(nanoseconds: object) -> tuple[float, ...]:
    """Return a program's samples in microseconds; () where it tells none."""
    return tuple(ns / 1000 for ns in nanoseconds) if isinstance(nanoseconds, list) else ()


def ours(case: Case, settings: Mapping[str, str]) -> Turn:
    """Run our half of the comparison once."""
    words = [str(PROGRAM), "--size", str(case.size_bytes), "--count", str(case.count)]
    words += ["--latency"] if case.is_latency else ["--depth", str(case.depth)]
    words += ["--slot"] if case.is_slot else []
    words += ["--read"] if case.is_read else []
    done = subprocess.run(
        words,
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
        env={**os.environ, "RDMATENSOR_VERBS_QPS": str(case.qps), **settings},
    )
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(words)}: {done.stderr.strip()}")
    line = json.loads(done.stdout)
    if not case.is_latency:
        return Turn(float(line["mib_per_s"]))
    names = ("one_way_ns", "one_way_p10_ns", "one_way_p90_ns")
    middle, p10, p90 = (float(line[name]) / 1000 for name in names)
    return Turn(middle, p10, p90, raw_us(line.get("raw_ns")))


def is_listening(port: int) -> bool:
    """Look without connecting: perftest's server takes the first that comes."""
    rows = [
        row.split()
        for table in ("/proc/net/tcp", "/proc/net/tcp6")
        for row in Path(table).read_text().splitlines()[1:]
    ]
    return any(row[1].endswith(f":{port:04X}") and row[3] == LISTENS for row in rows)


def listed_us(said: str) -> tuple[float, ...]:
    """Return the trips that perftest lists: 'number, us'."""
    fields = [line.split(",") for line in said.splitlines()]
    trips = tuple(float(pair[1]) for pair in fields if len(pair) == 2 and pair[0].strip().isdigit())
    if len(trips) < 2:
        raise SystemExit(f"perftest lists no trips: {said}")
    return trips


def theirs(case: Case, tool: str, port: int) -> Turn:
    """Return what perftest prints: MiB/s on average, or the median in us and the deciles."""
    words = [tool, "-d", os.environ["RIG_DEVICE"], "-x", os.environ["RIG_GID_INDEX"], "-F"]
    # -n is each QP's; perftest wants five at least.
    words += ["-s", str(case.size_bytes), "-n", str(max(case.count // case.qps, 5))]
    words += ["-p", str(port)]
    if not case.is_latency:
        words += ["-t", str(case.depth), "-q", str(case.qps), *(["-b"] * case.is_both_ways)]
    opened = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    with opened as server:
        try:
            end = time.monotonic() + LISTEN_S
            while not is_listening(port) and time.monotonic() < end and server.poll() is None:
                time.sleep(0.05)
            listing = ["-U"] if case.is_latency else []
            client = subprocess.run(
                [*words, *listing, os.environ["RIG_ADDR"]],
                capture_output=True,
                text=True,
                check=False,
                timeout=LIMIT_S,
            )
            said, _ = server.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired as error:
            raise SystemExit(f"{' '.join(words)}: no end after {LIMIT_S:g} s") from error
        finally:
            server.kill()
    for line in client.stdout.splitlines():
        fields = line.split()
        if fields and fields[0] == str(case.size_bytes):
            value = float(fields[case.column])
            if not case.is_latency:
                return Turn(value)
            trips = listed_us(client.stdout)
            parts = statistics.quantiles(trips, n=10)
            return Turn(value, parts[0], parts[-1], trips)
    raise SystemExit(f"{' '.join(words)}: {client.stdout}{client.stderr}{said}")


def quartiles(values: list[float]) -> tuple[float, float, float]:
    """Return the lower quartile, the median and the upper quartile."""
    lower, middle, upper = statistics.quantiles(values, n=4)
    return lower, middle, upper


def compare(case: Case, pairs: int, ports: list[int], end_s: float) -> dict[str, object]:
    """Let all have a turn in each round, and sum up."""
    names = (*case.ours, *case.tools)

    def perftest(tool: str) -> Turn:
        return theirs(case, tool, ports.pop())

    acts: dict[str, Callable[[], Turn]] = {
        **{name: partial(ours, case, settings) for name, settings in case.ours.items()},
        **{tool: partial(perftest, tool) for tool in case.tools},
    }
    turns = take_turns(acts, pairs, end_s)
    for tool in case.tools:
        for name in case.ours:
            show(case, tool, name, turns[name], turns[tool])
    if case.is_latency:
        for name in names:
            show_spread(case, name, turns[name])
    kept = {name: [asdict(turn) for turn in turns[name]] for name in names}
    return {
        "case": case.name,
        "is_latency": case.is_latency,
        "ours": {name: kept[name] for name in case.ours},
        "theirs": {tool: kept[tool] for tool in case.tools},
    }


def show_spread(case: Case, name: str, turns: list[Turn]) -> None:
    """Print a line: how the trips of one contestant spread; two modes show here, in no median."""
    values = [turn.value for turn in turns]
    p10 = statistics.median(turn.p10 for turn in turns)
    p90 = statistics.median(turn.p90 for turn in turns)
    print(
        f"{case.name:<20} {name + ':':<13} a turn's median {min(values):.1f} to"
        f" {max(values):.1f} us; in a turn p10 {p10:.1f}, p90 {p90:.1f} us (medians)",
        flush=True,
    )


def show(case: Case, tool: str, name: str, our_turns: list[Turn], their_turns: list[Turn]) -> None:
    """Print a line: ours beside one rival."""
    mine = [turn.value for turn in our_turns]
    rival = [turn.value for turn in their_turns]
    ratio = quartiles([a / b for a, b in zip(mine, rival, strict=True)])
    is_met = ratio[1] <= case.target if case.is_latency else ratio[1] >= case.target
    unit = "us" if case.is_latency else "MiB/s"
    sign = "<=" if case.is_latency else ">="
    print(
        f"{case.name:<20} {tool:<13} {statistics.median(rival):9.1f} {unit:<6}"
        f" {name} {statistics.median(mine):9.1f} {unit:<6} ratio {ratio[1]:.3f}"
        f" ({ratio[0]:.3f} to {ratio[2]:.3f}), wanted {sign} {case.target}:"
        f" {'yes' if is_met else 'NO'}; {len(mine)} turns",
        flush=True,
    )


def main() -> int:
    """Compare every case of a group; 0 if all ran, whatever the ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--group", choices=GROUPS, default="writes")
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--minutes", type=float, default=MINUTES, help="about, of the whole run")
    parser.add_argument("--out", type=Path, help="rdma-GROUP.json in RIG_OUT unless given")
    arguments = parser.parse_args()
    kept = rig.Kept()
    cases = GROUPS[arguments.group]
    turns = arguments.pairs * sum(len(case.tools) for case in cases)
    ports = list(range(FIRST_PORT, FIRST_PORT + turns))
    kernel, means = os.uname().release, os.environ["RIG_MEANS"]
    print(f"one host, {means}, kernel {kernel}, {os.environ['RIG_DEVICE']}; medians, quartiles")
    budget = Budget(arguments.minutes, len(cases))
    out = arguments.out or Path(f"rdma-{arguments.group}.json")
    options = {"group": arguments.group, "pairs": arguments.pairs}
    rows: list[dict[str, object]] = []
    for case in cases:
        rows.append(compare(case, arguments.pairs, ports, budget.next_end_s()))
        kept.so_far(out, rows, **options)
    kept.finish(out, rows, **options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
