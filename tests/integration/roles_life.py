"""Groups that come and go, overlap, end badly, or share the host with others."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from meeting import meet

import rdmatensor

TIMEOUT = timedelta(seconds=20)


def total(value: float, group: dist.ProcessGroup | None = None, count: int = 10) -> float:
    tensor = torch.full((count,), value)
    dist.all_reduce(tensor, group=group)
    if not tensor.eq(tensor[0]).all():
        raise AssertionError(f"unequal elements: {tensor}")
    return float(tensor[0])


def our_backend() -> Any:
    return dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))


def made_again(rank: int, world: int, *, store: str) -> list[float]:
    """The same processes with other ranks, in other numbers, over a new and over a used store."""
    sums = []
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    sums.append(total(rank))
    dist.destroy_process_group()
    for turn in range(3):  # the file is there from the second turn on
        turned = (rank + turn) % world
        dist.init_process_group(
            "rdmatensor", init_method=f"file://{store}", rank=turned, world_size=world
        )
        root = torch.tensor([float(rank)])
        dist.broadcast(root, src=0)  # who is rank 0 now
        sums.append(float(root))
        dist.barrier()
        dist.destroy_process_group()
    if rank < world - 1:  # fewer
        dist.init_process_group(
            "rdmatensor", init_method=f"file://{store}.fewer", rank=rank, world_size=world - 1
        )
        sums.append(total(1.0))
        dist.destroy_process_group()
    return sums


def sub_groups(rank: int, world: int) -> dict[str, float]:
    """Groups that overlap, with operations of all of them in flight together."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    rows = [dist.new_group([r, (r + 1) % world]) for r in range(world)]
    mine = {r: rows[r] for r in (rank, (rank - 1) % world)}
    tensors = {r: torch.full((4096,), float(rank)) for r in mine}
    works = [dist.all_reduce(tensors[r], group=g, async_op=True) for r, g in sorted(mine.items())]
    everybody = total(1.0)
    for work in works:
        work.wait()
    others = [r for r in range(world) if r != rank]
    right = all(float(tensors[r][0]) == r + (r + 1) % world for r in mine)
    last = dist.new_group([world - 1, 0])  # whose ranks are not in order
    seen = total(float(rank), last) if rank in (0, world - 1) else -1.0
    dist.barrier()
    dist.destroy_process_group()
    return {"everybody": everybody, "right": right, "last": seen, "others": len(others)}


def threads(rank: int, world: int) -> list[float]:
    """Each thread with a group of its own."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    groups = [dist.new_group() for _ in range(4)]
    sums: dict[int, float] = {}

    def work(index: int) -> None:
        for _ in range(50):
            sums[index] = total(float(rank + index), groups[index], 1 + 5000 * index)

    workers = [threading.Thread(target=work, args=(index,)) for index in range(len(groups))]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    dist.destroy_process_group()
    return [sums[index] for index in range(len(groups))]


def exit_in_a_mess(rank: int, world: int, *, how: str) -> float:
    """End the process without tidying up; the launcher sees how it ended."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    keep = globals().setdefault("kept", [])  # alive until the interpreter takes itself apart
    result = total(float(rank))
    if how == "in flight":
        keep.append(dist.irecv(torch.ones(10), (rank + 1) % 2, tag=3))
        keep.append(dist.irecv(torch.ones(1 << 20), (rank + 1) % 2, tag=4))
        waiting = dist.irecv(torch.ones(3), (rank + 1) % 2, tag=5)
        assert waiting is not None
        keep.append(waiting.get_future().then(lambda future: future))
        keep.append(dist.all_reduce(torch.ones(1 << 20), async_op=True))
        meet("posted", rank, range(world))  # nobody may send to one who left
    elif how == "twice":
        dist.destroy_process_group()
        try:
            dist.destroy_process_group()
        except AssertionError:
            result += 100.0  # torch itself says that there is none
    elif how == "destroyed in flight":
        keep.append(dist.irecv(torch.ones(10), (rank + 1) % 2, tag=3))
        keep.append(dist.isend(torch.ones(1 << 22), (rank + 1) % 2, tag=4))
        meet("posted", rank, range(world))  # nobody may send to one who left
        dist.destroy_process_group()
    elif how == "arena":
        from rdmatensor.torch import empty

        keep.append(empty(1000))
    elif how.startswith("at exit: "):
        keep.append(dist.irecv(torch.ones(10), (rank + 1) % 2, tag=3))
        keep.append(dist.isend(torch.ones(1 << 22), (rank + 1) % 2, tag=4))
        meet("posted", rank, range(world))  # nobody may send to one who left
        atexit.register(_at_exit, how.removeprefix("at exit: "), rank)
    else:
        assert how == "not destroyed"
    return result


def _at_exit(how: str, rank: int) -> None:
    """End the group while the interpreter ends; the test looks for the words in the log."""
    if how == "destroy":
        dist.destroy_process_group()
    else:
        getattr(our_backend(), how)()
    print(f"rank {rank}: {how} at exit returned", flush=True)


def aborted(rank: int, world: int) -> dict[str, object]:
    """abort() on one rank ends what the others wait for."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    dist.barrier()
    backend = our_backend()
    meet("out of the barrier", rank, range(world))
    if rank == 0:
        time.sleep(0.3)
        backend.abort()
        return {"text": "", "error": backend.get_error().name}
    started_s = time.monotonic()
    try:
        dist.recv(torch.ones(3), 0)
    except RuntimeError as error:
        return {"text": str(error), "seconds": time.monotonic() - started_s}
    return {"text": "no error"}


def aborted_for_one_that_never_came(rank: int, world: int, *, store: str) -> dict[str, object]:
    """Rank 0 gives up waiting for the last one, and then ends the group for all."""
    text = ""
    if rank < world - 1:
        limit = timedelta(seconds=2) if rank == 0 else TIMEOUT
        where = f"file://{store}"
        dist.init_process_group("rdmatensor", where, limit, world_size=world, rank=rank)
        try:
            dist.all_reduce(torch.ones(3))
        except RuntimeError as error:
            text = str(error)
        if rank == 0:
            our_backend().abort()
    meet("told", rank, range(world))
    return {"text": text}


def aborted_after_an_overcome_failure(rank: int, world: int) -> dict[str, object]:
    """Rank 0 aborts long after a receive that timed out, or right after another one."""
    seen: dict[str, object] = {}
    for when in ("overcome", "not overcome"):
        dist.init_process_group("rdmatensor", timeout=TIMEOUT)
        total(1.0)
        if rank == 0:
            work = dist.irecv(torch.ones(3), 1, tag=7)
            assert work is not None
            try:
                work.wait(timedelta(milliseconds=100))
            except RuntimeError as error:
                seen[f"{when}, timed out"] = str(error)
        if when == "overcome":
            total(1.0)
        meet(f"{when}: aborts", rank, range(world))
        if rank == 0:
            our_backend().abort()
        else:
            try:
                dist.recv(torch.ones(3), 0)
            except RuntimeError as error:
                seen[when] = str(error)
        meet(f"{when}: aborted", rank, range(world))
        dist.destroy_process_group()
    return seen


def shut_down_while_waiting(rank: int, _world: int) -> dict[str, object]:
    """Another thread destroys the group under a waiting one."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    dist.barrier()
    seen: dict[str, object] = {}
    has_begun = threading.Event()

    def wait() -> None:
        has_begun.set()
        try:
            dist.recv(torch.ones(3), 1 - rank)
        except RuntimeError as error:
            seen["text"] = str(error)

    waiter = threading.Thread(target=wait)
    waiter.start()
    assert has_begun.wait(10.0)
    time.sleep(0.3)
    dist.destroy_process_group()
    waiter.join(5.0)
    return {**seen, "ended": not waiter.is_alive()}


def one_of_two_jobs(rank: int, world: int, *, seed: float, steps: int) -> float:
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    seen = {total(seed + rank, count=1 + 100 * step) for step in range(steps)}
    dist.destroy_process_group()
    (only,) = seen
    return only


def descriptions(rank: int, world: int) -> dict[str, object]:
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    before = rdmatensor.distributed.describe()["peers"]
    store = dist.distributed_c10d._get_default_store()
    store.add("described", 1)
    while store.add("described", 0) < world:  # nobody connects before all have looked
        time.sleep(0.01)
    pair = dist.new_group([0, 1])
    if rank < 2:
        total(1.0, pair)
    ours = rdmatensor.distributed.describe(pair)["peers"] if rank < 2 else []
    whole = rdmatensor.distributed.describe()
    backend = our_backend()
    dist.barrier()
    dist.destroy_process_group()
    return {
        "before": before,
        "ours": ours,
        "peers": whole["peers"],
        "secret": whole["secret"],
        "listens": whole["listens"],
        "name": backend.name(),
        "timeout_s": backend.options._timeout.total_seconds(),
    }


def split(rank: int, world: int) -> dict[str, float]:
    """The C++ split of a process group, by halves."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    group: Any = dist.distributed_c10d._get_default_group()
    half = [r for r in range(world) if (r < world // 2) == (rank < world // 2)]
    part = group.split_group(half, timeout=TIMEOUT, group_name=f"half{half[0]}", group_desc="half")
    tensor = torch.full((7,), float(rank))
    part.allreduce([tensor]).wait()
    dist.barrier()
    dist.destroy_process_group()
    return {"sum": float(tensor[0]), "want": float(sum(half))}


def monitored(rank: int, world: int) -> dict[str, str]:
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    rdmatensor.distributed.monitored_barrier(timeout=TIMEOUT)
    text = ""
    try:
        if rank != 1:
            rdmatensor.distributed.monitored_barrier(
                timeout=timedelta(seconds=1), wait_all_ranks=True
            )
    except RuntimeError as error:
        text = str(error)
    meet("told", rank, range(world))  # a rank that left would not be one that did not come
    return {"text": text}


def secret_on_one_rank_only(rank: int, world: int, *, file: str) -> str:
    if rank == 1:
        Path(file).write_text("hush", encoding="utf-8")
        os.environ["RDMATENSOR_SECRET_FILE"] = file
    try:
        dist.init_process_group("rdmatensor", timeout=timedelta(seconds=5))
        dist.barrier()
    except RuntimeError as error:
        return f"{type(error).__name__}: {error}"
    return json.dumps(None)


def setting_on_one_rank_only(rank: int, world: int, *, name: str, text: str) -> str:
    if rank == 1:
        os.environ[name] = text
    try:
        dist.init_process_group("rdmatensor", timeout=timedelta(seconds=5))
        dist.barrier()
    except RuntimeError as error:
        return f"{type(error).__name__}: {error}"
    return "agreed"


def read_while_it_ends(rank: int, world: int) -> list[str]:
    """Rank 0 ends groups that another thread looks at; what the others' say of it."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    groups = [dist.new_group() for _ in range(10)]
    backends = [group._get_backend(torch.device("cpu")) for group in groups]
    for group in groups:
        dist.barrier(group=group)
    ended = threading.Event()

    def look() -> None:
        while not ended.is_set():
            for backend in backends:
                with contextlib.suppress(RuntimeError):  # it has been destroyed
                    backend._collectives()

    if rank == 0:
        readers = [threading.Thread(target=look) for _ in range(3)]
        for reader in readers:
            reader.start()
        for group in groups:
            dist.destroy_process_group(group)
        ended.set()
        for reader in readers:
            reader.join()
    meet("ended", rank, range(world))
    time.sleep(0.2)
    return [backend.get_error().name for backend in backends] if rank == 1 else []
