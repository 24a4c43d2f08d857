"""One of two processes that call all_reduce through torch.distributed, over several backends.

The backends take turns in the same processes, on the same tensors: rdmatensor, Gloo, and "fake",
torch's own backend for tests, which does nothing at all: what a call costs without any backend.
rdmatensor also works on a tensor that was born in its arena ("rdmatensor arena").
Rank 0 prints lines of JSON, one for each contestant and size.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore
from torch.testing._internal.distributed import fake_pg  # registers "fake"

import rdmatensor.torch

ARENA = "rdmatensor arena"
BACKENDS = ("rdmatensor", "fake", "gloo")
LARGE_BYTES = 1 << 20  # from here on a sample is one call


def calls_of(size: int) -> int:
    """Calls in one sample, which is their median."""
    return 200 if size < LARGE_BYTES else 1


def measure(group: dist.ProcessGroup, tensor: torch.Tensor, calls: int) -> int:
    """Nanoseconds of the median of `calls` all_reduces in a row."""
    taken_ns = []
    for _ in range(calls):
        started_ns = time.perf_counter_ns()
        dist.all_reduce(tensor, group=group)
        taken_ns.append(time.perf_counter_ns() - started_ns)
    return sorted(taken_ns)[calls // 2]


def check(group: dist.ProcessGroup, name: str, rank: int, size: int) -> None:
    """A separate pass: the sums are right (fake leaves every tensor as it is)."""
    tensor = torch.full((size // 4,), float(rank + 1))
    dist.all_reduce(tensor, group=group)
    wanted = float(rank + 1) if name == "fake" else 3.0
    if not bool((tensor == wanted).all()):
        raise RuntimeError(f"{name}: all_reduce gave {tensor[:4].tolist()}, not {wanted}")


def turns(
    groups: dict[str, dist.ProcessGroup], rank: int, size: int, rounds: int
) -> dict[str, list[int]]:
    """Interleaved samples of each backend, after a round that does not count."""
    samples: dict[str, list[int]] = {name: [] for name in groups}
    for name, group in groups.items():
        check(group, name, rank, size)
    private = torch.zeros(size // 4)
    born = rdmatensor.torch.zeros(size // 4)
    for round_number in range(rounds + 1):
        for name, group in groups.items():
            tensor = born if name == ARENA else private
            dist.barrier(group=groups["gloo"])
            measure(group, tensor, 1 + calls_of(size) // 5)  # both are here, and warm
            took_ns = measure(group, tensor, calls_of(size))
            if round_number > 0:
                samples[name].append(took_ns)
    return samples


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--sizes", default="8,65536,1048576,67108864")
    arguments = parser.parse_args()
    rank: int = arguments.rank
    cores = sorted(os.sched_getaffinity(0))
    torch.set_num_threads(1)
    limit = timedelta(seconds=60)
    store = FileStore(str(arguments.folder / "c10d"), 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=limit)
    groups = {name: dist.new_group(backend=name, timeout=limit) for name in BACKENDS}
    groups[ARENA] = groups["rdmatensor"]
    assert fake_pg is not None
    os.sched_setaffinity(0, {cores[rank % len(cores)]})  # this thread only
    for size in (int(word) for word in str(arguments.sizes).split(",")):
        samples = turns(groups, rank, size, arguments.rounds if size < LARGE_BYTES << 4 else 8)
        for name, taken_ns in samples.items():
            ordered = sorted(taken_ns)
            record = {
                "contestant": name,
                "size": size,
                "median_ns": ordered[len(ordered) // 2],
                "p10": ordered[len(ordered) // 10],
                "p90": ordered[-1 - len(ordered) // 10],
                "samples": len(ordered),
                "raw_ns": taken_ns,
            }
            if rank == 0:
                sys.stdout.write(json.dumps(record) + "\n")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
