"""One of two ranks that use the backend from several threads at once, and check what they get.

Usage: job.py RANK FILE PACKAGES: the two meet through the file; PACKAGES must have the backend.
"""

from __future__ import annotations

import sys
import threading
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

import rdmatensor

WORLD = 2
TIMEOUT = timedelta(seconds=60)
COUNTS = (2, 1000, 300_000)  # on a board, in an eager ring, in place
STEPS = 6  # the recorder locks a plan after the second, buckets are chosen again after the third

rank = int(sys.argv[1])
failures: list[BaseException] = []


def check(tensor: torch.Tensor, wanted: float) -> None:
    assert torch.all(tensor == wanted), (tensor, wanted)


def collectives(group: dist.ProcessGroup | None, seed: int) -> None:
    """Every way in which a thread of the backend and the caller meet."""
    for count in COUNTS:
        summed = torch.full((count,), float(rank + seed))
        dist.all_reduce(summed, group=group)
        check(summed, 1 + 2 * seed)
        many = [torch.ones(count) for _ in range(5)]
        works = [dist.all_reduce(tensor, group=group, async_op=True) for tensor in many]
        future = works[-1].get_future().then(lambda done: done.value()[0].sum())
        for work, tensor in zip(works, many, strict=True):
            work.wait()
            check(tensor, WORLD)
        assert future.wait() == WORLD * count
        told = torch.full((count,), float(rank))
        dist.broadcast(told, group_src=0, group=group)
        check(told, 0)
        gathered = torch.empty(WORLD * count)
        dist.all_gather_single(gathered, torch.full((count,), float(rank)), group=group)
        check(gathered[count:], 1)
        share = torch.empty(count)
        dist.reduce_scatter_single(share, torch.ones(WORLD * count), group=group)
        check(share, WORLD)
        exchanged = torch.empty(WORLD * count)
        dist.all_to_all_single(exchanged, torch.full((WORLD * count,), float(rank)), group=group)
        check(exchanged[:count], 0)
        both_ways(group, count)
        dist.barrier(group=group)


def both_ways(group: dist.ProcessGroup | None, count: int) -> None:
    received = torch.empty(count)
    operations = [
        dist.P2POp(dist.isend, torch.full((count,), float(rank)), group=group, group_peer=1 - rank),
        dist.P2POp(dist.irecv, received, group=group, group_peer=1 - rank),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    check(received, 1 - rank)


def in_thread(group: dist.ProcessGroup, seed: int) -> None:
    try:
        collectives(group, seed)
    except BaseException as error:  # noqa: BLE001 - told by the main thread
        failures.append(error)


def train() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4))
    parallel = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.1)
    for step in range(STEPS):
        optimizer.zero_grad()
        parallel(torch.ones(8, 64) * (rank + step)).sum().backward()
        optimizer.step()


def main() -> None:
    assert Path(rdmatensor.__file__).parent.parent == Path(sys.argv[3]), rdmatensor.__file__
    torch.set_num_threads(1)
    dist.init_process_group(
        "rdmatensor",
        init_method=f"file://{sys.argv[2]}",
        rank=rank,
        world_size=WORLD,
        timeout=TIMEOUT,
    )
    collectives(None, 0)
    groups = [dist.new_group() for _ in range(2)]
    threads = [
        threading.Thread(target=in_thread, args=(group, seed)) for seed, group in enumerate(groups)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for failure in failures:
        raise failure
    train()
    dist.destroy_process_group(groups[0])
    left = torch.ones(COUNTS[-1])
    work = dist.all_reduce(left, async_op=True)
    work.wait()
    dist.destroy_process_group()


main()
