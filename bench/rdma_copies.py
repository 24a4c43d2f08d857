"""The copy variant over verbs beside UCX's tagged messages over the same device, on one host.

Usage: bash ci/rig/run.sh --memory 3072 -- .venv/bin/python bench/rdma_copies.py [--rounds 3]
           [--sizes 262144 1048576 4194304] [--minutes 9] [--out FILE]

A rival that we made ourselves has to be as fast as what others would use in its place
(suite/copies.py, which has the same over shared memory and TCP): tensors in a row, one way. UCX has
its turns over rc_verbs and ud_verbs, with the rig's device alone. One of them that does not work
is named with its own words, and the others go on. The file is written after each turn.
"""

from __future__ import annotations

import argparse
import functools
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))  # run as a file: `bench` is beside it
from bench import rdma
from bench.benchlib import programs, rig
from bench.benchlib.pairs import run_pair
from bench.benchlib.record import Record, number
from bench.benchlib.verdict import size_text
from bench.suite import samples
from bench.suite.copies import VARIANT, WANTED, each_ns

KIB, MIB = 1 << 10, 1 << 20
SIZES = (256 * KIB, MIB, 4 * MIB)
TRANSPORTS = {"rc_verbs": "rc_v,self", "ud_verbs": "ud_verbs,self"}  # rc_v: set up by UD
VOLUME = 32 * MIB  # of a turn of UCX and size, as a step of the variant
PATIENCE_S = 60.0
TURN_PATIENCE_S = 300.0  # of the variant: an emulated machine takes half a minute to import torch
Rates = dict[int, float]  # MiB/s by size


def variant(sizes: Sequence[int]) -> Rates:
    """Return a turn of the variant: the median of its steps."""
    printed = run_pair(
        "copy_rate",
        *("--sizes", ",".join(map(str, sizes))),
        environment={"RDMATENSOR_TRANSPORT": "verbs"},
        timeout_s=TURN_PATIENCE_S,
    )
    rates = {}
    for one in printed:
        step_ns = statistics.median(samples.raw_of(one))
        size = int(number(one, "size"))
        rates[size] = size * number(one, "tensors") / MIB / (step_ns * 1e-9)
    return rates


def ucx(transport: str, sizes: Sequence[int], volume: int = VOLUME) -> Rates:
    """Return a turn of UCX's."""
    rates = {}
    for size in sizes:
        words = ["-t", "tag_bw", "-s", str(size), "-n", str(max(5, volume // size)), "-w", "5"]
        port = programs.free_port()
        printed = programs.run_ucx(words, TRANSPORTS[transport], port, PATIENCE_S)
        rates[size] = size / MIB / (each_ns(printed) * 1e-9)
    return rates


def why_missing(transport: str) -> str:
    """Return what UCX says where a transport of its does not work here; else nothing."""
    try:
        ucx(transport, [8], 8)
    except subprocess.TimeoutExpired:
        return f"ucx_perftest moves nothing over {transport} in {PATIENCE_S:g} s"
    except (RuntimeError, OSError) as error:
        said = [line for line in str(error).splitlines() if re.search(r"\b(ERROR|Fatal)\b", line)]
        return said[0].partition("] ")[2].strip() if said else str(error)
    return ""


def rows_of(found: Mapping[str, Sequence[Rates]], sizes: Sequence[int]) -> list[Record]:
    """Return a row for each size: all turns, and quartiles of the variant's rate over UCX's."""
    rows: list[Record] = []
    for size in sizes:
        turns = {who: [rates[size] for rates in of] for who, of in found.items()}
        mine = turns[VARIANT]
        ratios = {
            who: rdma.quartiles([a / b for a, b in zip(mine, theirs, strict=True)])
            for who, theirs in turns.items()
            if who != VARIANT and len(mine) == len(theirs) >= rdma.LEAST_ROUNDS
        }
        rows.append({"size": size, "mib_per_s": turns, "ratios": ratios})
    return rows


def show(row: Record) -> None:
    """Print a line for each rival of a size, or what the variant does where there is none."""
    turns, ratios = row["mib_per_s"], row["ratios"]
    assert isinstance(turns, dict)
    assert isinstance(ratios, dict)
    mine = statistics.median(turns[VARIANT])
    if not ratios:
        print(f"{size_text(number(row, 'size')):>8}  {VARIANT} {mine:.1f} MiB/s", flush=True)
    for who, (lower, middle, upper) in ratios.items():
        print(
            f"{size_text(number(row, 'size')):>8}  {VARIANT} {mine:.1f} MiB/s  {who}"
            f" {statistics.median(turns[who]):.1f} MiB/s  ratio {middle:.2f} ({lower:.2f} to"
            f" {upper:.2f}), wanted >= {WANTED}: {'yes' if middle >= WANTED else 'NO'};"
            f" {len(turns[who])} turns",
            flush=True,
        )


def main() -> int:
    """Let all have their turns; 0 if the variant ran, whatever the ratios."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3, help="turns of each; 3 at least")
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--minutes", type=float, default=rdma.MINUTES, help="about, of all")
    parser.add_argument("--out", type=Path, default=Path("rdma_copies.json"), help="in RIG_OUT")
    arguments = parser.parse_args()
    if arguments.rounds < rdma.LEAST_ROUNDS:
        parser.error("--rounds: quartiles want three turns at least")
    end_s = time.monotonic() + 60 * arguments.minutes
    kept = rig.Kept()
    os.environ["UCX_NET_DEVICES"] = f"{os.environ['RIG_DEVICE']}:1"
    os.environ["UCX_IB_GID_INDEX"] = os.environ["RIG_GID_INDEX"]
    print(f"one host, {os.environ['RIG_MEANS']}; tensors in a row, one way", flush=True)
    missing = {name: why for name in TRANSPORTS if (why := why_missing(name))}
    for name, why in missing.items():
        print(f"missing: UCX tag, {name} ({why})", flush=True)
    acts: dict[str, Callable[[], Rates]] = {
        VARIANT: functools.partial(variant, arguments.sizes),
        **{
            f"UCX tag, {name}": functools.partial(ucx, name, arguments.sizes)
            for name in TRANSPORTS
            if name not in missing
        },
    }
    options = {"rounds": arguments.rounds, "missing": missing}

    def keep(found: Mapping[str, Sequence[Rates]]) -> None:
        kept.so_far(arguments.out, rows_of(found, arguments.sizes), **options)

    found = rdma.take_turns(acts, arguments.rounds, end_s, after=keep)
    rows = rows_of(found, arguments.sizes)
    for row in rows:
        show(row)
    kept.finish(arguments.out, rows, **options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
