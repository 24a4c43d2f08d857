"""Jobs of several ranks, as the tests see them."""

from __future__ import annotations

import array
import atexit
import functools
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meeting import SCALE

HERE = Path(__file__).parent
LAUNCHER = HERE / "launcher.py"
# For torch to be imported on a busy machine; with a job's own 30 s within a test's limit.
START_S = 28.0


@dataclass(frozen=True)
class Rank:
    """How one rank ended. exit: status, -signal, or None if it had to be ended."""

    number: int
    exit: int | None
    result: Any
    log: str


class Launcher:
    """A process that has imported torch, once for many jobs, and forks one for each."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._socket, theirs = socket.socketpair()
        self._socket.settimeout(START_S)
        flags = ["-S"] if sys.flags.no_site else []  # where a sanitizer's build is tested
        self._process = subprocess.Popen(
            [sys.executable, *flags, "-u", str(LAUNCHER), str(theirs.fileno())],
            env={**os.environ, **environment},
            pass_fds=[theirs.fileno()],
        )
        theirs.close()

    def start(self, request: Mapping[str, object]) -> int:
        """Have it start a job; return a descriptor of the job's process."""
        self._socket.sendall(json.dumps(request).encode() + b"\n")
        fds = array.array("i")
        _, ancillary, _, _ = self._socket.recvmsg(1, socket.CMSG_SPACE(fds.itemsize))
        for _, _, data in ancillary:
            fds.frombytes(data[: fds.itemsize])
        assert len(fds) == 1, f"the launcher ended with {self._process.poll()}"
        return fds[0]

    def close(self) -> None:
        """End it; it also ends when this process does."""
        self._socket.close()
        self._process.wait()


@functools.cache
def _launcher(environment: frozenset[tuple[str, str]]) -> Launcher:
    """Return the one that was started in this environment: torch reads some of it on import."""
    launcher = Launcher(dict(environment))
    atexit.register(launcher.close)
    return launcher


@dataclass
class Job:
    """Ranks that run; finish() waits for them."""

    pidfd: int
    out: Path
    world: int
    timeout_s: float

    def finish(self) -> list[Rank]:
        is_over, _, _ = select.select([self.pidfd], [], [], self.timeout_s + START_S)
        if not is_over:
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
        os.close(self.pidfd)
        words = (self.out / "launcher.log").read_text(encoding="utf-8", errors="replace")
        assert is_over, f"the launcher hangs: {words}"
        assert (self.out / "exits.json").exists(), words
        exits = json.loads((self.out / "exits.json").read_text(encoding="utf-8"))
        return [self._rank(rank, exits[str(rank)]) for rank in range(self.world)]

    def _rank(self, rank: int, status: int | None) -> Rank:
        result = self.out / f"{rank}.json"
        log = (self.out / f"{rank}.log").read_text(encoding="utf-8", errors="replace")
        value = json.loads(result.read_text(encoding="utf-8")) if result.exists() else None
        return Rank(rank, status, value, log)


def start(
    role: str,
    world: int,
    out: Path,
    *,
    timeout_s: float = 30.0,
    environment: dict[str, str] | None = None,
    is_imported_first: bool = False,
    **arguments: object,
) -> Job:
    """Start a job; role is "module:function" of this folder.

    is_imported_first: the module is imported once for all ranks, before they are forked; nothing in
        it may start a thread then.
    """
    out.mkdir(parents=True, exist_ok=True)
    environment = environment or {}
    limit_s = timeout_s * SCALE
    ours = {name: value for name, value in environment.items() if name.startswith("RDMATENSOR_")}
    launcher = _launcher(frozenset(environment.items() - ours.items()))
    pidfd = launcher.start(
        {
            "role": role,
            "world": world,
            "out": str(out.resolve()),
            "timeout_s": limit_s,
            "is_imported_first": is_imported_first,
            "environment": {**os.environ, **environment},
            "arguments": arguments,
        }
    )
    return Job(pidfd, out, world, limit_s)


def run(role: str, world: int, out: Path, **options: Any) -> list[Rank]:
    """Run a job to its end."""
    return start(role, world, out, **options).finish()


def results(ranks: Sequence[Rank]) -> list[Any]:
    """Return what the ranks returned; all must have ended well."""
    bad = [f"rank {r.number} ended with {r.exit}:\n{r.log}" for r in ranks if r.exit != 0]
    assert not bad, "\n".join(bad)
    return [rank.result for rank in ranks]
