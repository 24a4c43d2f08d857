"""Compare round trips over verbs with gRPC C++ over TCP, and with perftest, in turns, on one host.

Usage: bash ci/rig/run.sh --memory 3072 -- .venv/bin/python bench/rdma_grpc.py [--rounds 10]
           [--sizes 8 4096 65536 1048576 67108864] [--minutes 9] [--python] [--out FILE]

Needs build/rivals/grpc_rival (bench/rivals/grpc/setup.sh) and build/bench/bench/verbs_write
(`cmake -S . -B build/bench -DCMAKE_BUILD_TYPE=Release -DRDMATENSOR_BUILD_BENCH=ON`). Everybody
moves the same bytes there and back: verbs_write by write + notify (spins, then sleeps),
ib_write_lat by writes that are polled for in memory (spins), gRPC by an echo that both ends copy to
where it is needed (sleeps in epoll). SoftRoCE is software, and under emulation nothing but ratios
counts: those to gRPC, and how much of perftest's ratio to gRPC ours reaches.

--python: besides, gRPC's unary calls from Python (workers/grpc_echo.py), which copy as the echo
does; each turn of theirs starts an interpreter, which takes its time under emulation.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))  # run as a file: `bench` is beside it
from bench import rdma
from bench.benchlib import rig
from bench.benchlib.programs import RIVALS_DIR

GRPC = RIVALS_DIR / "grpc_rival"
OURS = rdma.PROGRAM
PYTHON_GRPC = Path(__file__).resolve().parent / "workers" / "grpc_echo.py"
UNARY, STREAM, PYTHON = "grpc unary", "grpc stream", "grpc unary, Python"
FIRST_PORT = 18800
LIMIT_S = 240.0
KIB, MIB = 1 << 10, 1 << 20
# Bytes: trips; an odd number of few has a middle. Those of 64 MiB take seconds each, gRPC has five
# more before, and perftest makes five.
SIZES = {8: 400, 4 * KIB: 400, 64 * KIB: 100, MIB: 20, 64 * MIB: 3}
SHARE_WANTED = 0.95  # of perftest's ratio to gRPC


def run(words: list[str]) -> dict[str, object]:
    """Run a program that prints a line of JSON."""
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(words)}: status {done.returncode}: {done.stderr.strip()}")
    found: dict[str, object] = json.loads(done.stdout)
    return found


@dataclass(frozen=True, slots=True)
class Turn:
    """A turn's median round trip in us, and its single ones as far as they are told."""

    median_us: float
    raw_us: tuple[float, ...]


def ours_us(size_bytes: int, trips: int) -> Turn:
    """Return our round trips."""
    words = [str(OURS), "--latency", "--size", str(size_bytes), "--count", str(trips)]
    line = run(words)
    raw = tuple(2 * us for us in rdma.raw_us(line.get("raw_ns")))
    return Turn(2 * float(str(line["one_way_ns"])) / 1000, raw)


def perftest_us(size_bytes: int, trips: int, port: int) -> Turn:
    """Return ib_write_lat's round trips."""
    case = rdma.Case("", ("ib_write_lat",), size_bytes, trips, 1, 4, 0)
    turn = rdma.theirs(case, case.tools[0], port)
    return Turn(2 * turn.value, tuple(2 * us for us in turn.raw))


def grpc_us(program: Sequence[str], kind: str, address: str, size_bytes: int, trips: int) -> Turn:
    """Return gRPC's round trips."""
    line = run([*program, kind, address, str(size_bytes), str(trips)])
    raw = line.get("raw_us", [])
    assert isinstance(raw, list)
    return Turn(float(str(line["round_trip_us"])), tuple(raw))


def servers_of(*, has_python: bool) -> dict[str, tuple[list[str], str]]:
    """Return the programs of gRPC that take part, and where the server of each listens."""
    host = os.environ["RIG_ADDR"]
    found = {UNARY: ([str(GRPC)], f"{host}:{FIRST_PORT}")}
    if has_python:
        found[PYTHON] = ([sys.executable, str(PYTHON_GRPC)], f"{host}:{FIRST_PORT - 1}")
    return found


@contextmanager
def serving(program: Sequence[str], address: str) -> Iterator[None]:
    """Keep a server of gRPC meanwhile."""
    with subprocess.Popen(
        [*program, "serve", address], stdout=subprocess.PIPE, text=True
    ) as server:
        try:
            assert server.stdout is not None
            if server.stdout.readline().strip() != "ready":
                raise SystemExit(f"gRPC's server did not start: {' '.join(program)}")
            yield
        finally:
            server.kill()


def compare(
    size_bytes: int,
    trips: int,
    rounds: int,
    ports: list[int],
    end_s: float,
    servers: Mapping[str, tuple[Sequence[str], str]],
) -> dict[str, object]:
    """Let everybody have a turn in each round."""
    grpc, address = servers[UNARY]
    turns = {
        "ours": lambda: ours_us(size_bytes, trips),
        "perftest": lambda: perftest_us(size_bytes, trips, ports.pop()),
        UNARY: lambda: grpc_us(grpc, "echo", address, size_bytes, trips),
        STREAM: lambda: grpc_us(grpc, "echo-all", address, size_bytes, trips),
    }
    if PYTHON in servers:
        turns[PYTHON] = lambda: grpc_us(
            servers[PYTHON][0], "echo", servers[PYTHON][1], size_bytes, trips
        )
    taken = rdma.take_turns(turns, rounds, end_s)
    found = {name: [turn.median_us for turn in of] for name, of in taken.items()}
    raw = {name: [turn.raw_us for turn in of] for name, of in taken.items()}
    return {
        "size": size_bytes,
        "trips": trips,
        "round_trip_us": found,
        "raw_us": raw,
        **ratios(found),
    }


def ratios(found: dict[str, list[float]]) -> dict[str, object]:
    """Return medians of the ratios of each round."""

    def of(above: str, below: str) -> float:
        pairs = zip(found[above], found[below], strict=True)
        return float(statistics.median(a / b for a, b in pairs))

    return {
        "ours_to_unary": of(UNARY, "ours"),
        "ours_to_stream": of(STREAM, "ours"),
        "perftest_to_unary": of(UNARY, "perftest"),
        "perftest_to_stream": of(STREAM, "perftest"),
        "share_of_perftest": of("perftest", "ours"),
        **({"ours_to_python": of(PYTHON, "ours")} if PYTHON in found else {}),
    }


def show(row: dict[str, object]) -> None:
    """Print a row of the table."""
    found = row["round_trip_us"]
    assert isinstance(found, dict)
    times = "  ".join(f"{name} {statistics.median(us):.0f} us" for name, us in found.items())
    share = float(str(row["share_of_perftest"]))
    python = f", Python's unary/ours {row['ours_to_python']:.2f}" if PYTHON in found else ""
    print(
        f"{row['size']:>9} B  {times}  gRPC unary/ours {row['ours_to_unary']:.2f}"
        f" (perftest {row['perftest_to_unary']:.2f}), stream/ours {row['ours_to_stream']:.2f}"
        f" (perftest {row['perftest_to_stream']:.2f}){python};"
        f" share of perftest's ratio {share:.3f},"
        f" wanted >= {SHARE_WANTED}: {'yes' if share >= SHARE_WANTED else 'NO'};"
        f" {len(found['ours'])} turns",
        flush=True,
    )


def main() -> int:
    """Compare every size; 0 if all ran, whatever the ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--sizes", type=int, choices=SIZES, nargs="+", default=list(SIZES))
    parser.add_argument("--minutes", type=float, default=rdma.MINUTES, help="about, of all sizes")
    parser.add_argument("--out", type=Path, default=Path("rdma_grpc.json"), help="in RIG_OUT")
    parser.add_argument("--python", action="store_true", help="gRPC from Python too")
    arguments = parser.parse_args()
    kept = rig.Kept()
    kernel, means = os.uname().release, os.environ["RIG_MEANS"]
    print(f"one host, {means}, kernel {kernel}; round trips, medians of {arguments.rounds} turns")
    first = FIRST_PORT + 1
    ports = list(range(first, first + arguments.rounds * len(arguments.sizes)))
    servers = servers_of(has_python=arguments.python)
    rows: list[dict[str, object]] = []
    options = {"rounds": arguments.rounds, "python": arguments.python}
    with ExitStack() as stack:
        for program, address in servers.values():
            stack.enter_context(serving(program, address))
        budget = rdma.Budget(arguments.minutes, len(arguments.sizes))
        for size in arguments.sizes:
            end_s = budget.next_end_s()
            rows.append(compare(size, SIZES[size], arguments.rounds, ports, end_s, servers))
            show(rows[-1])
            kept.so_far(arguments.out, rows, **options)
    kept.finish(arguments.out, rows, **options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
