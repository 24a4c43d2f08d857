"""The process from which Local forks ranks: torch is imported once, and not for each trial.

Its argument is the descriptor of a connection, on which the driver sends one request after the
other. If the driver ends or sends None, the ranks are killed and the agent ends.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import os
import pickle
import signal
import socket
import sys
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait

from rdmatensor.trials.rank import Outcome, Payload, run_in_environment

# torch's parts that are loaded where DistributedDataParallel or an optimizer is made: no thread
# begins in them, so that a forked child has all that it expects.
_IMPORTED_ONCE = ("torch._dynamo", "rdmatensor.distributed")
_GRACE_S = 10.0  # for other ranks to report the death of the first
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Request:
    """A trial to run. port: of rank 0's store, 0 for a free one; log: a path with {rank}."""

    payload: Payload
    ranks: int
    port: int
    log: str | None


def _hold_port(port: int) -> socket.socket:
    """Return a socket that keeps a port for rank 0's store, which shares it by SO_REUSEADDR."""
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("", port))
    return held


def _become_rank(request: Request, rank: int, port: int, out: int) -> int:
    """Run a rank in a forked child, and leave its outcome in a pipe."""
    os.setsid()  # Ctrl-C reaches the driver alone, and a rank is killed with its own children
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    environment = {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(request.ranks),
        "LOCAL_WORLD_SIZE": str(request.ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    log = None if request.log is None else request.log.format(rank=rank)
    outcome = run_in_environment(request.payload, environment, log)
    sys.stdout.flush()
    with os.fdopen(out, "wb") as pipe:
        pickle.dump(outcome, pipe)
    return 0 if outcome.kind in ("returned", "pruned") else 1


@dataclass(frozen=True)
class _Rank:
    pid: int
    pidfd: int
    out: int

    def kill(self) -> None:
        """Kill it with its children; it may be over already."""
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:  # over, or not yet the leader of its group
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    def reap(self) -> Outcome:
        """Return how it ended; it has."""
        _, status = os.waitpid(self.pid, 0)
        os.close(self.pidfd)
        with os.fdopen(self.out, "rb") as pipe:
            said = pipe.read()
        code = os.waitstatus_to_exitcode(status)
        if code >= 0 and said:
            outcome: Outcome = pickle.loads(said)
            return outcome
        how = f"exited with {code}" if code >= 0 else f"was killed by {signal.Signals(-code).name}"
        return Outcome("died", how)


def _watch(ranks: list[_Rank], driver: Connection) -> tuple[dict[int, Outcome], bool]:
    """Wait for the ranks; return their outcomes, and whether the driver wants to go on."""
    outcomes: dict[int, Outcome] = {}
    goes_on, deadline_s = True, None
    while len(outcomes) < len(ranks):
        running = {rank.pidfd: at for at, rank in enumerate(ranks) if at not in outcomes}
        left_s = None if deadline_s is None else max(0.0, deadline_s - time.monotonic())
        ended = wait([*running, *([driver] if goes_on else [])], left_s)
        if driver in ended:
            goes_on = False
        if not ended or not goes_on:
            for at in running.values():
                ranks[at].kill()
        for at in [running[one] for one in ended if isinstance(one, int)]:
            outcomes[at] = ranks[at].reap()
            if outcomes[at].kind in ("raised", "died") and deadline_s is None:
                deadline_s = time.monotonic() + _GRACE_S
    return outcomes, goes_on


def _serve(driver: Connection) -> int:
    """Run trials until the driver ends. Returns the exit status of whichever process leaves it."""
    goes_on = True
    while goes_on:
        try:
            request: Request | None = driver.recv()
        except EOFError:
            return 0
        if request is None:
            return 0
        held = _hold_port(request.port)
        ranks: list[_Rank] = []
        for rank in range(request.ranks):
            out, into = os.pipe()
            pid = os.fork()
            if pid == 0:
                driver.close()
                return _become_rank(request, rank, held.getsockname()[1], into)
            os.close(into)
            ranks.append(_Rank(pid, os.pidfd_open(pid), out))
        outcomes, goes_on = _watch(ranks, driver)
        held.close()
        try:
            driver.send([outcomes[at] for at in range(len(ranks))])
        except BrokenPipeError:
            return 0
    return 0


def main() -> int:
    """Run as Local starts it."""
    for name in _IMPORTED_ONCE:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # a rank's collections then leave the pages of torch's objects shared
    return _serve(Connection(int(sys.argv[1])))
