"""What a rank did last, seen from it."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from meeting import meet

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
        rdmatensor.distributed.set_timeout(SHORT)
        work = dist.all_reduce(torch.ones(1000), async_op=True)
        time.sleep(0.1)
        found["meanwhile"] = as_json(rdmatensor.distributed.last_operations())
        try:
            work.wait()
        except RuntimeError as error:
            found["error"] = str(error)
    else:
        time.sleep(4.0 * SHORT.total_seconds())
    found["after"] = as_json(rdmatensor.distributed.last_operations())
    found["sequence_number"] = rdmatensor.distributed.sequence_number()
    return found


def many(rank: int, world: int) -> dict[str, Any]:
    """More operations than are kept, of two groups."""
    dist.init_process_group("rdmatensor", timeout=LONG)
    other = dist.new_group([0, 1])
    for _ in range(200):
        dist.all_reduce(torch.ones(1))
    dist.barrier(group=other)
    found = {
        "default": as_json(rdmatensor.distributed.last_operations()),
        "other": as_json(rdmatensor.distributed.last_operations(other)),
    }
    dist.destroy_process_group()
    return found


def _began(how: str, group: Any) -> Any:
    """Begin what the last rank does not come to."""
    if how != "coalesced":
        return dist.all_reduce(torch.ones(1000), group=group, async_op=True)
    with dist._coalescing_manager(group, async_ops=True) as manager:
        for _ in range(2):  # too large to go together
            dist.all_reduce(torch.ones(20_000), group=group)
    return manager


def _failed(act: Any, group: Any) -> dict[str, Any]:
    """What this rank says of its last operation once that has failed."""
    try:
        act()
    except RuntimeError as error:
        said = str(error)
    last = rdmatensor.distributed.last_operations(group)
    return {
        "error": said,
        "last": as_json(last)[-1],
        "messages": [one["sequence"] for one in last if "send" in one["operation"]],
        "sequence_number": rdmatensor.distributed.sequence_number(group),
    }


def stayed_away(rank: int, world: int) -> dict[str, Any]:
    """The last rank ends each group where the others wait for it; rank 0 has sent more."""
    dist.init_process_group("rdmatensor", timeout=LONG)
    found: dict[str, Any] = {}
    for how in ("alone", "next to messages", "coalesced"):
        group: Any = dist.new_group()
        for _ in range(3 if how == "next to messages" else 0):
            if rank == 0:
                dist.send(torch.ones(3), world - 1, group=group)
            if rank == world - 1:
                dist.recv(torch.ones(3), 0, group=group)
        for _ in range(2):
            dist.all_reduce(torch.ones(3), group=group)
        if rank < world - 1:
            began = _began(how, group)
        meet(f"{how}: began", rank, range(world))
        if rank == world - 1:
            group._get_backend(torch.device("cpu")).abort()
        else:
            found[how] = _failed(began.wait, group)
            found[f"{how}, again"] = _failed(lambda how=how, group=group: _began(how, group), group)
        meet(f"{how}: ended", rank, range(world))
    return found
