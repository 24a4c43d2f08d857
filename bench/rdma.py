"""Compare our writes over verbs with perftest's, in turns, in one run, on one host.

Usage: bash ci/rig/run.sh -- .venv/bin/python bench/rdma.py [--pairs 10] [--out FILE]

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
from dataclasses import dataclass
from pathlib import Path

PROGRAM = Path(__file__).resolve().parents[1] / "build" / "release" / "bench" / "verbs_write"
LIMIT_S = 120.0
LISTEN_S = 20.0
FIRST_PORT = 18600
MIB = 1 << 20
LISTENS = "0A"  # the state in /proc/net/tcp


@dataclass(frozen=True, slots=True)
class Case:
    """What both do: perftest's tool, and the same sizes, counts and depths for us."""

    name: str
    tool: str
    size_bytes: int
    count: int
    depth: int
    column: int  # of perftest's row: MiB/s on average, or the median in us
    target: float  # for ours over theirs (bandwidth: at least; latency: at most)

    @property
    def is_latency(self) -> bool:
        """Whether less is better."""
        return self.tool.endswith("_lat")


CASES = (
    Case("write 1 MiB", "ib_write_bw", MIB, 48, 16, 3, 0.97),
    Case("write 8 MiB", "ib_write_bw", 8 * MIB, 8, 4, 3, 0.97),
    Case("write + notify 8 B, beside a polled write", "ib_write_lat", 8, 1000, 1, 4, 1.15),
    Case("write + notify 8 B, beside a send", "ib_send_lat", 8, 1000, 1, 4, 1.15),
)


def ours(case: Case) -> float:
    """Return MiB/s, or us one way."""
    words = [str(PROGRAM), "--size", str(case.size_bytes), "--count", str(case.count)]
    words += ["--latency"] if case.is_latency else ["--depth", str(case.depth)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(words)}: {done.stderr.strip()}")
    line = json.loads(done.stdout)
    return float(line["one_way_ns"]) / 1000 if case.is_latency else float(line["mib_per_s"])


def is_listening(port: int) -> bool:
    """Look without connecting: perftest's server takes the first that comes."""
    rows = [
        row.split()
        for table in ("/proc/net/tcp", "/proc/net/tcp6")
        for row in Path(table).read_text().splitlines()[1:]
    ]
    return any(row[1].endswith(f":{port:04X}") and row[3] == LISTENS for row in rows)


def theirs(case: Case, port: int) -> float:
    """Return what perftest prints: MiB/s on average, or the median in us."""
    words = [case.tool, "-d", os.environ["RIG_DEVICE"], "-x", os.environ["RIG_GID_INDEX"], "-F"]
    words += ["-s", str(case.size_bytes), "-n", str(case.count), "-p", str(port)]
    if not case.is_latency:
        words += ["-t", str(case.depth)]
    server = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        end = time.monotonic() + LISTEN_S
        while not is_listening(port) and time.monotonic() < end and server.poll() is None:
            time.sleep(0.05)
        client = subprocess.run(
            [*words, os.environ["RIG_ADDR"]],
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
            return float(fields[case.column])
    raise SystemExit(f"{' '.join(words)}: {client.stdout}{client.stderr}{said}")


def quartiles(values: list[float]) -> tuple[float, float, float]:
    """Return the lower quartile, the median and the upper quartile."""
    lower, middle, upper = statistics.quantiles(values, n=4)
    return lower, middle, upper


def compare(case: Case, pairs: int, ports: list[int]) -> dict[str, object]:
    """Run both in turns, each first in every other pair, and sum up."""
    mine, rival = [], []
    for pair in range(pairs):
        if pair % 2 == 0:
            mine.append(ours(case))
            rival.append(theirs(case, ports.pop()))
        else:
            rival.append(theirs(case, ports.pop()))
            mine.append(ours(case))
    ratios = [a / b for a, b in zip(mine, rival, strict=True)]
    ratio = quartiles(ratios)
    is_met = ratio[1] <= case.target if case.is_latency else ratio[1] >= case.target
    unit = "us" if case.is_latency else "MiB/s"
    sign = "<=" if case.is_latency else ">="
    print(
        f"{case.name:<44} {case.tool:<13} {statistics.median(rival):9.1f} {unit:<6}"
        f" ours {statistics.median(mine):9.1f} {unit:<6} ratio {ratio[1]:.3f}"
        f" ({ratio[0]:.3f} to {ratio[2]:.3f}), wanted {sign} {case.target}:"
        f" {'yes' if is_met else 'NO'}",
        flush=True,
    )
    return {"case": case.name, "tool": case.tool, "unit": unit, "ours": mine, "theirs": rival}


def main() -> int:
    """Compare every case; 0 if all ran, whatever the ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    ports = list(range(FIRST_PORT, FIRST_PORT + arguments.pairs * len(CASES)))
    kernel, means = os.uname().release, os.environ["RIG_MEANS"]
    print(f"one host, {means}, kernel {kernel}, {os.environ['RIG_DEVICE']}; medians, quartiles")
    rows = [compare(case, arguments.pairs, ports) for case in CASES]
    if arguments.out is not None:
        kept = {"kernel": kernel, "means": means, "pairs": arguments.pairs, "rows": rows}
        arguments.out.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
