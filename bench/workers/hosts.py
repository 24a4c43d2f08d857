"""One of several processes that are told to be on several hosts, though they are on one.

Every algorithm is a group of its own; they and Gloo take turns in the same processes, as in
collectives.py, on the same tensors. Ranks with the same digit in --layout share memory, others
reach each other by TCP over loopback. Prints lines of JSON, as collectives.py does.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import cast

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore

import rdmatensor.torch  # noqa: F401  registers "rdmatensor"
from bench.workers import operations, rows
from bench.workers.collectives import Gloo

PATIENCE = timedelta(seconds=120)
GLOO = "gloo"


def group_of(algorithm: str) -> dist.ProcessGroup:
    """Return a group that has what it needs: the algorithm is looked at in its first operation."""
    if algorithm == GLOO:
        return cast("dist.ProcessGroup", dist.new_group(backend=GLOO, timeout=PATIENCE))
    os.environ["RDMATENSOR_ALGO"] = algorithm
    group = cast("dist.ProcessGroup", dist.new_group(backend="rdmatensor", timeout=PATIENCE))
    dist.barrier(group=group)
    return group


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--layout", required=True)
    parser.add_argument("--algorithms", required=True)
    parser.add_argument("--operations", required=True)
    parser.add_argument("--sizes", required=True)
    parser.add_argument("--rounds", type=int, default=10)
    arguments = parser.parse_args()
    rank, layout = int(arguments.rank), str(arguments.layout)
    ranks = len(layout)
    os.environ["RDMATENSOR_TEST_HOST"] = f"host{layout[rank]}"
    torch.set_num_threads(1)
    store = FileStore(str(arguments.folder / "c10d"), ranks)
    dist.init_process_group(GLOO, store=store, rank=rank, world_size=ranks, timeout=PATIENCE)
    binds: dict[str, rows.Bind] = {
        name: functools.partial(operations.through_torch, group=group_of(name))
        for name in [*str(arguments.algorithms).split(","), GLOO]
    }
    is_shared = ranks > len(os.sched_getaffinity(0))
    meeting, limits = Gloo(), rows.Limits(arguments.rounds, math.inf, is_shared)
    for name in str(arguments.operations).split(","):
        for size in [0] if name == "barrier" else map(int, str(arguments.sizes).split(",")):
            operation = operations.Operation(name, size, rank, ranks)
            found = rows.measure(binds, set(), operation, rows.PLAIN, limits, meeting)
            for algorithm, of_one in found.items():
                record = {
                    "contestant": algorithm,
                    "op": name,
                    "size": operation.size_bytes,
                    "ranks": ranks,
                    "rank": rank,
                    "raw_ns": of_one.raw_ns,
                    "cpu_ns": of_one.cpu_ns,
                    "each_ns": of_one.each_ns,
                }
                sys.stdout.write(json.dumps(record) + "\n")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
