"""Requests for memory that are refused, one after the other, while operations end."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from meeting import DEADLINE_S, has_come, meet
from roles_collectives import TIMEOUT
from roles_faults import end_stopped, error_of, stop

import rdmatensor
from rdmatensor.context import default_context

TAG = 7
WORK_BYTES = 300  # less than a Work has, more than all else that a collective asks for


def refuse(nth: int) -> bool:
    """Refuse the n-th request from now on, 0: none; say whether one was since the last call."""
    return bool(ctypes.CDLL(None).refuse_new(nth))


def refuse_torch(nth: int) -> bool:
    """The same for what torch asks for on other threads than this one."""
    return bool(ctypes.CDLL(None).refuse_torch_elsewhere(nth))


def refuse_large(nth: int, least_bytes: int) -> bool:
    """The same for requests of so many bytes or more."""
    return bool(ctypes.CDLL(None).refuse_large(nth, ctypes.c_size_t(least_bytes)))


def world_group() -> Any:
    return dist.distributed_c10d._get_default_group()


def hooked(_rank: int, _world: int, *, whose: str) -> list[tuple[int, int]]:
    """How many records the hook is behind once all calls are over, after each refusal.

    And how far the number of the last collective is from what the library has counted.
    """
    refuse_one = {"ours": refuse, "torch": refuse_torch}[whose]
    dist.init_process_group("rdmatensor", store=dist.HashStore(), rank=0, world_size=1)
    group = world_group()
    heard: list[int] = []
    group._register_on_completion_hook(lambda info: heard.append(info.seq))

    def reduce() -> None:
        dist.all_reduce(torch.ones(3))
        dist.all_reduce(torch.ones(3), async_op=True)
        group._wait_for_pending_works()

    reduce()
    lags = []
    for nth in itertools.count(1):
        refuse_one(nth)
        with contextlib.suppress(MemoryError):
            reduce()
        was_refused = refuse_one(0)
        group._wait_for_pending_works()
        reduce()
        number = rdmatensor.distributed.sequence_number()
        (counted,) = (one["collectives"] for one in default_context().describe()["groups"])
        lags.append((number - heard[-1], number - counted))
        if not was_refused:
            break
    dist.destroy_process_group()
    return lags


def rounds_of(rank: int) -> Iterator[int]:
    """Rounds that another rank comes to, as long as it says nothing else."""
    for nth in itertools.count(1):
        while not has_come(f"round {nth}", rank):
            if has_come("over", rank):
                return
            time.sleep(0.005)
        yield nth


def given_up(rank: int, world: int) -> list[list[object]]:
    """Waits for receives that pass their deadline: what each raised, and where its message came."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    dist.barrier()
    if rank == 0:
        for nth in rounds_of(1):
            dist.send(torch.full((2,), float(nth)), 1, tag=TAG)
        dist.barrier()
        dist.destroy_process_group()
        return []
    told: list[list[object]] = []
    for nth in itertools.count(1):
        early, late = torch.zeros(2), torch.zeros(2)
        work: Any = dist.irecv(early, 0, tag=TAG)
        refuse(nth)
        try:
            work.wait(timedelta(milliseconds=20))
            raised = "nothing"
        except (RuntimeError, MemoryError) as error:
            raised = type(error).__name__
        was_refused = refuse(0)
        is_over = work.is_completed()
        meet(f"round {nth}", rank, [rank])
        if is_over:
            dist.recv(late, 0, tag=TAG)
        else:
            work.wait()
        told.append([raised, is_over, float(early.sum()) / 2 - nth, float(late.sum()) / 2 - nth])
        if not was_refused:
            break
    meet("over", rank, [rank])
    dist.barrier()
    dist.destroy_process_group()
    return told


def refused_receives(rank: int, _world: int) -> tuple[int, dict[str, int]]:
    """How many receives raised, of which one request each is refused; what is listed of all."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    dist.barrier()
    begun: list[Any] = []
    raised = 0
    if rank == 0:
        for nth in itertools.count(1):
            refuse(nth)
            try:
                begun.append(dist.irecv(torch.zeros(2), 1, tag=TAG))
            except MemoryError:
                raised += 1
            if not refuse(0):
                break
    count = torch.tensor([len(begun)])
    dist.broadcast(count, 0)
    for _ in range(int(count)) if rank == 1 else ():
        dist.send(torch.ones(2), 0, tag=TAG)
    for work in begun:
        work.wait()
    states = [
        one["state"]
        for one in rdmatensor.distributed.last_operations()
        if "recv" in one["operation"]
    ]
    return raised, {state: states.count(state) for state in set(states)}


def dropped(rank: int, world: int) -> list[bool]:
    """Works that are let go while they are in flight: whether a request was refused in that."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    dist.barrier()
    refused: list[bool] = []
    if rank == 0:
        for _ in rounds_of(1):
            dist.all_reduce(torch.ones(1000))
    else:
        for nth in itertools.count(1):
            work = dist.all_reduce(torch.ones(1000), async_op=True)
            refuse(nth)
            del work
            refused.append(refuse(0))
            meet(f"round {nth}", rank, [rank])
            if not refused[-1]:
                break
        meet("over", rank, [rank])
    total = torch.ones(3)
    dist.all_reduce(total)
    assert total.tolist() == [world] * 3
    return refused


def without_work(rank: int, world: int) -> dict[str, object]:
    """A collective whose Work is refused, next to a rank that is silent; the errors of two."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    tensor = torch.ones(1 << 22)
    dist.all_reduce(tensor)
    stop(rank, 1, world)
    world_group().set_timeout(timedelta(seconds=1))
    refuse_large(1, WORK_BYTES)
    text = error_of(lambda: dist.all_reduce(tensor))
    was_refused = refuse(0)
    again = error_of(lambda: dist.all_reduce(tensor))
    end_stopped(1)
    return {"text": text, "was_refused": was_refused, "again": again}


def end_of(future: Any) -> str:
    """Return how it ends, or that it does not."""
    deadline_s = time.monotonic() + DEADLINE_S / 4
    while not future.done():
        if time.monotonic() > deadline_s:
            return "never"
        time.sleep(0.001)
    try:
        future.wait()
    except (RuntimeError, MemoryError):
        return "failed"
    return "done"


def batched(rank: int, _world: int) -> list[str]:
    """How the Futures of batches end, of which one request each is refused."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    dist.barrier()
    if rank == 0:
        for _ in rounds_of(1):
            for _ in range(2):
                dist.all_reduce(torch.ones(3))
        return []
    group, cpu = world_group(), torch.device("cpu")
    ends = []
    for nth in itertools.count(1):
        group._start_coalescing(cpu)
        for _ in range(2):
            dist.all_reduce(torch.ones(3), async_op=True)
        work = group._end_coalescing(cpu)
        future = work.get_future()
        refuse(nth)
        meet(f"round {nth}", rank, [rank])
        ends.append(end_of(future))
        was_refused = refuse(0)
        if ends[-1] == "never" or not was_refused:
            break
    meet("over", rank, [rank])
    return ends
