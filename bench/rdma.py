"""Compare our writes over verbs with perftest's, in turns, in one run, on one host.

Usage: bash ci/rig/run.sh -- .venv/bin/python bench/rdma.py [--group writes|qps|flags] [--pairs 10]
           [--out FILE]

Runs where the rig gives a device (RIG_DEVICE and RIG_GID_INDEX, see docs/rig.md), with the programs
of `cmake --preset release -DRDMATENSOR_BUILD_BENCH=ON`. Only the ratios mean anything: SoftRoCE is
software, and under emulation every instruction is emulated besides.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

PROGRAM = Path(__file__).resolve().parents[1] / "build" / "release" / "bench" / "verbs_write"
LIMIT_S = 120.0
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
STREAMS = ((1, 48, 16), (8, 8, 4), (64, 5, 2))  # MiB, writes, of which are under way
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
GROUPS = {"writes": WRITES, "qps": QPS, "flags": FLAGS}


@dataclass(frozen=True, slots=True)
class Turn:
    """What one turn gave: MiB/s, or the median in us one way and how trips spread."""

    value: float
    p10: float = 0.0
    p90: float = 0.0


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
    return Turn(*(float(line[name]) / 1000 for name in names))


def is_listening(port: int) -> bool:
    """Look without connecting: perftest's server takes the first that comes."""
    rows = [
        row.split()
        for table in ("/proc/net/tcp", "/proc/net/tcp6")
        for row in Path(table).read_text().splitlines()[1:]
    ]
    return any(row[1].endswith(f":{port:04X}") and row[3] == LISTENS for row in rows)


def deciles(said: str) -> tuple[float, float]:
    """Return the first and the last decile of the trips that perftest lists: 'number, us'."""
    fields = [line.split(",") for line in said.splitlines()]
    trips = [float(pair[1]) for pair in fields if len(pair) == 2 and pair[0].strip().isdigit()]
    if len(trips) < 2:
        raise SystemExit(f"perftest lists no trips: {said}")
    parts = statistics.quantiles(trips, n=10)
    return parts[0], parts[-1]


def theirs(case: Case, tool: str, port: int) -> Turn:
    """Return what perftest prints: MiB/s on average, or the median in us and the deciles."""
    words = [tool, "-d", os.environ["RIG_DEVICE"], "-x", os.environ["RIG_GID_INDEX"], "-F"]
    # -n is each QP's; perftest wants five at least.
    words += ["-s", str(case.size_bytes), "-n", str(max(case.count // case.qps, 5))]
    words += ["-p", str(port)]
    if not case.is_latency:
        words += ["-t", str(case.depth), "-q", str(case.qps)]
    server = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
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
    finally:
        server.kill()
    for line in client.stdout.splitlines():
        fields = line.split()
        if fields and fields[0] == str(case.size_bytes):
            spread = deciles(client.stdout) if case.is_latency else (0.0, 0.0)
            return Turn(float(fields[case.column]), *spread)
    raise SystemExit(f"{' '.join(words)}: {client.stdout}{client.stderr}{said}")


def quartiles(values: list[float]) -> tuple[float, float, float]:
    """Return the lower quartile, the median and the upper quartile."""
    lower, middle, upper = statistics.quantiles(values, n=4)
    return lower, middle, upper


def compare(case: Case, pairs: int, ports: list[int]) -> dict[str, object]:
    """Let all have a turn in each round, beginning with another one each time, and sum up."""
    names = (*case.ours, *case.tools)
    turns: dict[str, list[Turn]] = {name: [] for name in names}
    for number in range(pairs):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            is_ours = name in case.ours
            turn = ours(case, case.ours[name]) if is_ours else theirs(case, name, ports.pop())
            turns[name].append(turn)
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
        f" {'yes' if is_met else 'NO'}",
        flush=True,
    )


def main() -> int:
    """Compare every case of a group; 0 if all ran, whatever the ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--group", choices=GROUPS, default="writes")
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    cases = GROUPS[arguments.group]
    turns = arguments.pairs * sum(len(case.tools) for case in cases)
    ports = list(range(FIRST_PORT, FIRST_PORT + turns))
    kernel, means = os.uname().release, os.environ["RIG_MEANS"]
    print(f"one host, {means}, kernel {kernel}, {os.environ['RIG_DEVICE']}; medians, quartiles")
    rows = [compare(case, arguments.pairs, ports) for case in cases]
    if arguments.out is not None:
        kept = {"kernel": kernel, "means": means, "pairs": arguments.pairs, "rows": rows}
        arguments.out.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
