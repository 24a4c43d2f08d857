"""Compare round trips over verbs with gRPC C++ over TCP, and with perftest, in turns, on one host.

Usage: bash ci/rig/run.sh -- .venv/bin/python bench/rdma_grpc.py [--rounds 10] [--out FILE]

Needs build/rivals/grpc_rival (bench/rivals/grpc/setup.sh) and build/bench/bench/verbs_write
(`cmake -S . -B build/bench -DCMAKE_BUILD_TYPE=Release -DRDMATENSOR_BUILD_BENCH=ON`). Everybody
moves the same bytes there and back: verbs_write by write + notify (spins, then sleeps),
ib_write_lat by writes that are polled for in memory (spins), gRPC by an echo that both ends copy to
where it is needed (sleeps in epoll). SoftRoCE is software, and under emulation nothing but ratios
counts: those to gRPC, and how much of perftest's ratio to gRPC ours reaches.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT))  # run as a file: `bench` lies beside this file's folder
from bench import rdma  # noqa: E402

GRPC = ROOT / "build" / "rivals" / "grpc_rival"
OURS = ROOT / "build" / "bench" / "bench" / "verbs_write"
FIRST_PORT = 18800
LIMIT_S = 240.0
KIB, MIB = 1 << 10, 1 << 20
SIZES = {8: 400, 4 * KIB: 400, 64 * KIB: 100, MIB: 20, 64 * MIB: 5}  # bytes: trips
SHARE_WANTED = 0.95  # of perftest's ratio to gRPC


def run(words: list[str]) -> dict[str, object]:
    """Run a program that prints a line of JSON."""
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(words)}: status {done.returncode}: {done.stderr.strip()}")
    found: dict[str, object] = json.loads(done.stdout)
    return found


def ours_us(size_bytes: int, trips: int) -> float:
    """Return our median round trip."""
    words = [str(OURS), "--latency", "--size", str(size_bytes), "--count", str(trips)]
    return 2 * float(str(run(words)["one_way_ns"])) / 1000


def perftest_us(size_bytes: int, trips: int, port: int) -> float:
    """Return ib_write_lat's median round trip."""
    case = rdma.Case("", ("ib_write_lat",), size_bytes, trips, 1, 4, 0)
    return 2 * rdma.theirs(case, case.tools[0], port).value


def grpc_us(kind: str, address: str, size_bytes: int, trips: int) -> float:
    """Return gRPC's median round trip."""
    words = [str(GRPC), kind, address, str(size_bytes), str(trips)]
    return float(str(run(words)["round_trip_us"]))


def compare(size_bytes: int, trips: int, rounds: int, ports: list[int]) -> dict[str, object]:
    """Let everybody have a turn in each round, beginning with another one each time."""
    address = f"{os.environ['RIG_ADDR']}:{FIRST_PORT}"
    turns = {
        "ours": lambda: ours_us(size_bytes, trips),
        "perftest": lambda: perftest_us(size_bytes, trips, ports.pop()),
        "grpc unary": lambda: grpc_us("echo", address, size_bytes, trips),
        "grpc stream": lambda: grpc_us("echo-all", address, size_bytes, trips),
    }
    found: dict[str, list[float]] = {name: [] for name in turns}
    names = list(turns)
    for number in range(rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            found[name].append(turns[name]())
    return {"size": size_bytes, "trips": trips, "round_trip_us": found, **ratios(found)}


def ratios(found: dict[str, list[float]]) -> dict[str, object]:
    """Return medians of the ratios of each round."""

    def of(above: str, below: str) -> float:
        pairs = zip(found[above], found[below], strict=True)
        return float(statistics.median(a / b for a, b in pairs))

    return {
        "ours_to_unary": of("grpc unary", "ours"),
        "ours_to_stream": of("grpc stream", "ours"),
        "perftest_to_unary": of("grpc unary", "perftest"),
        "perftest_to_stream": of("grpc stream", "perftest"),
        "share_of_perftest": of("perftest", "ours"),
    }


def show(row: dict[str, object]) -> None:
    """Print a row of the table."""
    found = row["round_trip_us"]
    assert isinstance(found, dict)
    times = "  ".join(f"{name} {statistics.median(us):.0f} us" for name, us in found.items())
    share = float(str(row["share_of_perftest"]))
    print(
        f"{row['size']:>9} B  {times}  gRPC unary/ours {row['ours_to_unary']:.2f}"
        f" (perftest {row['perftest_to_unary']:.2f}), stream/ours {row['ours_to_stream']:.2f}"
        f" (perftest {row['perftest_to_stream']:.2f}); share of perftest's ratio {share:.3f},"
        f" wanted >= {SHARE_WANTED}: {'yes' if share >= SHARE_WANTED else 'NO'}",
        flush=True,
    )


def main() -> int:
    """Compare every size; 0 if all ran, whatever the ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--sizes", type=int, nargs="*", default=list(SIZES))
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    kernel, means = os.uname().release, os.environ["RIG_MEANS"]
    print(f"one host, {means}, kernel {kernel}; round trips, medians of {arguments.rounds} turns")
    first = FIRST_PORT + 1
    ports = list(range(first, first + arguments.rounds * len(arguments.sizes)))
    words = [str(GRPC), "serve", f"{os.environ['RIG_ADDR']}:{FIRST_PORT}"]
    server = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        if server.stdout.readline().strip() != "ready":
            raise SystemExit("gRPC's server did not start")
        rows = []
        for size_bytes in arguments.sizes:
            rows.append(compare(size_bytes, SIZES[size_bytes], arguments.rounds, ports))
            show(rows[-1])
    finally:
        server.kill()
    if arguments.out is not None:
        kept = {"kernel": kernel, "means": means, "rounds": arguments.rounds, "rows": rows}
        arguments.out.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
