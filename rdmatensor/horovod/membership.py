"""This process's place in the job: its rank, the number of ranks, and the store they meet in."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from zlib import crc32

from torch._C._distributed_c10d import HashStore, PrefixStore, Store, TCPStore

_TIMEOUT = timedelta(seconds=300)
_LAUNCHERS = (  # (rank, size) of each launcher, the most specific first
    ("HOROVOD_RANK", "HOROVOD_SIZE"),
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
)
_FIRST_PORT, _PORTS = 20000, 40000  # as launchers of Slurm jobs choose


@dataclass(frozen=True, slots=True)
class Membership:
    """A process's place in a job.

    Attributes:
        rank: This process's rank.
        size: Number of ranks.
        store: Where the ranks meet; no other run of the job uses its keys.
        host: Name of the host; ranks with the same name share it.
    """

    rank: int
    size: int
    store: Store
    host: str


_store: Store | None = None
_runs = 0

# Called by each init(). Elastic training puts its own rendezvous here.
provider: Callable[[], Membership]


def host_name() -> str:
    """Return the name that the launcher gave this host, or its own."""
    return os.environ.get("HOROVOD_HOSTNAME") or socket.gethostname()


def rank_and_size(environment: Mapping[str, str]) -> tuple[int, int]:
    """Return what the launcher says, of whatever kind it is; (0, 1) without one."""
    for rank, size in _LAUNCHERS:
        if rank in environment and size in environment:
            return int(environment[rank]), int(environment[size])
    return 0, 1


def from_environment() -> Membership:
    """Return this process's place from the variables of its launcher.

    The store is made once for the process: a second init() after shutdown() uses it with another
    prefix, so all ranks must call init() equally often.

    Returns:
        The place.

    Raises:
        ValueError: The launcher did not say where rank 0 is.

    Example:
        >>> from_environment().size  # doctest: +SKIP
        1
    """
    global _store, _runs
    rank, size = rank_and_size(os.environ)
    if _store is None:
        _store = _open_store(rank, size)
    _runs += 1
    return Membership(rank, size, PrefixStore(f"horovod/{_runs}", _store), host_name())


def _open_store(rank: int, size: int) -> Store:
    if size == 1 and "MASTER_PORT" not in os.environ:
        return HashStore()
    address = os.environ.get("MASTER_ADDR") or _first_host()
    port = int(os.environ.get("MASTER_PORT") or _port_of_job())
    is_agents = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    store: Store = TCPStore(
        address, port, None, is_master=rank == 0 and not is_agents, timeout=_TIMEOUT
    )
    restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return PrefixStore(f"restart{restarts}", store)


def _first_host() -> str:
    nodes = os.environ.get("SLURM_STEP_NODELIST") or os.environ.get("SLURM_JOB_NODELIST")
    if nodes is not None:
        return _first_node(nodes)
    local = os.environ.get("OMPI_COMM_WORLD_LOCAL_SIZE") or os.environ.get("MPI_LOCALNRANKS")
    if local is not None and int(local) == rank_and_size(os.environ)[1]:
        return "127.0.0.1"
    raise ValueError(
        "hvd.init(): where is rank 0? Set MASTER_ADDR to its host and MASTER_PORT to a free port "
        "there, or start the job with `rdmatensor horovodrun`"
    )


def _first_node(nodes: str) -> str:
    """Return the first of Slurm's list: "a[3-5,9],b" gives "a3"."""
    found = re.match(r"([^,\[]+)(?:\[(\d+)[^\]]*\])?", nodes)
    if found is None:
        raise ValueError(f"hvd.init(): no host in Slurm's list {nodes!r}; set MASTER_ADDR")
    return found[1] + (found[2] or "")


def _port_of_job() -> int:
    """Return a port that all ranks of the job derive equally, and other jobs probably not."""
    names = ("SLURM_JOB_ID", "PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "PMI_JOBID")
    jobs = [os.environ[name] for name in names if name in os.environ]
    if not jobs:
        raise ValueError("hvd.init(): set MASTER_PORT to a free port of rank 0's host")
    step = os.environ.get("SLURM_STEP_ID", "")
    return _FIRST_PORT + crc32(f"{jobs[0]}.{step}".encode()) % _PORTS


provider = from_environment
