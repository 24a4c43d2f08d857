"""horovod.run(): call a function on every rank, and return what it returned, in rank order."""

from __future__ import annotations

import os
import pickle
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from rdmatensor.horovod.runner import hosts as hosts_module
from rdmatensor.horovod.runner.launch import Launch, launch
from rdmatensor.horovod.runner.workers import Output, Ssh

if TYPE_CHECKING:
    from torch._C._distributed_c10d import TCPStore

T = TypeVar("T")
_PROGRAM = "import sys; from rdmatensor.horovod.runner.call import main; sys.exit(main())"
_CALL, _RESULT = "rdmatensor/run/call", "rdmatensor/run/result/{}"


# over budget: the parameters are Horovod's
def run(
    func: Callable[..., T],
    args: Sequence[object] = (),
    kwargs: Mapping[str, object] | None = None,
    num_proc: int | None = None,
    *,
    np: int | None = None,
    hosts: str | None = None,
    hostfile: str | None = None,
    start_timeout: int | None = None,
    ssh_port: int | None = None,
    ssh_identity_file: str | None = None,
    output_filename: str | None = None,
    verbose: bool | None = None,
    executable: str | None = None,
) -> list[T]:
    """Call a function on every rank of a job, and wait for all.

    Args:
        func: Pickled by value if it is the main program's, else imported by the ranks.
        args: Its positional arguments.
        kwargs: Its keyword arguments.
        num_proc: Number of ranks; 1 by default.
        np: The same under Horovod's older name.
        hosts: "name:slots,..."; this host by default.
        hostfile: A file of lines "name slots=n", in place of hosts.
        start_timeout: Seconds for hosts to answer; 30 by default.
        ssh_port: For other hosts.
        ssh_identity_file: For other hosts.
        output_filename: A folder for the ranks' output.
        verbose: Print each rank's host and command.
        executable: The ranks' Python; this one by default.

    Returns:
        What the function returned, in rank order.

    Raises:
        ValueError: The hosts are written wrongly, or have too few slots.
        RuntimeError: A rank failed; its output has its traceback.

    Example:
        >>> run(pow, args=(2, 3), num_proc=2)  # doctest: +SKIP
        [8, 8]
    """
    import cloudpickle

    ranks = num_proc or np or 1
    named = [hosts_module.Host("localhost", ranks)]
    if hostfile is not None:
        named = hosts_module.parse_hostfile(Path(hostfile))
    elif hosts is not None:
        named = hosts_module.parse_hosts(hosts)
    call = cloudpickle.dumps((list(sys.path), func, tuple(args), dict(kwargs or {})))
    job = Launch(
        [executable or sys.executable, "-c", _PROGRAM],
        hosts_module.assign(named, ranks),
        ssh=Ssh(ssh_port, ssh_identity_file, start_timeout or 30),
        output=Output(folder=None if output_filename is None else Path(output_filename)),
        is_verbose=bool(verbose),
    )
    kept: list[TCPStore] = []

    def give(store: TCPStore) -> None:
        kept.append(store)
        store.set(_CALL, call.hex())

    status = launch(job, give)
    if status != 0:
        raise RuntimeError(f"horovod.run(): a rank ended with status {status}; see its output")
    results = [kept[0].get(_RESULT.format(rank)) for rank in range(ranks)]
    return [pickle.loads(bytes.fromhex(one.decode())) for one in results]


def main() -> int:
    """Run in a rank: fetch the call, make it, and leave its result."""
    import cloudpickle
    from torch._C._distributed_c10d import TCPStore

    store = TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
    path, func, args, kwargs = pickle.loads(bytes.fromhex(store.get(_CALL).decode()))
    sys.path[:] = path
    try:
        result = func(*args, **kwargs)
    except Exception:  # noqa: BLE001 - the launcher names the rank, its output has the rest
        traceback.print_exc()
        return 1
    store.set(_RESULT.format(os.environ["RANK"]), cloudpickle.dumps(result).hex())
    return 0
