"""Runs torchrun under a deadline and leaves no process behind, whatever happened."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

# Every process of a run inherits this variable: torchrun puts its workers into sessions of
# their own, so neither a process group nor a parent tells them apart from other people's.
TOKEN_VARIABLE = "RDMATENSOR_DEMO_RUN"
TERMINATE_S = 3.0
KILL_S = 5.0


class RunFailed(Exception):
    """A run that did not come to a good end; the message says which end."""


class Torchrun:
    """A script on several ranks of this host; none of its processes is alive after the block.

    environment is the whole environment of the ranks. Output goes where that of this process goes.
    """

    def __init__(
        self, script: Path, arguments: Sequence[str], *, ranks: int, environment: Mapping[str, str]
    ) -> None:
        self.token = uuid.uuid4().hex
        command = [
            *(sys.executable, "-m", "torch.distributed.run"),
            # A rendezvous on a port that the kernel chooses, so two demos can run side by side.
            *("--standalone", "--local-addr", "127.0.0.1", "--nproc-per-node", str(ranks)),
            str(script),
            *arguments,
        ]
        self._agent = subprocess.Popen(command, env={**environment, TOKEN_VARIABLE: self.token})

    def __enter__(self) -> Torchrun:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _end(self._agent, self.token)

    def check(self) -> None:
        """Raise RunFailed if it ended already, and badly."""
        code = self._agent.poll()
        if code:
            raise RunFailed(f"torchrun exited with {code}")

    def finish(self, timeout_s: float) -> None:
        """Wait for the end; raises RunFailed unless all ranks exit with 0 in time."""
        try:
            code = self._agent.wait(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            ended = _end(self._agent, self.token)
            raise RunFailed(f"no end after {timeout_s:.0f} s; ended {ended} processes") from None
        left = _end(self._agent, self.token)
        if code != 0:
            raise RunFailed(f"torchrun exited with {code}")
        if left:
            raise RunFailed(f"{left} processes outlived torchrun; they have been ended")

    def pids(self) -> list[int]:
        """Return its living processes."""
        return _processes(self.token)


def _end(agent: subprocess.Popen[bytes], token: str) -> int:
    """End what is left of a run, politely first; returns how many processes that were."""
    left = _processes(token)
    if agent.poll() is None:
        agent.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            agent.wait(timeout=TERMINATE_S)
    deadline_s = time.monotonic() + KILL_S
    while (stubborn := _processes(token)) and time.monotonic() < deadline_s:
        for pid in stubborn:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        agent.poll()
        time.sleep(0.05)
    if stubborn:
        raise RunFailed(f"processes {stubborn} did not end within {KILL_S:.0f} s of SIGKILL")
    return len(left)


def _processes(token: str) -> list[int]:
    """Pids of living processes that carry the token in their environment."""
    needle = f"{TOKEN_VARIABLE}={token}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        # Processes of other users are not readable, and each may end between two reads.
        with contextlib.suppress(PermissionError, FileNotFoundError, ProcessLookupError):
            if entry.name.isdecimal() and needle in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return found
