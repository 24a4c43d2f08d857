"""Requests for memory that are refused, one after the other, while operations end."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
from typing import Any

import torch
import torch.distributed as dist

import rdmatensor


def refuse(nth: int) -> bool:
    """Refuse the n-th request from now on, 0: none; say whether one was since the last call."""
    return bool(ctypes.CDLL(None).refuse_new(nth))


def world_group() -> Any:
    return dist.distributed_c10d._get_default_group()


def hooked(_rank: int, _world: int) -> list[int]:
    """How many records the hook is behind once all calls are over, after each refusal."""
    dist.init_process_group("rdmatensor", store=dist.HashStore(), rank=0, world_size=1)
    group = world_group()
    heard: list[int] = []
    group._register_on_completion_hook(lambda info: heard.append(info.seq))

    def reduce() -> None:
        dist.all_reduce(torch.ones(3))
        group._wait_for_pending_works()

    reduce()
    lags = []
    for nth in itertools.count(1):
        refuse(nth)
        with contextlib.suppress(MemoryError):
            reduce()
        was_refused = refuse(0)
        group._wait_for_pending_works()
        reduce()
        lags.append(rdmatensor.sequence_number() - 1 - heard[-1])
        if not was_refused:
            break
    dist.destroy_process_group()
    return lags
