"""Start ranks, pass their output on, end them together."""

from __future__ import annotations

import os
import secrets
import shlex
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from rdmatensor.horovod.runner import hosts
from rdmatensor.horovod.runner.workers import Output, Ssh, Workers, is_local

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch._C._distributed_c10d import TCPStore

_NAME = "rdmatensor horovodrun"
_GRACE_S = 5.0  # for the other ranks to say what they lost
_SITE = Path(__file__).with_name("site")
SIGNALED = 128  # a shell adds it to a signal's number


@dataclass(frozen=True)
class Launch:
    """What to start, and how. on_store: called with the ranks' store once it serves."""

    command: Sequence[str]
    slots: Sequence[hosts.Slot]
    variables: Mapping[str, str] = field(default_factory=dict)
    ssh: Ssh = field(default_factory=Ssh)
    output: Output = field(default_factory=Output)
    is_verbose: bool = False


def say(*lines: str) -> None:
    """Print to standard error, with the program's name."""
    for line in lines:
        print(f"{_NAME}: {line}", file=sys.stderr, flush=True)


# ---- what all ranks share ------------------------------------------------------------------------


class Meeting:
    """The store of a job: it listens at once, and serves from serve() on; other hosts if open.

    Ranks that come earlier wait in the socket's queue, while this process imports torch.
    """

    def __init__(self, *, is_open: bool) -> None:
        self._socket = socket.create_server(
            ("" if is_open else "127.0.0.1", 0), backlog=socket.SOMAXCONN
        )
        self.port = int(self._socket.getsockname()[1])

    def variables(self, host: str) -> dict[str, str]:
        """Return what makes a rank on this host a client of the store."""
        return {
            "MASTER_ADDR": "127.0.0.1" if is_local(host) else _address_towards(host),
            "MASTER_PORT": str(self.port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
        }

    def serve(self) -> TCPStore:
        """Return the store; it serves as long as it is referenced."""
        from torch._C._distributed_c10d import TCPStore

        # By libuv torch does not take a socket that listens already.
        return TCPStore(
            "127.0.0.1", self.port, is_master=True, wait_for_workers=False,
            master_listen_fd=self._socket.detach(), use_libuv=False,
        )  # fmt: skip


def _address_towards(host: str) -> str:
    """Return this host's address on the network of another."""
    family, _, _, _, address = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(address)  # sends nothing
        return str(probe.getsockname()[0])


def shared_variables(given: Mapping[str, str]) -> dict[str, str]:
    """Return variables of all ranks: a secret, and the path on which `import horovod` is found."""
    paths = [str(_SITE), *filter(None, [os.environ.get("PYTHONPATH")])]
    found = {"PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1", **given}
    if not {"RDMATENSOR_SECRET", "RDMATENSOR_SECRET_FILE"} & {*os.environ, *found}:
        found["RDMATENSOR_SECRET"] = secrets.token_hex(16)
    return found


def threads_of(slot: hosts.Slot) -> dict[str, str]:
    """Return the share of this host's cores of each of its ranks; a program may set another."""
    if "OMP_NUM_THREADS" in os.environ or not is_local(slot.host):
        return {}
    cores = len(os.sched_getaffinity(0))
    return {"OMP_NUM_THREADS": str(max(1, cores // slot.local_size))}


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Have SIGTERM and SIGHUP end this process as Ctrl-C does: by an exception."""

    def end(number: int, _: object) -> None:
        raise SystemExit(SIGNALED + number)

    before = {one: signal.signal(one, end) for one in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


def how_ended(status: int) -> str:
    """Say how a process ended; a shell adds 128 to a signal's number."""
    number = -status if status < 0 else status - SIGNALED
    if number in set(signal.Signals):
        return f"was killed by {signal.Signals(number).name}"
    return f"exited with status {status}"


# ---- a job of a fixed size -----------------------------------------------------------------------


def launch(job: Launch, on_store: Callable[[TCPStore], None] | None = None) -> int:
    """Run a job to its end.

    Returns:
        0, or the exit status of the first rank that failed.
    """
    meeting = Meeting(is_open=not all(is_local(slot.host) for slot in job.slots))
    variables = shared_variables(job.variables)
    status = 0
    with ended_by_signals(), Workers(job.output, job.ssh) as workers:
        for slot in job.slots:
            if job.is_verbose:
                say(f"rank {slot.rank} on {slot.host}: {shlex.join(job.command)}")
            of_rank = {**variables, **meeting.variables(slot.host)}
            of_rank.update(**slot.environment(), **threads_of(slot))
            workers.start(str(slot.rank), slot.host, job.command, of_rank)
        store = meeting.serve()
        if on_store is not None:
            on_store(store)
        for worker, code in workers.events():
            if code != 0:
                say(f"rank {worker.label} on {worker.host} {how_ended(code)}; ending the others")
                status = code if code > 0 else SIGNALED - code
                break
        if status:
            for _ in workers.events(_GRACE_S):
                pass
    del store
    return status
