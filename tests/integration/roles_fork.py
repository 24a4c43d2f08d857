"""A rank forks while it is in the middle of things; the child calls what its parent may call."""

from __future__ import annotations

import atexit
import faulthandler
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

import holdings
import torch
import torch.distributed as dist
from meeting import FOLDER_VARIABLE, SCALE, meet
from roles_life import our_backend, total

import rdmatensor
from rdmatensor._backend.extension import load_extension

TIMEOUT = timedelta(seconds=20.0 * SCALE)
# Far above what a refused call takes, far below the group's time-out.
CHILD_LIMIT_S = 12.0 * SCALE
CHILD_SAID = "child.json"
CHILD_ENDED = "child.ended"


def _said_by(call: Callable[[], object]) -> str:
    """Return the error's words, "" where there was none."""
    try:
        call()
    except Exception as error:  # noqa: BLE001 - whatever it is, the test looks at it
        return f"{type(error).__name__}: {error}"
    return ""


def _refused(peer: int, received: dist.Work, sum_of: dist.Work) -> dict[str, Callable[[], object]]:
    """Return calls of which each needs what a child has not; both works are in flight."""
    tensor = torch.ones(10)
    large = torch.ones(1 << 20)
    backend = our_backend()
    return {
        "all_reduce": lambda: dist.all_reduce(tensor),
        "large all_reduce": lambda: dist.all_reduce(large),
        "async all_reduce": lambda: dist.all_reduce(tensor, async_op=True),
        "broadcast": lambda: dist.broadcast(tensor, src=0),
        "barrier": dist.barrier,
        "monitored_barrier": rdmatensor.distributed.monitored_barrier,
        "isend": lambda: dist.isend(tensor, peer),
        "irecv": lambda: dist.irecv(tensor, peer),
        "batch": lambda: dist.batch_isend_irecv([dist.P2POp(dist.isend, tensor, peer)]),
        "wait of an irecv": received.wait,
        "wait of an all_reduce": sum_of.wait,
        "future of an irecv": received.get_future,
        "new_group": dist.new_group,
        "describe": rdmatensor.distributed.describe,
        "everyone": lambda: backend.everyone("a child's", "word"),
    }


def _harmless() -> dict[str, Callable[[], object]]:
    """Return the ends of a group, in an order in which each finds something to end."""
    backend = our_backend()
    return {
        "abort": backend.abort,
        "shutdown": backend.shutdown,
        "destroy_process_group": dist.destroy_process_group,
    }


def _live_as_child(peer: int, received: dist.Work, sum_of: dist.Work) -> NoReturn:
    """Make every call, leave what was said, and end as Python does."""
    # Beyond it nobody learns where the child hangs: its thread is gone with the parent's.
    faulthandler.dump_traceback_later(CHILD_LIMIT_S, exit=True)
    folder = Path(os.environ[FOLDER_VARIABLE])
    atexit.register((folder / CHILD_ENDED).touch)
    said = {}
    for name, call in _refused(peer, received, sum_of).items():
        print(f"child: {name}", flush=True)
        said[name] = _said_by(call)
    is_done = received.is_completed() or sum_of.is_completed()
    for name, call in _harmless().items():
        print(f"child: {name}", flush=True)
        said[name] = _said_by(call)
    found = {"said": said, "is_done": is_done}
    (folder / CHILD_SAID).write_text(json.dumps(found), encoding="utf-8")
    sys.exit(0)


def _end_of(pid: int) -> int | None:
    """Return the child's exit status, None where it had to be ended."""
    deadline_s = time.monotonic() + CHILD_LIMIT_S + 3.0
    while time.monotonic() < deadline_s:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return None


def a_rank_forks(rank: int, world: int, *, forker: int) -> dict[str, object]:
    """Rank `forker` has a receive and a sum in flight, which end well after its child has."""
    before = holdings.count(has_store=rank == 0)
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    seen: dict[str, object] = {"before": total(float(rank))}
    peer = 1 - rank
    meet("out of the sum", rank, range(world))
    if rank == forker:
        received = torch.zeros(1000)
        summed = torch.ones(7)
        first: Any = dist.irecv(received, peer, tag=3)
        second: Any = dist.all_reduce(summed, async_op=True)
        seen["child"] = _fork(peer, first, second)
        meet("the child has ended", rank, range(world))
        first.wait()
        second.wait()
        seen["received"] = received.unique().tolist()
        del first, second
    else:
        meet("the child has ended", rank, range(world))
        dist.send(torch.full((1000,), 5.0), peer, tag=3)
        summed = torch.ones(7)
        dist.all_reduce(summed)
    seen["summed"] = summed.tolist()
    seen["after"] = total(float(rank))
    # Of the name that the child's would have had: in the store it is as if it had never asked.
    seen["in a new group"] = total(float(rank), dist.new_group())
    dist.destroy_process_group()
    seen["left"] = holdings.left(before)
    return seen


def _end_the_dump() -> None:
    """Call off the dump of a stuck process, and wait for its thread, of which there may be none.

    It is waited for at a child's end; and a lock of a sanitizer's that it holds while it ends, a
    child that is forked then keeps for ever.
    """
    tasks = Path("/proc/self/task")
    before = {task.name for task in tasks.iterdir()}
    faulthandler.cancel_dump_traceback_later()
    deadline_s = time.monotonic() + 1.0
    while before <= {task.name for task in tasks.iterdir()} and time.monotonic() < deadline_s:
        time.sleep(0.001)


def _fork(peer: int, first: dist.Work, second: dist.Work) -> dict[str, object]:
    """Have a child live, and return what it left."""
    folder = Path(os.environ[FOLDER_VARIABLE])
    store = dist.distributed_c10d._get_default_store()
    keys = store.num_keys()
    _end_the_dump()
    pid = os.fork()
    if pid == 0:
        _live_as_child(peer, first, second)
    found: dict[str, object] = {"exit": _end_of(pid), "is_ended": (folder / CHILD_ENDED).exists()}
    if (folder / CHILD_SAID).exists():
        found.update(json.loads((folder / CHILD_SAID).read_text(encoding="utf-8")))
    found["new keys"] = store.num_keys() - keys
    return found


def a_parent_without_groups_forks(rank: int, world: int) -> list[int | None]:
    """Two children of a process that has the module, and no group, are a job of their own."""
    del rank, world
    folder = os.environ[FOLDER_VARIABLE]
    load_extension()
    _end_the_dump()
    children = []
    for child in range(2):
        pid = os.fork()
        if pid == 0:
            _live_in_own_group(child, f"{folder}/children")
        children.append(pid)
    return [_end_of(pid) for pid in children]


def _live_in_own_group(rank: int, path: str) -> NoReturn:
    store = dist.FileStore(path, 2)
    dist.init_process_group("rdmatensor", store=store, rank=rank, world_size=2, timeout=TIMEOUT)
    works = [dist.all_reduce(torch.ones(3), async_op=True) for _ in range(3)]
    ended: list[float] = []
    for work in works:  # on a thread of the module, which the child has of its own
        work.get_future().then(lambda future: ended.append(float(future.value()[0].sum())))
        work.wait()
    deadline_s = time.monotonic() + CHILD_LIMIT_S
    while len(ended) < len(works) and time.monotonic() < deadline_s:
        time.sleep(0.001)
    dist.destroy_process_group()
    sys.exit(0 if ended == [6.0] * len(works) else 3)
