"""Show what of a training step is exposed to communication where buckets leave during backward.

Usage: python -m bench.overlap [--ranks 2] [--layers 20] [--width 512] [--turns 3] [--transport shm]
           [--out FILE]

A model of as many layers as buckets, trained by DistributedDataParallel on rdmatensor, on Gloo, and
without any: a turn is a set of fresh processes in which the three alternate, step by step. Exposed
is what a step of the slowest rank takes beyond one without communication, between medians of a
turn; the medians of the turns are shown, and whether ours is at most half of Gloo's. The ranks
share this machine's cores: with as many ranks as cores nothing hides but what the cores would wait
for.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path

from bench.benchlib.machine import ROOT, Watch, stamp
from bench.benchlib.pairs import run_ranks
from bench.benchlib.record import Record, Result, Run, number, text, write
from bench.suite import samples
from bench.suite.collectives import by_key

ALONE = "alone"
BACKENDS = ("rdmatensor", "gloo")
MOST_OF_THEIRS = 0.5  # of what is exposed with Gloo
TURN_PATIENCE_S = 300.0


def turn(arguments: argparse.Namespace) -> list[Record]:
    """Run fresh processes once; return each contestant's steps, and their processor time.

    Raises RuntimeError where there are not as many buckets as layers.
    """
    printed = run_ranks(
        "overlap",
        arguments.ranks,
        *("--ranks", str(arguments.ranks)),
        *("--backends", ",".join(BACKENDS)),
        *("--layers", str(arguments.layers)),
        *("--width", str(arguments.width)),
        *("--rows", str(arguments.rows)),
        *("--rounds", str(arguments.rounds)),
        environment={"PYTHONPATH": str(ROOT), "RDMATENSOR_TRANSPORT": arguments.transport},
        timeout_s=TURN_PATIENCE_S,
    )
    return [
        record_of(of_ranks, arguments.layers, arguments.transport)
        for of_ranks in by_key(printed).values()
    ]


def record_of(of_ranks: list[Record], layers: int, transport: str) -> Record:
    """Return the record of a turn: steps of the slowest rank, processor time of all together."""
    buckets = int(number(of_ranks[0], "buckets"))
    if of_ranks[0]["contestant"] != ALONE and buckets != layers:
        raise RuntimeError(f"{buckets} buckets of {layers} layers")
    slowest = [max(several) for several in zip(*map(samples.raw_of, of_ranks), strict=True)]
    spent = [sum(several) for several in zip(*(_cpu_of(one) for one in of_ranks), strict=True)]
    fields: Record = {
        "topic": "overlap",
        "transport": transport,
        "buckets": buckets,
        **{name: of_ranks[0][name] for name in ("contestant", "op", "size", "ranks")},
        "timed": "a step, slowest rank",
        "call_cpu_ns": samples.quantile(spent, 0.5),
    }
    return samples.turn(fields, slowest)


def _cpu_of(record: Record) -> list[int]:
    found = record["cpu_ns"]
    assert isinstance(found, list)
    return [int(ns) for ns in found]


def lines_of(found: list[list[Record]]) -> list[str]:
    """Return the table: medians over turns, in ms; our exposed time by theirs, and the target."""
    turns = [
        {
            text(one, "contestant"): (number(one, "median_ns"), number(one, "call_cpu_ns"))
            for one in of_turn
        }
        for of_turn in found
    ]
    lines = [f"{'ms':<12}{'step':>10}{'exposed':>10}{'CPU':>10}"]
    exposed: dict[str, float] = {}
    for name in (*BACKENDS, ALONE):
        step, spent = (statistics.median(one[name][i] for one in turns) / 1e6 for i in (0, 1))
        exposed[name] = statistics.median(one[name][0] - one[ALONE][0] for one in turns) / 1e6
        lines.append(f"{name:<12}{step:10.2f}{exposed[name]:10.2f}{spent:10.2f}")
    ours, theirs = (exposed[name] for name in BACKENDS)
    names = f"exposed, {BACKENDS[0]} / {BACKENDS[1]}"
    if theirs <= 0:
        return [*lines, f"{names}: nothing to compare with"]
    word = "met" if ours / theirs <= MOST_OF_THEIRS else "short"
    target = f"target: exposed at most {MOST_OF_THEIRS:g} of what {BACKENDS[1]} exposes: {word}"
    return [*lines, f"{names}: {ours / theirs:.2f}", target]


def main() -> int:
    """Take the turns, print the table; 0 whatever came out."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--layers", type=int, default=20)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--rows", type=int, default=256, help="of the batch")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--transport", default="shm", choices=("shm", "tcp"))
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    with Watch() as watch:
        turns = [turn(arguments) for _ in range(arguments.turns)]
    print("\n".join(lines_of(turns)))
    print(
        f"{arguments.ranks} ranks, {arguments.layers} buckets of {4 * arguments.width**2} bytes, "
        f"{arguments.transport}; others kept {watch.foreign_cpus:.1f} cores busy"
    )
    if arguments.out is not None:
        records = samples.merge([record for of_turn in turns for record in of_turn])
        command = "python -m bench.overlap " + " ".join(
            f"--{name} {getattr(arguments, name)}"
            for name in ("ranks", "layers", "width", "rows", "turns", "rounds", "transport")
        )
        run = Run(records, watch.foreign_cpus, watch.seconds)
        write(Result("overlap", command, stamp(), [run]), arguments.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
