"""`rdmatensor horovodrun`: start ranks, pass their output on, end them together."""

from __future__ import annotations

import importlib.util
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

from rdmatensor.horovod.runner import arguments, hosts
from rdmatensor.horovod.runner.workers import Output, Ssh, Workers, is_local

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch._C._distributed_c10d import TCPStore

_NAME = "rdmatensor horovodrun"
_GRACE_S = 5.0  # for the other ranks to say what they lost
_SITE = Path(__file__).with_name("site")
_FAILED = 1
_SIGNALED = 128


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
    """The store of a job: it listens at once, and serves from serve() on.

    Ranks that come earlier wait in the socket's queue, while this process imports torch.
    """

    def __init__(self, names: Sequence[str]) -> None:
        others = [name for name in names if not is_local(name)]
        self._socket = socket.create_server(
            ("", 0) if others else ("127.0.0.1", 0), backlog=socket.SOMAXCONN
        )
        self.port = int(self._socket.getsockname()[1])
        self.address = _address_towards(others[0]) if others else "127.0.0.1"

    def variables(self) -> dict[str, str]:
        """Return what makes ranks clients of this store."""
        return {
            "MASTER_ADDR": self.address,
            "MASTER_PORT": str(self.port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
        }

    def serve(self) -> TCPStore:
        """Return the store; it serves as long as it is referenced."""
        from torch._C._distributed_c10d import TCPStore

        # By libuv torch does not take a socket that listens already.
        return TCPStore(
            self.address, self.port, is_master=True, wait_for_workers=False,
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
        raise SystemExit(_SIGNALED + number)

    before = {one: signal.signal(one, end) for one in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


def how_ended(status: int) -> str:
    """Say how a process ended; a shell adds 128 to a signal's number."""
    number = -status if status < 0 else status - _SIGNALED
    if number in set(signal.Signals):
        return f"was killed by {signal.Signals(number).name}"
    return f"exited with status {status}"


# ---- a job of a fixed size -----------------------------------------------------------------------


def launch(job: Launch, on_store: Callable[[TCPStore], None] | None = None) -> int:
    """Run a job to its end.

    Returns:
        0, or the exit status of the first rank that failed.
    """
    meeting = Meeting([slot.host for slot in job.slots])
    variables = {**shared_variables(job.variables), **meeting.variables()}
    status = 0
    with ended_by_signals(), Workers(job.output, job.ssh) as workers:
        for slot in job.slots:
            if job.is_verbose:
                say(f"rank {slot.rank} on {slot.host}: {shlex.join(job.command)}")
            of_rank = {**variables, **slot.environment(), **threads_of(slot)}
            workers.start(str(slot.rank), slot.host, job.command, of_rank)
        store = meeting.serve()
        if on_store is not None:
            on_store(store)
        for worker, code in workers.events():
            if code != 0:
                say(f"rank {worker.label} on {worker.host} {how_ended(code)}; ending the others")
                status = code if code > 0 else _SIGNALED - code
                break
        if status:
            for _ in workers.events(_GRACE_S):
                pass
    del store
    return status


def check_build() -> str:
    """Return what this build has, in the form of Horovod's launcher."""
    has_torch = importlib.util.find_spec("torch") is not None
    has_keras = has_torch and importlib.util.find_spec("keras") is not None
    marks = {
        "Available Frameworks": {
            "TensorFlow": False,
            "PyTorch": has_torch,
            "MXNet": False,
            "Keras on PyTorch": has_keras,
        },
        "Available Controllers": {"MPI": False, "rdmatensor (in place of Gloo)": has_torch},
        "Available Tensor Operations": {
            "NCCL": False, "DDL": False, "CCL": False, "MPI": False,
            "rdmatensor (in place of Gloo)": has_torch,
        },
    }  # fmt: skip
    lines = ["rdmatensor.horovod:"]
    for title, entries in marks.items():
        lines += ["", f"{title}:"]
        lines += [f"    [{'X' if has else ' '}] {name}" for name, has in entries.items()]
    return "\n".join(lines)


def hosts_of(given: object) -> list[hosts.Host]:
    """Return the hosts that the options name.

    Raises:
        ValueError: They are written wrongly.
    """
    named, file = getattr(given, "hosts", None), getattr(given, "hostfile", None)
    if file is not None:
        return hosts.parse_hostfile(file)
    if named is not None:
        return hosts.parse_hosts(named)
    return [hosts.Host("localhost", getattr(given, "np", 1))]


def main(words: Sequence[str]) -> int:
    """Run the command line.

    Args:
        words: Options, then the command.

    Returns:
        The exit status: that of the first rank that failed; 2 for misuse.
    """
    given = arguments.parse(words)
    if given.version:
        from rdmatensor._build_stamp import VERSION

        print(VERSION)
        return 0
    if given.check_build:
        print(check_build())
        return 0
    if given.ignored:
        say(f"no effect here: {', '.join(given.ignored)}")
    if given.is_elastic:
        say("elastic jobs are not supported: leave out --min-np and --host-discovery-script")
        return 2
    ssh = Ssh(given.ssh_port, given.ssh_identity_file, given.start_timeout or 30)
    most = given.max_np or given.np
    output = Output(
        has_timestamp=given.prefix_output_with_timestamp,
        folder=given.output_filename,
        width=len(str(most - 1)),
    )
    try:
        slots = hosts.assign(hosts_of(given), given.np)
    except (OSError, ValueError) as error:
        say(str(error))
        return 2
    job = Launch(given.command, slots, arguments.variables_of(given), ssh, output, given.verbose)
    try:
        return launch(job)
    except KeyboardInterrupt:
        return _SIGNALED + signal.SIGINT
