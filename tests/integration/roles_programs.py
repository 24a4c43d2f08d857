"""Small programs as people write them, which must not be ended by a default."""

from __future__ import annotations

import os
import select
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from meeting import SCALE, meet

import rdmatensor

TIMEOUT = timedelta(seconds=30)
LONG = (
    timedelta(days=36_500),
    timedelta(days=300 * 365),
    timedelta(days=9_999_999),
    timedelta.max,
)


def splits(rank: int, world: int) -> dict[str, Any]:
    """Split the world, and a part of it, after a group of which not all are members."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    dist.new_group([0, 1])
    found = []
    for _ in range(2):
        part = rdmatensor.distributed.split_group([[0, 2], [1]], timeout=timedelta(seconds=10))
        assert part is not None
        found.append(_sum_of(part, rank))
        if rank != 1:
            inner = rdmatensor.distributed.split_group([[1, 0]], part)
            assert inner is not None
            assert dist.get_process_group_ranks(inner) == [0, 2]
            found.append(_sum_of(inner, rank))
            dist.destroy_process_group(inner)
        dist.destroy_process_group(part)
    dist.destroy_process_group()
    return {"found": found, "world": world}


def _sum_of(group: dist.ProcessGroup, rank: int) -> float:
    tensor = torch.full((5,), float(rank))
    dist.all_reduce(tensor, group=group)
    return float(tensor[0])


def long_timeouts(rank: int, world: int) -> list[str]:
    """Switch the time-out off by a huge one, in each place that takes one."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    said = []
    for limit in LONG:
        group = dist.new_group(timeout=limit)
        tensor = torch.ones(1000)
        work = dist.all_reduce(tensor, group=group, async_op=True)
        assert work is not None
        work.wait(limit)
        dist.barrier(group)
        rdmatensor.distributed.set_timeout(limit, group)
        rdmatensor.distributed.monitored_barrier(group, timeout=limit)
        part = rdmatensor.distributed.split_group([list(range(world))], group, timeout=limit)
        assert part is not None
        other = (rank + 1) % world
        works = dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, tensor, other, part),
                dist.P2POp(dist.irecv, torch.zeros(1000), other, part),
            ]
        )
        for one in works:
            one.wait(limit)
        said.append(str(float(tensor[0])))
    dist.destroy_process_group()
    return said


def averages(rank: int, world: int) -> list[int]:
    """Average integers, as a logger does."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    tensor = torch.tensor([3, -3, 7 + rank, 2**40])
    dist.all_reduce(tensor, op=dist.ReduceOp.AVG)
    dist.destroy_process_group()
    found: list[int] = tensor.tolist()
    return found


def the_host_leaves_at_once(rank: int, world: int) -> float:
    """Rank 0 has nothing to do, and its program is over before the others have their group."""
    store = dist.TCPStore(
        "127.0.0.1", int(os.environ["MASTER_PORT"]), None, rank == 0, TIMEOUT, False
    )
    meet("the store is there", rank, range(world))
    if rank > 0:
        time.sleep(0.1 * rank)
    dist.init_process_group("rdmatensor", store=store, rank=rank, world_size=world, timeout=TIMEOUT)
    tensor = torch.full((100_000,), float(rank))
    if rank == 1:
        dist.send(tensor, 2)
    elif rank == 2:
        dist.recv(tensor, 1)
    del store
    dist.destroy_process_group()
    return float(tensor[-1])


def the_host_of_the_store_leaves(rank: int, world: int) -> float:
    """Rank 0 leaves in order; two that have not met yet then exchange messages."""
    others = range(1, world)
    store = dist.TCPStore(
        "127.0.0.1", int(os.environ["MASTER_PORT"]), None, rank == 0, TIMEOUT, False
    )
    if rank == 2:
        meet("1 is there", rank, others)
    dist.init_process_group("rdmatensor", store=store, rank=rank, world_size=world, timeout=TIMEOUT)
    if rank == 1:
        meet("1 is there", rank, others)
    if rank == 0:
        for other in others:
            dist.send(torch.tensor([os.getpid()]), other)
        for other in others:
            dist.recv(torch.zeros(1), other)
        dist.destroy_process_group()
        return 0.0
    pid = torch.zeros(1, dtype=torch.int64)
    dist.recv(pid, 0)
    host = os.pidfd_open(int(pid))
    dist.send(torch.ones(1), 0)
    assert select.select([host], [], [], 20.0 * SCALE)[0], "rank 0 is still there"
    tensor = torch.full((100_000,), float(rank))
    if rank == 1:
        dist.send(tensor, 2)
        dist.recv(tensor, 2)
    else:
        got = torch.zeros(100_000)
        dist.recv(got, 1)
        dist.send(tensor, 1)
        tensor = got
    dist.destroy_process_group()
    return float(tensor[-1])
