"""What a rank did last, seen from it."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

import rdmatensor

LONG = timedelta(seconds=60)
SHORT = timedelta(seconds=1)


def as_json(operations: list[Any]) -> list[dict[str, Any]]:
    return [{**operation, "dtype": str(operation["dtype"])} for operation in operations]


def until_a_timeout(rank: int, world: int) -> dict[str, Any]:
    """Rank 1 does not come to the third operation."""
    dist.init_process_group("rdmatensor", timeout=LONG)
    dist.all_reduce(torch.ones(2))
    if rank == 0:
        dist.send(torch.ones(3, dtype=torch.float64), 1)
    else:
        dist.recv(torch.ones(3, dtype=torch.float64), 0)
    found: dict[str, Any] = {}
    if rank == 0:
        rdmatensor.set_timeout(SHORT)
        work = dist.all_reduce(torch.ones(1000), async_op=True)
        time.sleep(0.1)
        found["meanwhile"] = as_json(rdmatensor.last_operations())
        try:
            work.wait()
        except RuntimeError as error:
            found["error"] = str(error)
    else:
        time.sleep(4.0 * SHORT.total_seconds())
    found["after"] = as_json(rdmatensor.last_operations())
    return found


def many(rank: int, world: int) -> dict[str, Any]:
    """More operations than are kept, of two groups."""
    dist.init_process_group("rdmatensor", timeout=LONG)
    other = dist.new_group([0, 1])
    for _ in range(200):
        dist.all_reduce(torch.ones(1))
    dist.barrier(group=other)
    found = {
        "default": as_json(rdmatensor.last_operations()),
        "other": as_json(rdmatensor.last_operations(other)),
    }
    dist.destroy_process_group()
    return found
