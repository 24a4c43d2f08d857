"""One tensor over verbs in four ways: what zero copy gains, and known addresses, on one host.

Usage: bash ci/rig/run.sh --memory 3072 -- .venv/bin/python bench/rdma_tensors.py
           [--rounds 10] [--sizes 4096 65536 1048576 8388608] [--out FILE]

bench/core/tensors.c has the ways, which take turns in one process: a static slot; a dynamic one,
whose shape and address travel; a private ring at the receiver from which the tensor is copied out;
and the same of messages that it was first packed into. Of the ring's chunks those are taken with
which the copy was fastest in three rounds of few trips before, so that it is a good one.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))  # run as a file: `bench` is beside it
from bench import rdma
from bench.benchlib import programs, rig
from bench.benchlib.record import Record, number, text
from bench.benchlib.verdict import size_text, time_text

KIB, MIB = 1 << 10, 1 << 20
TRIPS = {4 * KIB: 20, 64 * KIB: 20, MIB: 8, 8 * MIB: 2}  # bytes: of each way and round
CHUNKS = (16 * KIB, 64 * KIB, 256 * KIB, MIB)
FEW_ROUNDS, FEW_TRIPS = 3, 2
RAW_MOST = 200  # samples that the program prints
SLOT, DYNAMIC, COPY, PACKED = "slot", "dynamic", "copy", "serialised"
# Whose time over whose.
GAINS = ((DYNAMIC, SLOT), (COPY, SLOT), (PACKED, COPY), (PACKED, SLOT))


def run(size: int, chunk: int, rounds: int, trips: int) -> list[Record]:
    """Return a record of each way, with the trips of all rounds."""
    words = ["--transport", "verbs", "--size", str(size), "--chunk", str(chunk)]
    words += ["--rounds", str(rounds), "--trips", str(trips)]
    return programs.run_words([str(rdma.PROGRAM.parent / "tensors"), *words], rdma.LIMIT_S * 2)


def best_chunk(size: int) -> int:
    """Return the chunk with which the copy is fastest; one tensor in one chunk is the largest."""
    median_ns = {}
    for chunk in CHUNKS[: 1 + sum(chunk < size for chunk in CHUNKS)]:
        found = run(size, chunk, FEW_ROUNDS, FEW_TRIPS)
        (copy,) = (one for one in found if text(one, "contestant") == COPY)
        median_ns[chunk] = number(copy, "median_ns")
    return min(median_ns, key=lambda chunk: median_ns[chunk])


def turns_of(record: Record, trips: int) -> list[list[float]]:
    """Return the trips of each round."""
    raw_ns = record["raw_ns"]
    assert isinstance(raw_ns, list)
    return [raw_ns[first : first + trips] for first in range(0, len(raw_ns), trips)]


def compare(size: int, rounds: int) -> Record:
    """Let the four ways have a turn in each round, and print."""
    trips, chunk = TRIPS.get(size, 2), best_chunk(size)
    found = run(size, chunk, rounds, trips)
    turns = {text(one, "contestant"): turns_of(one, trips) for one in found}
    medians = {name: [statistics.median(trips) for trips in of] for name, of in turns.items()}
    gains = {
        f"{above} / {below}": rdma.quartiles(
            [a / b for a, b in zip(medians[above], medians[below], strict=True)]
        )
        for above, below in GAINS
    }
    times = "  ".join(f"{name} {time_text(statistics.median(of))}" for name, of in medians.items())
    ratios = "  ".join(f"{name} {m:.2f} ({a:.2f} to {b:.2f})" for name, (a, m, b) in gains.items())
    print(f"{size_text(size):>8}  {times}; chunks of {size_text(chunk)}\n    {ratios}", flush=True)
    return {"size": size, "chunk": chunk, "trips": trips, "raw_ns": turns, "gains": gains}


def main() -> int:
    """Compare every size; 0 if all ran."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=10, help="turns of each; 3 at least")
    parser.add_argument("--sizes", type=int, nargs="+", default=list(TRIPS), help="to 8 MiB")
    parser.add_argument("--out", type=Path, default=Path("rdma_tensors.json"), help="in RIG_OUT")
    arguments = parser.parse_args()
    most = RAW_MOST // max(TRIPS.values())
    if not rdma.LEAST_ROUNDS <= arguments.rounds <= most:
        parser.error(f"--rounds: from {rdma.LEAST_ROUNDS} to {most}, of which all trips are told")
    if max(arguments.sizes) > max(TRIPS):
        parser.error(f"--sizes: at most {size_text(max(TRIPS))}")
    kept = rig.Kept()
    print(
        f"one host, {os.environ['RIG_MEANS']}; half a round trip, read; medians of"
        f" {arguments.rounds} turns, quartiles of ratios",
        flush=True,
    )
    rows: list[Record] = []
    for size in arguments.sizes:
        rows.append(compare(size, arguments.rounds))
        kept.so_far(arguments.out, rows, rounds=arguments.rounds)
    kept.finish(arguments.out, rows, rounds=arguments.rounds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
