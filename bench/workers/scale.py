"""all_reduce by each algorithm that RDMATENSOR_ALGO names, with growing numbers of ranks.

This process imports torch and rdmatensor, and forks the ranks of each number; each algorithm has a
group of its own, and all take turns in each round, on every size, after a barrier of Gloo. A sample
is the mean of some calls in a row; every rank prints its own, as lines of JSON, and the slowest
rank of each sample counts. What each algorithm delivers is compared in a pass of its own, first.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import cast

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore

import rdmatensor.torch  # noqa: F401  registers "rdmatensor"
from rdmatensor.distributed import describe

sys.path.append(str(Path(__file__).resolve().parents[2]))

from bench.benchlib import children

PATIENCE = timedelta(seconds=90)
ELEMENT_BYTES = 4
SAMPLE_NS = 5_000_000  # about, where a call is short
MAX_CALLS = 50


def timed(call: Callable[[], object], calls: int) -> int:
    """Nanoseconds of one of `calls` calls in a row, in the mean."""
    started_ns = time.perf_counter_ns()
    for _ in range(calls):
        call()
    return (time.perf_counter_ns() - started_ns) // calls


def groups_of(algorithms: list[str]) -> dict[str, dist.ProcessGroup]:
    """A group for each algorithm; it reads its algorithm when it begins to be used."""
    found = {}
    for name in algorithms:
        os.environ["RDMATENSOR_ALGO"] = name
        group = dist.new_group(backend="rdmatensor", timeout=PATIENCE)
        dist.all_reduce(torch.zeros(1), group=group)
        taken = cast("dict[str, object]", describe(group)["collectives"])["algorithm"]
        if taken != name:
            raise RuntimeError(f"the group goes by {taken}, not by {name}")
        found[name] = group
    return found


def agreed_calls(took_ns: int) -> int:
    """Calls of a sample: about SAMPLE_NS in all; the same number on all ranks."""
    slowest = torch.tensor([took_ns])
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return max(1, min(MAX_CALLS, SAMPLE_NS // max(1, int(slowest[0]))))


def measure(
    groups: dict[str, dist.ProcessGroup], size: int, rank: int, rounds: int
) -> dict[str, list[int]]:
    """Interleaved samples of each algorithm."""
    tensor = torch.zeros(max(1, size // ELEMENT_BYTES))
    ranks = dist.get_world_size()
    calls: dict[str, int] = {}
    samples: dict[str, list[int]] = {name: [] for name in groups}
    for name, group in groups.items():
        tensor.fill_(float(rank + 1))
        dist.all_reduce(tensor, group=group)
        if not bool((tensor == ranks * (ranks + 1) / 2).all()):
            raise RuntimeError(f"{name}: all_reduce gave {tensor[:4].tolist()}")
    tensor.zero_()  # sums of zeros stay finite, however many calls there are
    for number in range(rounds + 1):
        for name, group in groups.items():

            def call(group: dist.ProcessGroup = group) -> object:
                return dist.all_reduce(tensor, group=group)

            dist.barrier()
            call()
            if number == 0:
                calls[name] = agreed_calls(timed(call, 2))
            else:
                samples[name].append(timed(call, calls[name]))
    return samples


def work(arguments: argparse.Namespace, rank: int, ranks: int) -> list[str]:
    """Return the lines of one rank."""
    torch.set_num_threads(1)
    store = FileStore(str(arguments.folder / f"c10d{ranks}"), ranks)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks, timeout=PATIENCE)
    groups = groups_of(str(arguments.algorithms).split(","))
    cores = sorted(os.sched_getaffinity(0))
    if ranks <= len(cores):
        os.sched_setaffinity(0, {cores[rank]})  # this thread only
    lines = []
    for size in map(int, str(arguments.sizes).split(",")):
        for name, raw_ns in measure(groups, size, rank, arguments.rounds).items():
            record = {"op": name, "size": size, "ranks": ranks, "rank": rank, "raw_ns": raw_ns}
            lines.append(json.dumps({"contestant": "rdmatensor", **record}))
    dist.barrier()
    dist.destroy_process_group()
    return lines


def child(arguments: argparse.Namespace, rank: int, ranks: int, parent: int) -> None:
    """Run one rank; it never returns."""
    status = 1
    try:
        children.end_with(parent)
        out = arguments.folder / f"lines{ranks}.{rank}"
        out.write_text("\n".join(work(arguments, rank, ranks)) + "\n", encoding="utf-8")
        status = 0
    except BaseException:  # noqa: BLE001  a forked child must not run on in its parent's code
        traceback.print_exc()
    finally:
        os._exit(status)


def group(arguments: argparse.Namespace, ranks: int) -> None:
    """Fork the ranks, wait for them, and print what they found."""
    sys.stdout.flush()
    parent = os.getpid()
    pids: list[int] = []
    try:
        for rank in range(ranks):
            pid = os.fork()
            if pid == 0:
                child(arguments, rank, ranks, parent)
            pids.append(pid)
        while pids:
            pid, status = os.wait()
            pids.remove(pid)
            if status != 0:
                raise RuntimeError("a rank failed; its reason stands above")
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)  # nobody has waited for it yet: the pid is its own
            os.waitpid(pid, 0)
    for rank in range(ranks):
        sys.stdout.write((arguments.folder / f"lines{ranks}.{rank}").read_text(encoding="utf-8"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rank", type=int, required=True, help="0: there is one of this process")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--ranks", required=True, help="numbers, separated by commas")
    parser.add_argument("--algorithms", required=True, help="of RDMATENSOR_ALGO")
    parser.add_argument("--sizes", required=True, help="bytes, separated by commas")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    for ranks in map(int, str(arguments.ranks).split(",")):
        group(arguments, ranks)


if __name__ == "__main__":
    main()
