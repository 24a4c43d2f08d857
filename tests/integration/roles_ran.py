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


def forced(rank: int, world: int) -> dict[str, Any]:
    """Return which algorithm carried sums out, and which of them were wrong; counts of many sizes.

    Small whole numbers, whose sums are exact in any order; no count divides by the ranks.
    """
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    wrong: list[str] = []
    dist.barrier()
    before = ran()
    for count in (1, 1023, 70_001, 300_000):
        everyone = [
            torch.arange(count * world).remainder(other + 5).float() for other in range(world)
        ]
        total = torch.stack(everyone).sum(0)
        reduced, at_root, part = everyone[rank].clone(), everyone[rank].clone(), torch.empty(count)
        dist.all_reduce(reduced)
        dist.reduce(at_root, world - 1)
        dist.reduce_scatter_tensor(part, everyone[rank])
        gathered, shared = torch.empty(count * world), total.clone() if rank == 0 else reduced * 0
        dist.all_gather_into_tensor(gathered, part)
        dist.broadcast(shared, 0)
        found = {"all_reduce": reduced, "all_gather": gathered, "broadcast": shared}
        wrong += [f"{name} {count}" for name, it in found.items() if not torch.equal(it, total)]
        if not torch.equal(part, total.chunk(world)[rank]):
            wrong.append(f"reduce_scatter {count}")
        if rank == world - 1 and not torch.equal(at_root, total):
            wrong.append(f"reduce {count}")
    after = ran()
    dist.destroy_process_group()
    counts = {name: count - before.get(name, 0) for name, count in after.items()}
    return {"wrong": wrong, "ran": sorted(name for name, count in counts.items() if count > 0)}


def ran() -> dict[str, int]:
    collectives = cast("dict[str, Any]", rdmatensor.distributed.describe()["collectives"])
    return cast("dict[str, int]", collectives["ran"])
