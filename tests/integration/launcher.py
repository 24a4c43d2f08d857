"""Run functions as the ranks of jobs: import torch once, with what it puts off, then fork.

python launcher.py FD: a socket on which each line asks for a job, in JSON; each answer is a byte
with a descriptor of the job's process. That process ends with its ranks, this one with the socket.

Each rank calls the role, MODULE:FUNCTION(rank, world, **arguments), leaves its result as
<out>/<rank>.json and its words as <out>/<rank>.log, and ends as a Python process does.
<out>/exits.json, written when all is over, has how each ended: an exit status, the negative number
of a signal, or null for one that had to be ended. <out>/launcher.log has the job's own words.
"""

from __future__ import annotations

import array
import faulthandler
import gc
import importlib
import json
import os
import signal
import socket
import sys
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from meeting import FOLDER_VARIABLE

# What each rank imports otherwise: torch's part where DistributedDataParallel or an optimizer is
# made (seconds) and where a model is captured, rdmatensor where a group is made: most of a small
# job's CPU time. No thread begins in it, and the import of rdmatensor sets nothing up: its native
# module loads with the first group. Benchmarks, the demo and torchrun's jobs start cold.
IMPORTED_ONCE = (
    "torch._dynamo",
    "torch.export._trace",
    "rdmatensor.plan",
    "rdmatensor.distributed",
)
GIVE_UP_EARLY_S = 3.0  # before the deadline: time to say where a rank hangs


@dataclass(frozen=True)
class Request:
    """A job, as the tests ask for it."""

    role: str
    world: int
    out: str
    timeout_s: float
    is_imported_first: bool
    environment: dict[str, str]
    arguments: dict[str, Any]


def write_into(path: Path) -> None:
    """Make the file standard output and error, here and below Python."""
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)


def become_rank(rank: int, world: int, port: int, out: Path, dump_after_s: float) -> None:
    """Set up a forked child: the environment that a launcher gives, and files for its words."""
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(world),
        LOCAL_WORLD_SIZE=str(world),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
    )
    os.environ[FOLDER_VARIABLE] = str(out)
    write_into(out / f"{rank}.log")
    faulthandler.dump_traceback_later(dump_after_s, exit=False)


def run_rank(job: Request, rank: int) -> int:
    """Call the function; a forked child's main program."""
    module, _, function = job.role.partition(":")
    try:
        result = getattr(importlib.import_module(module), function)(
            rank, job.world, **job.arguments
        )
        Path(job.out, f"{rank}.json").write_text(json.dumps(result), encoding="utf-8")
    except SystemExit:  # of a child that the rank forked: it has no result to leave
        raise
    except BaseException:  # noqa: BLE001 - the rank's last words
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
    return 0


def wait_for(pids: dict[int, int], deadline_s: float) -> dict[int, int | None]:
    """Wait for the ranks, and end those that are late."""
    exits: dict[int, int | None] = {}
    while len(exits) < len(pids) and time.monotonic() < deadline_s:
        for rank, pid in pids.items():
            if rank not in exits:
                done, status = os.waitpid(pid, os.WNOHANG)
                if done:
                    exits[rank] = os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    for rank in set(pids) - set(exits):
        os.kill(pids[rank], signal.SIGKILL)
        os.waitpid(pids[rank], 0)
        exits[rank] = None
    return exits


def hold_port() -> socket.socket:
    """Return a socket on a port that nobody else is given while it is held.

    It does not listen, so that rank 0's store can: SO_REUSEADDR lets both have the port. It is
    bound to all addresses, as the store is, whom somebody's connection from another address of this
    host would keep from the port.
    """
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("", 0))
    return held


def run_job(job: Request) -> int:
    """Run the ranks; a forked child's main program."""
    os.environ.clear()
    os.environ.update(job.environment)
    out = Path(job.out)
    write_into(out / "launcher.log")
    torch.set_num_threads(1)
    if job.is_imported_first:
        importlib.import_module(job.role.partition(":")[0])
    held = hold_port()
    start_s = time.monotonic()
    pids: dict[int, int] = {}
    for rank in range(job.world):
        pid = os.fork()
        if pid == 0:
            become_rank(
                rank, job.world, held.getsockname()[1], out, job.timeout_s - GIVE_UP_EARLY_S
            )
            return run_rank(job, rank)
        pids[rank] = pid
    exits: dict[int, Any] = wait_for(pids, start_s + job.timeout_s)
    held.close()
    (out / "exits.json.part").write_text(json.dumps(exits), encoding="utf-8")
    (out / "exits.json.part").rename(out / "exits.json")
    # Not as Python ends, as its ranks do: that would look at all of torch's objects once more, and
    # copy their pages, for a process that tests nothing.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def take_the_dead(newest: int) -> None:
    """Wait for earlier jobs that are over; not for the newest, which has just begun."""
    while True:
        over = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if over is None or over.si_pid == newest:
            return
        os.waitpid(over.si_pid, 0)


def serve(requests: socket.socket) -> Request | None:
    """Fork a process for each job: what it returns there; None here, once nobody asks any more."""
    with requests, requests.makefile("rb") as lines:
        for line in lines:
            job = Request(**json.loads(line))
            pid = os.fork()
            if pid == 0:
                return job
            pidfd = os.pidfd_open(pid)
            ancillary = array.array("i", [pidfd])
            requests.sendmsg([b"."], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, ancillary)])
            os.close(pidfd)
            take_the_dead(pid)
    return None


def _threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


def import_once() -> None:
    """Import what the ranks shall find; a thread of it would be missing in every one of them."""
    before = _threads()  # numpy has one, and sees to it in a child
    for name in IMPORTED_ONCE:
        importlib.import_module(name)
    if _threads() != before:
        raise RuntimeError(f"an import of {IMPORTED_ONCE} began a thread, and this process forks")
    # Else each rank, when it ends, looks at every object of torch's: a second, and a copy of all
    # pages. What a rank makes itself is collected as ever.
    gc.collect()
    gc.freeze()


def main() -> int:
    import_once()
    job = serve(socket.socket(fileno=int(sys.argv[1])))
    return 0 if job is None else run_job(job)


if __name__ == "__main__":
    sys.exit(main())
