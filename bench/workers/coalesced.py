"""One of two processes that sum many small tensors: one by one, and coalesced, and by Gloo.

All take turns in the same processes, on the same tensors, until the time is over. Each sample is
one pass over all tensors:
  one by one          dist.all_reduce() of each
  one by one, async   the same with async_op=True, then wait() of each
  manager             _coalescing_manager() around dist.all_reduce() of each
  coalesced           one call with the list, as the manager makes it at its end
Rank 0 prints lines of JSON, with both ranks' processor time for 10^9 bytes, and (of rdmatensor) the
writes of a pass.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import cast

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import AllreduceCoalescedOptions
from torch.distributed.distributed_c10d import _coalescing_manager

import rdmatensor.distributed
from bench.suite import samples
from bench.workers import harness

BACKENDS = ("rdmatensor", "gloo")
GLOO_EVERY = 6  # rounds: a pass one by one takes it a second, or several where cores are busy
OPTIONS = {
    "rounds": 30,  # at most
    "seconds": 10.0,  # after which no round begins
    "tensors": 1000,
    "size": 256,
}
Pass = Callable[[dist.ProcessGroup, list[torch.Tensor]], None]


def one_by_one(group: dist.ProcessGroup, tensors: list[torch.Tensor]) -> None:
    for tensor in tensors:
        dist.all_reduce(tensor, group=group)


def one_by_one_async(group: dist.ProcessGroup, tensors: list[torch.Tensor]) -> None:
    works = [dist.all_reduce(tensor, group=group, async_op=True) for tensor in tensors]
    for work in works:
        assert work is not None
        work.wait()


def manager(group: dist.ProcessGroup, tensors: list[torch.Tensor]) -> None:
    with _coalescing_manager(group=group):
        one_by_one(group, tensors)


def coalesced(group: dist.ProcessGroup, tensors: list[torch.Tensor]) -> None:
    options = AllreduceCoalescedOptions()
    options.asyncOp = False
    work = group.allreduce_coalesced(tensors, options)
    if work is not None:
        work.wait()


PASSES: dict[str, Pass] = {
    "one by one": one_by_one,
    "one by one, async": one_by_one_async,
    "manager": manager,
    "coalesced": coalesced,
}


def writes_of(group: dist.ProcessGroup) -> int:
    """Count what left this rank so far."""
    counted = rdmatensor.distributed.describe(group)["collectives"]
    return cast("dict[str, int]", counted)["writes"]


def one_pass(call: Pass, group: dist.ProcessGroup, tensors: list[torch.Tensor]) -> tuple[int, int]:
    """Nanoseconds of a pass over tensors of ones, and of both ranks' CPUs; the sums are checked."""
    for tensor in tensors:
        tensor.fill_(1.0)
    dist.barrier(group=group)
    started_cpu_ns, started_ns = time.process_time_ns(), time.perf_counter_ns()
    call(group, tensors)
    taken_ns = time.perf_counter_ns() - started_ns
    cpu_ns = torch.tensor(time.process_time_ns() - started_cpu_ns)
    dist.all_reduce(cpu_ns)
    if not all(bool((tensor == 2.0).all()) for tensor in tensors):
        raise RuntimeError("a sum is wrong")
    return taken_ns, int(cpu_ns)


def is_over(end_s: float) -> bool:
    """Whether rank 0's clock is past its end_s; both ranks call it, and both leave or neither."""
    over = torch.tensor(time.monotonic() > end_s)
    dist.broadcast(over, 0)
    return bool(over)


def measure(
    groups: dict[str, dist.ProcessGroup], tensors: list[torch.Tensor], rounds: int, seconds: float
) -> list[dict[str, object]]:
    """Interleaved samples of all, after a round that does not count.

    No round but the first that counts begins after so many seconds.
    """
    end_s = time.monotonic() + seconds
    taken: dict[tuple[str, str], list[tuple[int, int]]] = {}
    writes: dict[tuple[str, str], int] = {}
    for round_number in range(rounds + 1):
        if round_number > 1 and is_over(end_s):
            break
        for backend, group in groups.items():
            if backend == "gloo" and round_number > 0 and round_number % GLOO_EVERY != 1:
                continue
            for way, call in PASSES.items():
                before = writes_of(groups["rdmatensor"])
                took = one_pass(call, group, tensors)
                # A barrier went before.
                writes[backend, way] = writes_of(groups["rdmatensor"]) - before - 1
                if round_number > 0:
                    taken.setdefault((backend, way), []).append(took)
    records: list[dict[str, object]] = []
    moved_bytes = sum(tensor.nbytes for tensor in tensors)
    for (backend, way), of_way in taken.items():
        taken_ns, cpu_ns = ([one[which] for one in of_way] for which in (0, 1))
        said = {"name": backend, "way": way, "tensors": len(tensors)}
        record = samples.turn({**said, "size": tensors[0].nbytes}, taken_ns)
        record["cpu_s_per_gb"] = sorted(cpu_ns)[len(cpu_ns) // 2] / moved_bytes
        if backend == "rdmatensor":
            record["writes"] = writes[backend, way]
        records.append(record)
    return records


def main(options: SimpleNamespace) -> None:
    limit = timedelta(seconds=60)
    harness.join_gloo(options.folder, options.rank, 2, limit)
    groups = {name: dist.new_group(backend=name, timeout=limit) for name in BACKENDS}
    harness.pin(options.rank, 2)
    tensors = [torch.ones(options.size // 4) for _ in range(options.tensors)]
    for record in measure(groups, tensors, options.rounds, options.seconds):
        if options.rank == 0:
            harness.emit(**record)
    dist.barrier()
    dist.destroy_process_group()
