"""One of two ranks that use the backend from several threads at once, check what they get, and end.

Usage: job.py RANK FILE PACKAGES: the two meet through the file; PACKAGES must have the backend.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symmetric

import rdmatensor

WORLD = 2
TIMEOUT = timedelta(seconds=60)
COUNTS = (2, 1000, 300_000)  # on a board, in an eager ring, in place
LARGE = 1 << 18  # is offered, and read by the receiver
BETWEEN_S = 0.1
WAYS = (("abort",), ("shutdown",), ("abort", "shutdown"))
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


def begin(number: int) -> None:
    dist.init_process_group(
        "rdmatensor",
        init_method=f"file://{sys.argv[2]}.{number}",
        rank=rank,
        world_size=WORLD,
        timeout=TIMEOUT,
    )
    dist.barrier()


def await_all(works: Sequence[dist.Work]) -> None:
    for work in works:
        try:
            work.wait()
        except RuntimeError:  # the group's end
            continue


def end_with_works(calls: Sequence[str]) -> None:
    """The group ends by threads of their own, while others wait, ask, or have let go."""
    group = dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))
    works = [
        dist.irecv(torch.empty(10), 1 - rank, tag=3),
        dist.irecv(torch.empty(LARGE), 1 - rank, tag=4),
        dist.isend(torch.ones(LARGE), 1 - rank, tag=5),
    ]
    if rank == 0:
        works.append(dist.all_reduce(torch.ones(LARGE), async_op=True))
    futures = [work.get_future().then(lambda _: None) for work in works]
    del works[-1], works[0]
    threads = [threading.Timer(BETWEEN_S, getattr(group, call)) for call in calls]
    threads += [threading.Thread(target=await_all, args=(works,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        for work in works:
            work.is_completed()
        time.sleep(0.002)
    await_all(works)
    assert len(futures) == len(works) + 2


def let_go() -> None:
    """Works and Futures that nobody waits for, and the memory that both ranks map."""
    for number in range(100):
        work = dist.all_reduce(torch.ones(1000 + number), async_op=True)
        if number % 3 == 0:
            work.get_future().then(lambda done: done.value()[0].sum())
        if number % 2 == 0:
            del work
    dist.barrier()
    symmetric.set_backend("rdmatensor")
    tensor = symmetric.empty(1024, device="cpu")
    handle = symmetric.rendezvous(tensor, dist.group.WORLD)
    for _ in range(20):
        handle.barrier()
        if rank == 0:
            handle.put_signal(1, 0)
        else:
            handle.wait_signal(0, 0)


def main() -> None:
    assert Path(rdmatensor.__file__).parent.parent == Path(sys.argv[3]), rdmatensor.__file__
    torch.set_num_threads(1)
    begin(0)
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
    for number, calls in enumerate(WAYS):
        begin(number + 1)
        end_with_works(calls)
        dist.destroy_process_group()
    begin(len(WAYS) + 1)
    let_go()
    dist.destroy_process_group()


main()
