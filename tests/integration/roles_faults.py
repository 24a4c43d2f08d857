"""What goes wrong: ranks that die, disagree, compute for long, or give what cannot be moved."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import holdings
import torch
import torch.distributed as dist
from meeting import FOLDER_VARIABLE, meet

LONG = timedelta(seconds=60)
SHORT = timedelta(milliseconds=300)


def died(path: str) -> None:
    """Die as a killed process does, and leave the time of it."""
    Path(path).write_text(str(time.monotonic()), encoding="utf-8")
    os.kill(os.getpid(), signal.SIGKILL)


def wait_in_all_reduce(_rank: int, _world: int) -> None:
    while True:
        dist.all_reduce(torch.ones(1000))


def wait_in_recv(rank: int, world: int) -> None:
    """Wait for somebody who lives and sends nothing: a neighbour that is not the victim."""
    peer = next(r for r in range(world) if r not in (rank, int(os.environ["VICTIM"])))
    dist.recv(torch.ones(1000), peer)


def wait_in_future(_rank: int, _world: int) -> None:
    while True:
        dist.all_reduce(torch.ones(1000), async_op=True).get_future().wait()


def move_much(_rank: int, _world: int) -> None:
    tensor = torch.ones(4 << 20)
    while True:
        dist.all_reduce(tensor)


WAITS = {
    "all_reduce": wait_in_all_reduce,
    "recv": wait_in_recv,
    "future": wait_in_future,
    "transfer": move_much,
}


def a_rank_is_killed(
    rank: int, world: int, *, victim: int, how: str, died_at: str
) -> dict[str, object]:
    """Survivors return what they saw, and when, and what is left of the group after its end."""
    before = holdings.count(has_store=rank == 0)
    os.environ["VICTIM"] = str(victim)
    dist.init_process_group("rdmatensor", timeout=LONG)
    for _ in range(3):
        dist.all_reduce(torch.ones(10))
    meet("ready", rank, range(world))  # all out of the last all_reduce
    if rank == victim and how == "transfer":  # in the middle of moving
        threading.Timer(0.5, died, (died_at,)).start()
    elif rank == victim:
        time.sleep(0.5)  # the others wait by then
        died(died_at)
    try:
        WAITS[how](rank, world)
    except RuntimeError as error:
        seen = {"at_s": time.monotonic(), "type": type(error).__name__, "text": str(error)}
    again = "no error"
    try:
        dist.all_reduce(torch.ones(1))
    except RuntimeError as error:
        again = str(error)
    # The one to be blamed is the victim, not a survivor that was faster.
    meet("told", rank, (other for other in range(world) if other != victim))
    dist.destroy_process_group()
    return {**seen, "again": again, "left": holdings.left(before)}


def hold_the_gil(seconds: float) -> None:
    ctypes.PyDLL(None).usleep(int(seconds * 1e6))  # PyDLL keeps Python's lock


def a_rank_computes(rank: int, _world: int, *, seconds: float) -> float:
    """Rank 1 holds Python's lock; with a Future outstanding, whose callback needs that lock."""
    dist.init_process_group("rdmatensor", timeout=timedelta(seconds=seconds + 30))
    dist.all_reduce(torch.ones(10))
    called = []
    work = dist.all_reduce(torch.ones(10), async_op=True)
    work.get_future().then(lambda _: called.append(True))
    if rank == 1:
        hold_the_gil(seconds)
    total = torch.ones(10)
    dist.all_reduce(total)
    work.wait()
    dist.barrier()
    dist.destroy_process_group()
    assert called == [True]
    return float(total[0])


def differing_call(rank: int, what: str) -> None:
    is_odd = rank == 1
    if what == "count":
        dist.all_reduce(torch.ones(6 if is_odd else 5))
    elif what == "large count":
        dist.all_reduce(torch.ones((1 << 20) + 1 if is_odd else 5))
    elif what == "dtype":
        dist.all_reduce(torch.ones(5, dtype=torch.int32 if is_odd else torch.float32))
    elif what == "reduction":
        dist.all_reduce(torch.ones(5), op=dist.ReduceOp.MAX if is_odd else dist.ReduceOp.SUM)
    elif is_odd:
        dist.broadcast(torch.ones(5), src=0)
    else:
        dist.all_reduce(torch.ones(5))


def ranks_disagree(rank: int, world: int, *, what: str) -> dict[str, str]:
    dist.init_process_group("rdmatensor", timeout=timedelta(seconds=20))
    dist.all_reduce(torch.ones(10))
    meet("ready", rank, range(world))  # a rank that is still in the last one would fail there
    try:
        differing_call(rank, what)
        dist.barrier()  # a rank that needed nothing of the others learns it here
    except RuntimeError as error:
        return {"type": type(error).__name__, "text": str(error)}
    return {"type": "no error", "text": ""}


def error_of(call: Callable[[], object]) -> str:
    try:
        call()
    except (RuntimeError, ValueError, TypeError) as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def bad_arguments(rank: int, world: int) -> dict[str, str]:
    """Refused here, before anybody else hears of it; then everything still works."""
    dist.init_process_group("rdmatensor", timeout=LONG)
    group = dist.distributed_c10d._get_default_group()
    backend: Any = group._get_backend(torch.device("cpu"))
    errors = {
        "expanded": error_of(lambda: dist.broadcast(torch.ones(1).expand(3), 0)),
        "recv": error_of(lambda: dist.recv(torch.ones(1).expand(3), (rank + 1) % world)),
        "device": error_of(lambda: backend.allreduce([torch.ones(2, device="meta")])),
        "lengths": error_of(lambda: dist.all_gather([torch.ones(2)] * world, torch.ones(3))),
        "list": error_of(lambda: backend.allgather([[torch.ones(2)]], [torch.ones(2)])),
        "dtypes": error_of(
            lambda: dist.all_gather_into_tensor(
                torch.ones(2 * world, dtype=torch.int64), torch.ones(2)
            )
        ),
        "average": error_of(
            lambda: dist.all_reduce(torch.ones(2, dtype=torch.bool), op=dist.ReduceOp.AVG)
        ),
        "float8": error_of(lambda: dist.all_reduce(torch.ones(2).to(torch.float8_e4m3fn))),
        "splits": error_of(
            lambda: dist.all_to_all_single(torch.ones(4), torch.ones(4), [9] * world, [1] * world)
        ),
        "tag": error_of(lambda: backend.send([torch.ones(2)], (rank + 1) % world, -1)),
        "rank": error_of(lambda: backend.send([torch.ones(2)], world, 0)),
        "conjugate": error_of(
            lambda: backend.broadcast([torch.ones(2, dtype=torch.complex64).conj()])
        ),
    }
    check = torch.ones(3)
    dist.all_reduce(check)
    errors["afterwards"] = f"sum {check.tolist()}"
    dist.destroy_process_group()
    return errors


def deadlines_pass(rank: int, world: int) -> dict[str, object]:
    """Rank 0 waits for what never comes, in every way of waiting; how many time-outs it took."""
    dist.init_process_group("rdmatensor", timeout=LONG)
    dist.all_reduce(torch.ones(10))
    started_s = time.monotonic()
    seen: dict[str, object] = {}
    if rank == 0:
        short = SHORT
        work = dist.irecv(torch.ones(3), 1, tag=7)
        assert work is not None
        seen["wait"] = error_of(lambda: work.wait(short))
        seen["again"] = error_of(lambda: work.wait(short))
        group = dist.distributed_c10d._get_default_group()
        group.set_timeout(short)
        seen["recv"] = error_of(lambda: dist.recv(torch.ones(3), 1, tag=8))
        seen["took"] = (time.monotonic() - started_s) / short.total_seconds()
        meet("given up", rank, range(world))
        group.set_timeout(LONG)
        late = torch.zeros(3)
        seen["later"] = error_of(lambda: dist.recv(late, 1, tag=7))
        seen["value"] = late.tolist()
    else:
        meet("given up", rank, range(world))
        dist.send(torch.full((3,), 5.0), 0, tag=7)
    meet("received", rank, range(world))
    return seen


def a_collective_times_out(rank: int, world: int) -> dict[str, object]:
    dist.init_process_group("rdmatensor", timeout=LONG)
    dist.all_reduce(torch.ones(10))
    dist.distributed_c10d._get_default_group().set_timeout(SHORT)
    seen: dict[str, object] = {}
    if rank == 0:
        started_s = time.monotonic()
        seen["text"] = error_of(lambda: dist.all_reduce(torch.ones(10)))
        seen["took"] = (time.monotonic() - started_s) / SHORT.total_seconds()
    meet("given up", rank, range(world))
    return seen


def stop(rank: int, victim: int, world: int) -> None:
    """Stop one rank, as a debugger would; the others return once it is."""
    pid_file = Path(os.environ[FOLDER_VARIABLE], f"stopped.{victim}")
    if rank == victim:
        pid_file.write_text(str(os.getpid()), encoding="utf-8")
    meet("ready to be stopped", rank, range(world))
    if rank == victim:
        os.kill(os.getpid(), signal.SIGSTOP)
    stat = Path("/proc", pid_file.read_text(encoding="utf-8"), "stat")
    while stat.read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "T":
        time.sleep(0.005)


def end_stopped(victim: int) -> None:
    pid_file = Path(os.environ[FOLDER_VARIABLE], f"stopped.{victim}")
    os.kill(int(pid_file.read_text(encoding="utf-8")), signal.SIGKILL)


def a_rank_is_stopped(rank: int, world: int) -> dict[str, object]:
    """Rank 1 neither dies nor answers, and may use the tensor for as long as it is not dead."""
    dist.init_process_group("rdmatensor", timeout=LONG)
    tensor = torch.ones(1 << 22)
    dist.all_reduce(tensor)
    stop(rank, 1, world)
    dist.distributed_c10d._get_default_group().set_timeout(timedelta(seconds=1))
    text = error_of(lambda: dist.all_reduce(tensor))
    end_stopped(1)
    return {"text": text}


def a_wait_is_shorter(rank: int, world: int, *, what: str) -> dict[str, object]:
    """Rank 0 waits less long than its group would for rank 1, which does not come in time."""
    dist.init_process_group("rdmatensor", timeout=LONG)
    group = dist.distributed_c10d._get_default_group()
    total = torch.ones(3)
    dist.all_reduce(total)
    seen: dict[str, object] = {}
    if rank == 1:
        meet("given up", rank, range(world))
    work: Any = dist.all_reduce(total, async_op=True)
    if rank == 0:
        short: Any = dist.BarrierOptions()
        short.timeout = SHORT
        if what == "dropped":
            del work
        if what == "wait":
            seen["text"] = error_of(lambda: work.wait(short.timeout))
        else:
            seen["text"] = error_of(lambda: group.barrier(short).wait())
        meet("given up", rank, range(world))
    dist.barrier()
    return {**seen, "total": total.tolist()}


def a_dropped_one_ends_late(rank: int, world: int) -> dict[str, object]:
    """Rank 0's barrier does not wait for a dropped collective; it ends a moment later."""
    dist.init_process_group("rdmatensor", timeout=LONG)
    group = dist.distributed_c10d._get_default_group()
    total = torch.ones(3)
    dist.all_reduce(total)
    seen: dict[str, object] = {}
    if rank == 1:
        meet("waits", rank, range(world))
        dist.all_reduce(total)
    else:
        work: Any = dist.all_reduce(total, async_op=True)
        del work
        short: Any = dist.BarrierOptions()
        short.timeout = timedelta(milliseconds=1)
        ahead = threading.Timer(0.03, meet, ("waits", rank, range(world)))
        ahead.start()
        seen["text"] = error_of(lambda: group.barrier(short).wait())
        ahead.join()
    meet("over", rank, range(world))
    return seen


def two_threads_wait(rank: int, world: int, *, what: str) -> dict[str, object]:
    """Rank 0 waits with patience in one thread, and with less in another, for rank 1."""
    dist.init_process_group("rdmatensor", timeout=LONG)
    group = dist.distributed_c10d._get_default_group()
    total = torch.ones(3)
    dist.all_reduce(total)
    seen: dict[str, object] = {}
    if rank == 1:
        meet("given up", rank, range(world))
        dist.all_reduce(total)
        return seen
    work: Any = dist.all_reduce(total, async_op=True)
    patient = threading.Thread(target=work.wait)
    patient.start()
    time.sleep(SHORT.total_seconds() / 2)
    short: Any = dist.BarrierOptions()
    short.timeout = SHORT
    waits = {"wait": lambda: work.wait(SHORT), "barrier": lambda: group.barrier(short).wait()}
    started_s = time.monotonic()
    seen["text"] = error_of(waits[what])
    seen["took"] = (time.monotonic() - started_s) / SHORT.total_seconds()
    meet("given up", rank, range(world))
    patient.join()
    return {**seen, "total": total.tolist()}


def a_wait_beside_a_stopped_rank(rank: int, world: int) -> dict[str, str]:
    """Rank 0 waits less long than its group would, next to ranks of which one is stopped."""
    dist.init_process_group("rdmatensor", timeout=LONG)
    total = torch.ones(1 << 20)
    dist.all_reduce(total)
    stop(rank, 2, world)
    work: Any = dist.all_reduce(total, async_op=True)
    text = error_of(lambda: work.wait(timedelta(seconds=4)))
    meet("given up", rank, [other for other in range(world) if other != 2])
    if rank == 0:
        end_stopped(2)
    return {"text": text}


def nobody_comes(rank: int, _world: int) -> dict[str, object]:
    """Only rank 1 makes the sub-group: it must learn that rank 0 is missing."""
    dist.init_process_group("gloo", timeout=LONG)
    seen: dict[str, object] = {}
    if rank == 1:
        started_s = time.monotonic()
        two_s = timedelta(seconds=2)
        seen["text"] = error_of(lambda: dist.new_group(backend="rdmatensor", timeout=two_s))
        seen["took"] = (time.monotonic() - started_s) / two_s.total_seconds()
    dist.monitored_barrier(timeout=timedelta(seconds=20))
    return seen


def ctrl_c(rank: int, world: int) -> dict[str, object]:
    """A signal ends a wait of the main thread."""
    dist.init_process_group("rdmatensor", timeout=LONG)
    dist.all_reduce(torch.ones(10))
    took = -1.0
    if rank == 0:
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        signal.setitimer(signal.ITIMER_REAL, SHORT.total_seconds())
        started_s = time.monotonic()
        try:
            dist.recv(torch.ones(3), 1)
        except KeyboardInterrupt:
            took = (time.monotonic() - started_s) / SHORT.total_seconds()
    meet("heard", rank, range(world))
    return {"took": took}


def detailed(rank: int, _world: int) -> dict[str, str]:
    """TORCH_DISTRIBUTED_DEBUG=DETAIL: torch compares calls between ranks before they are made."""
    dist.init_process_group("rdmatensor", timeout=LONG)
    fine = torch.full((3,), float(rank))
    dist.all_reduce(fine)
    found = {"sum": str(float(fine[0])), "level": dist.get_debug_level().name}
    calls = {
        "shape": lambda: dist.all_reduce(torch.ones(3 + rank)),
        "operation": lambda: (
            dist.all_reduce(torch.ones(3)) if rank else dist.broadcast(torch.ones(3), src=0)
        ),
    }
    for name, call in calls.items():
        try:
            call()
        except RuntimeError as error:
            found[name] = str(error)
    dist.destroy_process_group()
    return found
