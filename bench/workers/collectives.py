"""One of several processes that run every collective of torch.distributed over several backends.

The backends take turns in the same processes, on the same tensors: one turn after another in each
round, a barrier of Gloo before each. A sample is the mean time of `calls` calls in a row, as
nccl-tests has it. Sizes are nccl-tests': of all_gather what a rank has at the end, of
reduce_scatter and all_to_all what it begins with. "fake" is torch's own backend that does nothing:
what a call costs without one. What each backend delivers is compared in a pass of its own, first.
Every rank prints lines of JSON with its own samples; the slowest rank of each sample counts.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore
from torch.testing._internal.distributed import fake_pg  # registers "fake"

import rdmatensor.torch  # noqa: F401  registers "rdmatensor"

Call = Callable[[], object]
PATIENCE = timedelta(seconds=60)
ELEMENT_BYTES = 4
SAMPLE_NS = 2_000_000  # about, where a call is short
MAX_CALLS = 100


class Operation:
    """One operation on tensors of its own, and what it should deliver.

    Its elements: rank r begins with r + 1 everywhere, block b of reduce_scatter and all_to_all with
    r + 1 + b * 100, all exact in float32.
    """

    def __init__(self, name: str, size_bytes: int, rank: int, ranks: int) -> None:
        self.name, self.rank, self.ranks = name, rank, ranks
        elements = max(1, size_bytes // ELEMENT_BYTES)
        self.share = max(1, elements // ranks)
        whole = self.share * ranks
        self.source = torch.zeros({"all_gather": self.share, "barrier": 1}.get(name, whole))
        self.target = torch.zeros({"reduce_scatter": self.share, "barrier": 1}.get(name, whole))

    @property
    def size_bytes(self) -> int:
        """What nccl-tests calls the size: of whole blocks for each rank; 0 for a barrier."""
        if self.name == "barrier":
            return 0
        return max(self.source.nbytes, self.target.nbytes)

    def fill(self) -> None:
        """Before each compared call."""
        self.source.fill_(float(self.rank + 1))
        if self.name in ("reduce_scatter", "all_to_all"):
            for block in range(self.ranks):
                self._block(self.source, block).add_(100.0 * block)

    def _block(self, tensor: torch.Tensor, block: int) -> torch.Tensor:
        return tensor[block * self.share : (block + 1) * self.share]

    def call(self, group: dist.ProcessGroup) -> Call:
        """Return what is timed."""
        source, target = self.source, self.target
        calls: dict[str, Call] = {
            "all_reduce": lambda: dist.all_reduce(source, group=group),
            "all_gather": lambda: dist.all_gather_into_tensor(target, source, group=group),
            "reduce_scatter": lambda: dist.reduce_scatter_tensor(target, source, group=group),
            "broadcast": lambda: dist.broadcast(source, src=0, group=group),
            "all_to_all": lambda: dist.all_to_all_single(target, source, group=group),
            "barrier": lambda: dist.barrier(group=group),
        }
        return calls[self.name]

    def is_right(self) -> bool:
        """Whether the tensors are what the operation promises."""
        ranks = self.ranks
        total = float(ranks * (ranks + 1) // 2)
        if self.name == "all_reduce":
            return bool((self.source == total).all())
        if self.name == "broadcast":
            return bool((self.source == 1.0).all())
        if self.name == "reduce_scatter":
            return bool((self.target == total + 100.0 * self.rank * ranks).all())
        offset = 100.0 * self.rank if self.name == "all_to_all" else 0.0
        return self.name == "barrier" or all(
            bool((self._block(self.target, block) == block + 1 + offset).all())
            for block in range(ranks)
        )


def timed(call: Call, calls: int) -> int:
    """Nanoseconds of one of `calls` calls in a row, in the mean."""
    started_ns = time.perf_counter_ns()
    for _ in range(calls):
        call()
    return (time.perf_counter_ns() - started_ns) // calls


def agreed_calls(took_ns: int, group: dist.ProcessGroup) -> int:
    """Calls of a sample: about SAMPLE_NS in all; the same number on all ranks."""
    slowest = torch.tensor([took_ns])
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX, group=group)
    return max(1, min(MAX_CALLS, SAMPLE_NS // max(1, int(slowest[0]))))


def measure(
    groups: dict[str, dist.ProcessGroup], operation: Operation, rounds: int
) -> dict[str, list[int]]:
    """Interleaved samples of each backend, after one that does not count."""
    meeting = groups["gloo"]
    samples: dict[str, list[int]] = {name: [] for name in groups}
    calls: dict[str, int] = {}
    for name, group in groups.items():
        operation.fill()
        operation.target.zero_()
        dist.barrier(group=meeting)
        operation.call(group)()
        if name != "fake" and not operation.is_right():
            raise RuntimeError(f"{name}: {operation.name} gave {operation.target[:4].tolist()}")
    operation.source.zero_()  # sums of zeros stay finite, however many calls there are
    for number in range(rounds + 1):
        for name, group in groups.items():
            dist.barrier(group=meeting)
            call = operation.call(group)
            call()
            if number == 0:
                calls[name] = agreed_calls(timed(call, 2), meeting)
                continue
            samples[name].append(timed(call, calls[name]))
    return samples


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--backends", required=True)
    parser.add_argument("--operations", required=True)
    parser.add_argument("--sizes", required=True)
    parser.add_argument("--rounds", type=int, default=10)
    arguments = parser.parse_args()
    rank, ranks = int(arguments.rank), int(arguments.ranks)
    assert fake_pg is not None
    torch.set_num_threads(1)
    store = FileStore(str(arguments.folder / "c10d"), ranks)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks, timeout=PATIENCE)
    backends = str(arguments.backends).split(",")
    # Gloo leads the turns also where it is not measured.
    groups = {name: dist.new_group(backend=name, timeout=PATIENCE) for name in [*backends, "gloo"]}
    cores = sorted(os.sched_getaffinity(0))
    if ranks <= len(cores):
        os.sched_setaffinity(0, {cores[rank]})  # this thread only
    for name in str(arguments.operations).split(","):
        for size in [0] if name == "barrier" else map(int, str(arguments.sizes).split(",")):
            operation = Operation(name, size, rank, ranks)
            for backend, raw_ns in measure(groups, operation, arguments.rounds).items():
                record = {
                    "contestant": backend,
                    "op": name,
                    "size": size,  # as it was asked for: two of them may move as much
                    "moved_bytes": operation.size_bytes,
                    "ranks": ranks,
                    "rank": rank,
                    "raw_ns": raw_ns,
                }
                if backend in backends:
                    sys.stdout.write(json.dumps(record) + "\n")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
