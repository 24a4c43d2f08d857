"""Ranks that are told that they are on several hosts; what they run is that of other tests."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from typing import Any, cast

import roles_coalesced
import roles_collectives
import torch
import torch.distributed as dist
from meeting import meet

import rdmatensor.distributed


def _pretend(rank: int, default: str = "0011") -> None:
    """Let the digit of this rank in LAYOUT stand for its host."""
    os.environ["RDMATENSOR_TEST_HOST"] = "host" + os.environ.pop("LAYOUT", default)[rank]


def compare_with_gloo(rank: int, world: int) -> dict[str, Any]:
    """Compare every collective with Gloo's."""
    _pretend(rank)
    return cast("dict[str, Any]", roles_collectives.compare_with_gloo(rank, world))


def coalesced(rank: int, world: int) -> dict[str, Any]:
    """Compare coalesced collectives with the same ones alone."""
    _pretend(rank)
    return roles_coalesced.coalesced(rank, world)


def asynchronous(rank: int, world: int) -> dict[str, bool]:
    """Have many in flight together."""
    _pretend(rank)
    return cast("dict[str, bool]", roles_collectives.asynchronous(rank, world))


def paths(rank: int, world: int) -> dict[str, Any]:
    """Sum once; tell how each peer is reached, why, and what a sum of a MiB sends."""
    _pretend(rank)
    dist.init_process_group("rdmatensor", timeout=roles_collectives.TIMEOUT)
    tensor = torch.full((1 << 18,), float(rank + 1))
    dist.all_reduce(tensor)
    state = rdmatensor.distributed.describe()
    peers = cast("list[dict[str, Any]]", state["peers"])
    is_right = bool((tensor == world * (world + 1) / 2).all())
    dist.barrier()
    dist.destroy_process_group()
    return {
        "is_right": is_right,
        "collectives": state["collectives"],
        "paths": {peer["rank"]: peer["path"] for peer in peers},
        "reasons": {peer["rank"]: peer["reason"] for peer in peers},
    }


def nothing_but_rdma(rank: int, world: int) -> dict[str, Any]:
    """Sum among ranks of two hosts; tell how it ended, and after how long."""
    _pretend(rank)
    timeout = timedelta(seconds=10)
    started_s = time.monotonic()
    try:
        dist.init_process_group("rdmatensor", timeout=timeout)
        dist.all_reduce(torch.ones(8))
    except Exception as error:  # noqa: BLE001 - which one is what is asked
        text = f"{type(error).__name__}: {error}"
    else:
        text = ""
    seconds = time.monotonic() - started_s
    meet("all know", rank, range(world))  # a rank that leaves is an error of its own to the others
    if dist.is_initialized():
        dist.destroy_process_group()
    return {"text": text, "seconds": seconds, "timeout": timeout.total_seconds()}
