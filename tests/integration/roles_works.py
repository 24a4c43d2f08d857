"""What a Work, its Future and the profiler tell: the same script on this backend and on Gloo."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from meeting import DEADLINE_S, meet
from roles_collectives import TIMEOUT

LATE_S = 1.5
Started = tuple[Any, list[torch.Tensor]]  # a Work, and where its result lies


def operations(rank: int, world: int, group: Any) -> dict[str, Callable[[], Started]]:
    def ones(count: int = 12) -> torch.Tensor:
        return torch.full((count,), float(rank + 1))

    def out_of_place(call: Callable[..., Any], count_in: int, count_out: int) -> Started:
        output = torch.zeros(count_out)
        return call(output, ones(count_in), group=group, async_op=True), [output]

    def in_place(call: Callable[..., Any], *arguments: object) -> Started:
        tensor = ones()
        return call(tensor, *arguments, group=group, async_op=True), [tensor]

    def all_gather() -> Started:
        outputs = [torch.zeros(12) for _ in range(world)]
        return dist.all_gather(outputs, ones(), group=group, async_op=True), outputs

    def gather() -> Started:
        outputs = [torch.zeros(12) for _ in range(world)] if rank == 0 else None
        work = dist.gather(ones(), outputs, dst=0, group=group, async_op=True)
        return work, outputs or []

    def scatter() -> Started:
        inputs = [ones() for _ in range(world)] if rank == 0 else None
        output = torch.zeros(12)
        return dist.scatter(output, inputs, src=0, group=group, async_op=True), [output]

    return {
        "broadcast": lambda: in_place(dist.broadcast, 0),
        "all_reduce": lambda: in_place(dist.all_reduce),
        "all_gather": all_gather,
        "gather": gather,
        "scatter": scatter,
        "all_to_all": lambda: out_of_place(dist.all_to_all_single, 12 * world, 12 * world),
    }


def what_a_work_tells(started: Started) -> dict[str, object]:
    work, outputs = started
    answer = work.wait()
    value = work.get_future().wait()
    tensors = [tensor for tensor in value if isinstance(tensor, torch.Tensor)]
    return {
        "wait": answer,
        "completed": work.is_completed(),
        "success": work.is_success(),
        "error": work.exception() is None,
        "future": sum(float(tensor.sum()) for tensor in tensors),
        "outputs": [float(output.sum()) for output in outputs],
    }


def what_the_profiler_sees(name: str, call: Callable[[], Started]) -> dict[str, object]:
    with torch.autograd.profiler.profile(record_shapes=True) as profiler:
        call()[0].wait()
    seen = profiler.function_events or []
    events = [event for event in seen if event.name.endswith(f":{name}")]
    ours = [event for event in events if not event.name.startswith("c10d")]
    return {
        "titles": [event.name.partition(":")[2] for event in ours],
        "shapes": [event.input_shapes for event in ours],
        "async": [event.is_async for event in ours],
    }


def what_messages_tell(rank: int, group: Any) -> dict[str, object]:
    told: dict[str, object] = {}
    if rank == 0:
        received = torch.zeros(5)
        anything = torch.zeros(5)
        work = dist.irecv(received, group=group, group_src=1)
        assert work is not None
        work.wait()
        told["source"] = dist.recv(anything, group=group)
        told["values"] = [float(received.sum()), float(anything.sum())]
        told["empty"] = dist.recv(torch.zeros(0), group=group, group_src=1)
        late: Any = dist.irecv(torch.zeros(5), group=group, group_src=1, tag=9)
        try:
            late.wait(timedelta(seconds=0.2))
        except RuntimeError:
            told["late"] = "raised"
    elif rank == 1:
        for _ in range(2):
            dist.send(torch.ones(5), group=group, group_dst=0)
        dist.send(torch.zeros(0), group=group, group_dst=0)
    return told


def profiled_besides(rank: int, group: Any) -> dict[str, dict[str, object]]:
    """What the profiler sees of a reduce, and of two messages from rank 0, one taken from anybody.

    Backends may leave different bits in what is no result.
    """
    tensor = torch.ones(5)
    calls: dict[str, Callable[[], Started]] = {
        "reduce": lambda: (dist.reduce(tensor, 0, group=group, async_op=True), [])
    }
    if rank == 0:
        calls["send"] = lambda: (dist.isend(tensor, group=group, group_dst=1), [])
        calls["send, taken from anybody"] = calls["send"]
    elif rank == 1:
        calls["recv"] = lambda: (dist.irecv(tensor, group=group, group_src=0), [tensor])
        calls["recvAnySource"] = lambda: (dist.irecv(tensor, group=group), [tensor])
    return {name: what_the_profiler_sees(name.split(",")[0], call) for name, call in calls.items()}


def keeps_what_was_dropped(rank: int, world: int, group: Any) -> bool:
    """Tensors and Works that the caller lets go at once live on until the operation is over."""
    kept = torch.full((300_000,), float(rank))
    for _ in range(8):
        dist.all_reduce(torch.full((300_000,), float(rank)), group=group, async_op=True)
    dist.all_reduce(kept, group=group, async_op=True)
    dist.barrier(group=group)
    return bool(kept.eq(sum(range(world))).all())


def compare_with_gloo(rank: int, world: int) -> dict[str, dict[str, object]]:
    """Each backend's answers; the test compares them."""
    dist.init_process_group("gloo", timeout=TIMEOUT)
    answers = {}
    for backend in ("gloo", "rdmatensor"):
        group = dist.new_group(backend=backend, timeout=TIMEOUT)
        told: dict[str, object] = {}
        for name, call in operations(rank, world, group).items():
            told[f"work of {name}"] = what_a_work_tells(call())
            told[f"profile of {name}"] = what_the_profiler_sees(name, call)
        told["profile besides"] = profiled_besides(rank, group)
        told["kept"] = keeps_what_was_dropped(rank, world, group)
        # Last: Gloo's connection does not outlive a receive that timed out.
        told["messages"] = what_messages_tell(rank, group)
        answers[backend] = told
    dist.barrier()
    dist.destroy_process_group()
    return answers


def waits_of_a_rank(rank: int, world: int) -> dict[str, list[float]]:
    """Seconds, and CPU seconds of all threads, of waits for a rank that comes late."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    small, large, last = torch.ones(16), torch.ones(1 << 20), world - 1

    def message(tensor: torch.Tensor) -> None:
        if rank == last:
            dist.send(tensor, 0)
        elif rank == 0:
            dist.recv(tensor, last)

    def in_background() -> None:
        work = dist.all_reduce(small, async_op=True)
        while not work.is_completed():  # the program does something else
            time.sleep(0.05)

    calls: dict[str, Callable[[], object]] = {
        "barrier": dist.barrier,
        "all_reduce": lambda: dist.all_reduce(small),
        "large all_reduce": lambda: dist.all_reduce(large),
        "broadcast": lambda: dist.broadcast(large, last),
        "recv": lambda: message(small),
        "large recv": lambda: message(large),
        "asynchronous": in_background,
    }
    found = {}
    for name, call in calls.items():
        call()  # connections, boards
        dist.barrier()
        if rank == last:
            time.sleep(LATE_S)
        begun_s, begun_cpu_s = time.monotonic(), time.process_time()
        call()
        found[name] = [time.monotonic() - begun_s, time.process_time() - begun_cpu_s]
    dist.barrier()
    dist.destroy_process_group()
    return found


def a_callback_takes_long(rank: int, _world: int) -> dict[str, object]:
    """Rank 0 waits while a callback of the Future runs on the backend's thread."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    dist.all_reduce(torch.ones(1))
    if rank == 1:
        meet("called", rank, [0])
        dist.all_reduce(torch.ones(10))
        meet("told", rank, [0])
        dist.destroy_process_group()
        return {}
    begun, may_end = threading.Event(), threading.Event()

    def callback(_: object) -> None:
        begun.set()
        assert may_end.wait(DEADLINE_S)

    work = dist.all_reduce(torch.ones(10), async_op=True)
    future = work.get_future().then(callback)
    meet("called", rank, [])
    assert begun.wait(DEADLINE_S)
    seen: dict[str, object] = {}
    start = time.monotonic()
    try:
        work.wait(timedelta(milliseconds=300))
    except RuntimeError as error:
        seen["text"] = str(error)
    seen["took"] = time.monotonic() - start
    seen["ran on"] = not future.done()
    may_end.set()
    seen["then"] = work.wait(timedelta(seconds=DEADLINE_S))
    meet("told", rank, [])
    dist.destroy_process_group()
    return seen
