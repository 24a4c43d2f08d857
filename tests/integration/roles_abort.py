"""Groups that are aborted or shut down in every state; the process then makes another."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import holdings
import torch
import torch.distributed as dist
from meeting import SCALE, meet
from roles_life import our_backend, total

TIMEOUT = timedelta(seconds=20 * SCALE)


def _in_flight(rank: int) -> list[dist.Work]:
    """Start what ends only by force: nobody sends, and nobody takes."""
    peer = 1 - rank
    works = [
        dist.irecv(torch.empty(10), peer, tag=3),
        dist.irecv(torch.empty(1 << 20), peer, tag=4),
        dist.isend(torch.ones(1 << 22), peer, tag=5),
    ]
    if rank == 0:  # alone: the other one does not join
        works.append(dist.all_reduce(torch.ones(1 << 16), async_op=True))
    return [work for work in works if work is not None]


def _errors_of(works: list[dist.Work]) -> list[str]:
    found = []
    for work in works:
        try:
            work.wait()
        except RuntimeError as error:
            found.append(str(error))
        else:
            found.append("")
    return found


def _of_each(names: str, *, in_a_thread: bool = False) -> Callable[[str], list[threading.Timer]]:
    """Return what calls these of the backend, one after the other; threads are to be joined."""

    def run(_way: str) -> list[threading.Timer]:
        backend = our_backend()
        calls = [getattr(backend, name) for name in names.split(",")]
        if not in_a_thread:
            for call in calls:
                call()
            return []
        timers = [threading.Timer(0.2, call) for call in calls]
        for timer in timers:
            timer.start()
        return timers

    return run


def _interrupted(way: str) -> list[threading.Timer]:
    """Wait, be interrupted as by Ctrl-C, and abort then."""
    rank = dist.get_rank()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have it ignored
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    began_s = time.monotonic()
    try:
        timer.start()
        dist.recv(torch.empty(7), 1 - rank, tag=9)
    except KeyboardInterrupt:
        if time.monotonic() - began_s > 5.0 * SCALE:
            raise AssertionError("the wait was not interrupted promptly") from None
    else:
        raise AssertionError("nobody sent")
    meet(f"{way}: interrupted", rank, range(2))  # whom an abort reaches hears of it instead
    our_backend().abort()
    return [timer]


WAYS: dict[str, Callable[[str], list[threading.Timer]]] = {
    "abort": _of_each("abort"),
    "abort from a thread": _of_each("abort", in_a_thread=True),
    "abort twice": _of_each("abort,abort"),
    "abort, then shutdown": _of_each("abort,shutdown"),
    "shutdown": _of_each("shutdown"),
    "shutdown from a thread": _of_each("shutdown", in_a_thread=True),
    "shutdown twice": _of_each("shutdown,shutdown"),
    "shutdown, then abort": _of_each("shutdown,abort"),
    "abort after Ctrl-C": _interrupted,
}


def _set_up(rank: int, world: int, store: str) -> None:
    dist.init_process_group(
        "rdmatensor", init_method=f"file://{store}", rank=rank, world_size=world, timeout=TIMEOUT
    )


def _error_of(call: Callable[[], object]) -> str:
    try:
        call()
    except RuntimeError as error:
        return str(error)
    return ""


def ended(
    rank: int, world: int, *, store: str, is_connected: bool, ways: Sequence[str] = tuple(WAYS)
) -> dict[str, object]:
    """End a group in each way, with works in flight and with none; the next must work.

    is_connected: a sum went well before; else the works, if any, are the group's first.
    """
    before_all = holdings.count()
    found: dict[str, object] = {}
    for turn, way in enumerate(ways):
        act = WAYS[way]
        for is_busy in (True, False):
            name = f"{way}, {'busy' if is_busy else 'idle'}"
            _set_up(rank, world, f"{store}.{turn}.{is_busy}")
            before = total(float(rank)) if is_connected else 1.0
            works = _in_flight(rank) if is_busy else []
            meet(f"{name}: posted", rank, range(world))
            began_s = time.monotonic()
            timers = act(name)
            errors = _errors_of(works)
            took_s = time.monotonic() - began_s
            for timer in timers:
                timer.join()
            meet(f"{name}: ended", rank, range(world))
            again = _error_of(lambda: dist.all_reduce(torch.ones(3)))
            meet(f"{name}: told", rank, range(world))
            dist.destroy_process_group()
            found[name] = {"before": before, "errors": errors, "seconds": took_s, "again": again}
    _set_up(rank, world, f"{store}.last")
    found["last"] = total(float(rank))
    dist.destroy_process_group()
    found["left"] = holdings.left(before_all)
    return found


def judge_ended(results: Sequence[dict[str, Any]], ways: Sequence[str] = tuple(WAYS)) -> None:
    """Check what ended() returned on each rank."""
    for rank, found in enumerate(results):
        assert found.pop("last") == 1.0
        assert found.pop("left") == {}
        assert len(found) == 2 * len(ways)
        for name, one in found.items():
            assert one["before"] == 1.0
            assert len(one["errors"]) == (0 if name.endswith("idle") else 4 - rank)
            assert all("rdmatensor:" in error for error in one["errors"]), (name, one["errors"])
            assert one["seconds"] < 10.0 * SCALE, name
            assert "rdmatensor:all_reduce" in one["again"], name


# Of which each waits for the other rank, whose address it needs first.
FIRST_CALLS: dict[str, Callable[[], object]] = {
    "all_reduce": lambda: dist.all_reduce(torch.ones(10)),
    "broadcast": lambda: dist.broadcast(torch.ones(10), src=1),
    "send": lambda: dist.send(torch.ones(10), 1),
    "recv": lambda: dist.recv(torch.ones(10), 1),
    "barrier": dist.barrier,
}


def ended_while_it_connects(rank: int, world: int, *, store: str) -> dict[str, object]:
    """Rank 0 ends, in another thread, a group in which it calls a rank that has not come yet.

    After an abort that one comes, to a group that has ended; after a shutdown nobody is there.
    """
    found: dict[str, object] = {}
    for act in ("abort", "shutdown"):
        for turn, (operation, call) in enumerate(FIRST_CALLS.items()):
            name = f"{act} in {operation}"
            place = f"{store}.{act}.{turn}"
            if rank == 0:
                _set_up(rank, world, place)
                timer = threading.Timer(0.3, getattr(our_backend(), act))
                timer.start()
                began_s = time.monotonic()
                error = _error_of(call)
                found[name] = {"error": error, "seconds": time.monotonic() - began_s}
                timer.join()
            meet(f"{name}: ended", rank, range(world))
            if rank == 1 and act == "abort":
                _set_up(rank, world, place)
                began_s = time.monotonic()
                error = _error_of(lambda: dist.all_reduce(torch.ones(10)))
                found[name] = {"error": error, "seconds": time.monotonic() - began_s}
            meet(f"{name}: told", rank, range(world))
            if dist.is_initialized():
                dist.destroy_process_group()
    _set_up(rank, world, f"{store}.last")
    found["last"] = total(float(rank))
    dist.destroy_process_group()
    return found
