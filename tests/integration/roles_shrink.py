"""A rank is lost, and the others go on in torch's shrunken group."""

from __future__ import annotations

import os
import signal
from datetime import timedelta

import torch
import torch.distributed as dist
from meeting import SCALE, meet

TIMEOUT = timedelta(seconds=20 * SCALE)


def _total(size: int) -> list[float]:
    tensor = torch.full((size,), float(dist.get_rank() + 1))
    dist.all_reduce(tensor)
    return [float(tensor[0]), float(tensor[-1])]


def goes_on_without(rank: int, world: int, *, victim: int, flags: int) -> dict[str, object]:
    """Return the survivors' sums before, the error they got, and their sums after."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    before = _total(1000)
    meet("ready", rank, range(world))
    if rank == victim:
        os.kill(os.getpid(), signal.SIGKILL)
    told = ""
    try:
        _total(1000)
    except RuntimeError as error:
        told = str(error)
    group = dist.shrink_group([victim], shrink_flags=flags)
    assert group == dist.group.WORLD
    found = {
        "rank": dist.get_rank(),
        "size": dist.get_world_size(),
        "before": before,
        "told": told,
        "after": _total(100000),
    }
    dist.destroy_process_group()
    return found


def twice(rank: int, world: int) -> list[object]:
    """Two ranks leave, one after the other, of a group that works; the second one was rank 1."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    found: list[object] = [_total(10)]
    for last in range(world - 1, 1, -1):
        if dist.get_rank() == last:
            break
        dist.shrink_group([last])
        found.append((dist.get_world_size(), _total(10)))
    meet("over", rank, range(world))
    dist.destroy_process_group()
    return found


def refused(rank: int, _world: int) -> str:
    """The backend itself refuses what torch would not let through."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    group = dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))
    said = ""
    for excluded in ([rank], [2]):
        try:
            group.shrink(excluded, 0, None)
        except ValueError as error:
            said += f"{error}\n"
    dist.destroy_process_group()
    return said
