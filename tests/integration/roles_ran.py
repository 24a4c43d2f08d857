"""Which algorithm carried a collective out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
import torch.distributed as dist
from roles_collectives import TIMEOUT

import rdmatensor.distributed


def what_ran(rank: int, world: int) -> dict[str, Any]:
    """Return which algorithm carried each operation out, as describe() counts them."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    whole, part = torch.full((world * 1000,), rank + 1.0), torch.full((1000,), rank + 1.0)
    calls: dict[str, Callable[[], object]] = {
        "all_reduce": lambda: dist.all_reduce(whole.clone()),
        "broadcast": lambda: dist.broadcast(part.clone(), 0),
        "all_gather": lambda: dist.all_gather_into_tensor(torch.empty_like(whole), part),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(torch.empty_like(part), whole),
        "barrier": dist.barrier,
    }
    dist.barrier()
    found: dict[str, Any] = {}
    for name, call in calls.items():
        before = ran()
        call()
        call()
        found[name] = {key: count - before.get(key, 0) for key, count in ran().items()}
        found[name] = {key: count for key, count in found[name].items() if count > 0}
    dist.destroy_process_group()
    return found


def ran() -> dict[str, int]:
    collectives = cast("dict[str, Any]", rdmatensor.distributed.describe()["collectives"])
    return cast("dict[str, int]", collectives["ran"])
