"""Methods of c10d::Backend but the collectives: pending work, errors, numbers, large tensors."""

from __future__ import annotations

import os
import signal
import threading
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from meeting import meet
from roles_collectives import TIMEOUT
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import rdmatensor
from rdmatensor.context import default_context

LATE_S = 0.5
CPU = torch.device("cpu")


def world_group() -> Any:
    return dist.distributed_c10d._get_default_group()


def copied_bytes() -> int:
    return int(default_context().counters().copied_bytes)


def pending(rank: int, world: int) -> dict[str, object]:
    """waitForPendingWorks(): operations whose Works were dropped, and one that never ends."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    dist.barrier()
    tensors = [torch.full((1 + 20_000 * i,), rank + 1.0) for i in range(8)]
    if rank == world - 1:
        time.sleep(LATE_S)
    begun_s = time.monotonic()
    for tensor in tensors:
        dist.all_reduce(tensor, async_op=True)
    world_group()._wait_for_pending_works()
    found: dict[str, object] = {
        "begun_s": begun_s,
        "waited_until_s": time.monotonic(),
        "sums": [float(tensor.sum()) / tensor.numel() for tensor in tensors],
        "texts": [],
    }
    dist.barrier()
    if rank == 0:
        found["texts"] = [pending_error(is_kept) for is_kept in (True, False)]
    meet("told", rank, range(world))
    dist.destroy_process_group()
    return found


def pending_error(is_kept: bool) -> str:
    """Wait in vain for one that was dropped, or is kept and has more time than the wait has."""
    rdmatensor.distributed.set_timeout(TIMEOUT if is_kept else timedelta(seconds=0.3))
    work = dist.all_reduce(torch.ones(3), async_op=True)
    if not is_kept:
        del work
    rdmatensor.distributed.set_timeout(timedelta(seconds=0.3))
    try:
        world_group()._wait_for_pending_works()
    except RuntimeError as error:
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return "no error"


def pending_together(rank: int, world: int) -> list[bool]:
    """Two threads wait for one operation: whether it was over when each came back."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    dist.barrier()
    if rank == world - 1:
        time.sleep(LATE_S)
    work: Any = dist.all_reduce(torch.ones(3), async_op=True)
    group = world_group()
    found: list[bool] = []

    def wait() -> None:
        group._wait_for_pending_works()
        found.append(work.is_completed())

    waiters = [threading.Thread(target=wait) for _ in range(2)]
    for waiter in waiters:
        waiter.start()
    for waiter in waiters:
        waiter.join()
    dist.barrier()
    dist.destroy_process_group()
    return found


def errors(rank: int, world: int, *, how: str) -> list[str]:
    """getError() before and after a group has gone wrong."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    backend = world_group()._get_backend(CPU)
    dist.barrier()
    said = [backend.get_error().name]
    meet("out of the barrier", rank, range(world))
    if how == "late":
        rdmatensor.distributed.set_timeout(timedelta(seconds=0.3))
    if how == "aborted" and rank == 1:
        backend.abort()
    elif how == "killed" and rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    elif rank != 1:
        try:
            dist.all_reduce(torch.ones(3))
        except RuntimeError as error:
            said.append(type(error).__name__)
    if how == "late" and rank == 1:  # it has heard of it, once it is there
        meet("given up", rank, [0])
        await_error(backend)
    said.append(backend.get_error().name)
    if how != "killed":
        meet("given up", rank, [rank])
        meet("told", rank, range(world))
    return said


def await_error(backend: Any) -> None:
    deadline_s = time.monotonic() + TIMEOUT.total_seconds()
    while backend.get_error().name == "SUCCESS" and time.monotonic() < deadline_s:
        time.sleep(0.01)


def numbers(rank: int, world: int) -> list[int]:
    """Sequence numbers after each kind of operation; of another group, its own."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    pair = dist.new_group([0, 1])
    found = [rdmatensor.distributed.sequence_number()]
    dist.all_reduce(torch.ones(3))
    found.append(rdmatensor.distributed.sequence_number())
    works = [dist.all_reduce(torch.ones(3), async_op=True) for _ in range(3)]
    for work in works:
        work.wait()
    found.append(rdmatensor.distributed.sequence_number())
    with dist._coalescing_manager():
        for _ in range(4):
            dist.all_reduce(torch.ones(3))
    found.append(rdmatensor.distributed.sequence_number())
    if rank < 2:
        dist.all_reduce(torch.ones(3), group=pair)
        found.append(rdmatensor.distributed.sequence_number(pair))
    dist.barrier()
    found.append(rdmatensor.distributed.sequence_number())
    dist.destroy_process_group()
    return found


def same_tag_in_two_groups(rank: int, world: int) -> list[float]:
    """Messages between the same ranks under one tag, received in the groups' other order."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    groups: list[Any] = [dist.group.WORLD, dist.new_group(), dist.new_group([0, world - 1])]
    received = [torch.zeros(3) for _ in groups]
    if rank == 0:
        works = [
            dist.isend(torch.full((3,), 1.0 + number), world - 1, group=group, tag=4)
            for number, group in enumerate(groups)
        ]
        for work in works:
            assert work is not None
            work.wait()
    elif rank == world - 1:
        for group, tensor in reversed(list(zip(groups, received, strict=True))):
            dist.recv(tensor, 0, group=group, tag=4)
    dist.barrier()
    dist.destroy_process_group()
    return [float(tensor[0]) for tensor in received]


def large_on_request(rank: int, world: int, *, size_bytes: int) -> dict[str, Any]:
    """The same tensor summed again and again, in torch's memory and in the arena."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    found: dict[str, Any] = {}
    for kind in ("private", "adopted"):
        tensor = torch.zeros(size_bytes // 4)
        if kind == "adopted":
            rdmatensor.torch.adopt(tensor)
        found[kind] = turns = []
        for turn in range(3):
            tensor.fill_(rank + turn + 1.0)
            tensor[-1] = 0.0
            dist.barrier()
            before = copied_bytes()
            dist.all_reduce(tensor)
            turns.append(
                {
                    "copied": copied_bytes() - before,
                    "is_in_arena": rdmatensor.torch.is_in_arena(tensor),
                    "address": tensor.data_ptr(),
                    "is_right": is_sum(tensor, world, turn),
                }
            )
    dist.destroy_process_group()
    return found


def is_sum(tensor: torch.Tensor, world: int, turn: int) -> bool:
    expected = torch.full_like(tensor, float(sum(rank + turn + 1 for rank in range(world))))
    expected[-1] = 0.0
    return torch.equal(tensor, expected)


def large_by_default(rank: int, world: int, *, size_bytes: int) -> list[dict[str, Any]]:
    """A gradient of this size, step after step; nothing in the program asks for the arena."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    inner = nn.Linear(256, size_bytes // 4 // 256, bias=False)
    model = DistributedDataParallel(inner, gradient_as_bucket_view=True)
    steps = []
    for step in range(5):
        x = torch.full((1, 256), float(rank + step))
        model.zero_grad(set_to_none=False)
        dist.barrier()
        before = copied_bytes()
        model(x).sum().backward()
        assert inner.weight.grad is not None
        mean = sum(other + step for other in range(world)) / world
        steps.append(
            {
                "copied": copied_bytes() - before,
                "is_in_arena": rdmatensor.torch.is_in_arena(inner.weight.grad),
                "address": inner.weight.grad.data_ptr(),
                "is_right": torch.allclose(inner.weight.grad, torch.tensor(mean)),
            }
        )
    dist.destroy_process_group()
    return steps


def hooked(rank: int, world: int) -> dict[str, object]:
    """registerOnCompletionHook(): operations waited for, dropped, sent; a hook that fails once."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    dist.all_reduce(torch.ones(3))  # of which the hook does not hear
    group = world_group()
    heard: list[tuple[str, int, float, bool]] = []

    def hook(info: Any) -> None:
        started_s, finished_s = (t.total_seconds() for t in (info.time_started, info.time_finished))
        active_s = info.active_duration.total_seconds()
        heard.append((info.op_type.name, info.seq, active_s, 0 < started_s <= finished_s))
        if len(heard) == 2:
            raise ValueError("once")

    group._register_on_completion_hook(hook)
    for _ in range(3):
        dist.all_reduce(torch.ones(3))
    if rank == world - 1:
        time.sleep(LATE_S)
    begun_s = time.monotonic()
    dist.all_gather_into_tensor(torch.empty(world), torch.ones(1), async_op=True)  # dropped
    left_s = time.monotonic()
    kept = dist.broadcast(torch.ones(1 << 20), 0, async_op=True)  # nobody waits
    group._wait_for_pending_works()
    in_time = len(heard)
    dist.send(torch.ones(2), 1) if rank == 0 else rank == 1 and dist.recv(torch.empty(2), 0)
    meet("sent", rank, range(world))
    with_twice = ""
    try:
        group._register_on_completion_hook(hook)
    except RuntimeError as error:
        with_twice = str(error).splitlines()[0]
    deadline_s = time.monotonic() + TIMEOUT.total_seconds()
    while rank < 2 and len(heard) == in_time and time.monotonic() < deadline_s:
        time.sleep(0.01)  # messages are no pending works
    return {
        "heard": heard,
        "in_time": in_time,
        "twice": with_twice,
        "kept": kept.is_completed(),
        "begun_s": begun_s,  # before the call of the all_gather
        "left_s": left_s,  # and after it
    }


def slow_hook(rank: int, world: int) -> dict[str, object]:
    """A hook that takes longer than the finisher waits; a receive that is given up next to it."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    numbers: list[int] = []
    inside, most_inside = 0, 0

    def hook(info: Any) -> None:
        nonlocal inside, most_inside
        inside += 1
        most_inside = max(most_inside, inside)
        time.sleep(1.3)  # gives Python's lock up
        numbers.append(info.seq)
        inside -= 1

    world_group()._register_on_completion_hook(hook)
    for _ in range(3):
        dist.all_reduce(torch.ones(3))
    got = torch.zeros(2)
    if rank == 1:
        try:
            dist.irecv(torch.zeros(2), 0).wait(timedelta(seconds=0.2))
        except RuntimeError:
            meet("gave up", rank, range(world))
            dist.recv(got, 0)
    else:
        meet("gave up", rank, range(world))
        dist.send(torch.ones(2), 1)
    world_group()._wait_for_pending_works()
    dist.destroy_process_group()
    return {"numbers": numbers[:3], "most_inside": most_inside, "got": got.tolist()}


def timed(rank: int, world: int) -> dict[str, object]:
    """enableCollectivesTiming() and Work.getDuration()."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    untimed = dist.all_reduce(torch.ones(3), async_op=True)
    untimed.wait()
    texts = []
    try:
        untimed._get_duration()
    except RuntimeError as error:
        texts.append(str(error).splitlines()[0])
    world_group()._enable_collectives_timing()
    if rank == world - 1:
        time.sleep(LATE_S)
    begun_s = time.monotonic()
    work = dist.all_reduce(torch.ones(3), async_op=True)
    left_s = time.monotonic()
    work.wait()
    found = {
        "texts": texts,
        "begun_s": begun_s,  # before its call
        "left_s": left_s,  # and after it
        "waited_until_s": time.monotonic(),
        "took_ms": work._get_duration(),
    }
    dist.destroy_process_group()
    return found
