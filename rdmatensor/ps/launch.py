"""Running a program as a cluster, under a launcher."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

from rdmatensor._native.arguments import invalid, whole
from rdmatensor.config import from_environment
from rdmatensor.context import Context
from rdmatensor.ps.cluster import join
from rdmatensor.ps.driving import Driver, take_part
from rdmatensor.ps.modes import Mode
from rdmatensor.ps.places import SCHEDULER, Place, launched
from rdmatensor.ps.worker import Worker
from rdmatensor.store import wait_for

Servers = int | Literal["colocated"] | None

_runs = itertools.count()


def run(
    main: Callable[[Worker], None],
    *,
    servers: Servers = None,
    mode: Mode = "sync",
    on_worker_death: str = "stop",
    context: Context | None = None,
    timeout_s: float | None = None,
    restore: str | os.PathLike[str] | None = None,
    replicas: int = 0,
) -> None:
    """Run main(worker) on the workers, and the servers on the last ranks; under a launcher.

    The place of a process comes from RANK and WORLD_SIZE, which torchrun sets, else from TF_CONFIG,
    else from DMLC_ROLE and its kin. Returns on workers when main has returned, on servers when all
    workers have left, and on a scheduler of ps-lite when all have joined. A process that hosts the
    job's store also waits for that. A program may call it several times, on all processes.

    Args:
        main: Called with the Worker, which is closed afterwards.
        servers: Number of servers; "colocated": each process has a worker, and a server in a thread
            of it. None: the launcher's number, or 1 if it has none.
        mode: As for join(), as are the others.
        on_worker_death: As for join().
        context: As for join(); a colocated server opens one of its own.
        timeout_s: As for join().
        restore: As for join().
        replicas: As for join().

    Raises:
        InvalidArgumentError: As join(); the launcher's variables are wrong, or have another number
            of servers.
        PeerError: A process died.
        RdmaTensorError: On server 0, why the last checkpoint was not saved, if no worker has asked.

    Example:
        >>> run(lambda w: print(w.rank, w.workers), servers="colocated")
        0 1
    """
    place, rank, store = launched()
    count = _servers(place, servers)
    size = place.size + (count if servers == "colocated" else 0)
    job = f"ps{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}.{next(_runs)}"
    keys = {f"rdmatensor/{job}/in/{rank}": f"rank {rank}" for rank in range(size)}

    def play(rank: int, own: Context | None) -> None:
        with join(
            store,
            rank,
            size,
            servers=count,
            mode=mode,
            on_worker_death=on_worker_death,
            job=job,
            context=own,
            timeout_s=timeout_s,
            restore=restore,
            replicas=replicas,
        ) as cluster:
            store.set(list(keys)[rank], "")
            if cluster.worker is not None:
                main(cluster.worker)
                cluster.worker.leave()
            elif cluster.server is not None:
                cluster.server.serve()

    if servers == "colocated" and rank != SCHEDULER:
        with ThreadPoolExecutor(1, "rdmatensor server") as pool:
            served = pool.submit(play, place.size + rank, None)
            play(rank, context)
        served.result()
    elif rank != SCHEDULER:
        play(rank, context)
    if place.is_host:
        limit_s = from_environment().timeout_s if timeout_s is None else timeout_s
        wait_for(store, keys, limit_s, "run")


def drive(
    main: Callable[[Driver], None],
    *,
    servers: Servers = None,
    mode: Mode = "sync",
    on_worker_death: str = "stop",
    in_flight: int | None = None,
    context: Context | None = None,
    timeout_s: float | None = None,
    restore: str | os.PathLike[str] | None = None,
) -> None:
    """Run main(driver) on one process, whose batches the workers process; under a launcher.

    The last rank before the servers is the driver. The others run what Driver.schedule() sends
    them, until main has returned and all batches are done.

    Args:
        main: Called with the Driver. If it raises an exception, batches that are not done are
            dropped.
        servers: As for run().
        mode: As for join(). In "sync" a step has one batch for each worker; join(), gather() and
            result() end one with fewer.
        on_worker_death: As for join(). With "continue" a dead worker's batch runs again.
        in_flight: Batches that are scheduled and not done, at most, and not fewer than workers;
            schedule() waits. None: four for each worker.
        context: As for run().
        timeout_s: As for join().
        restore: As for join().

    Raises:
        InvalidArgumentError: As run(), or the job has only one worker, which is the driver.
        PeerError: A process died.

    Example:
        >>> drive(lambda d: print(d.workers, d.schedule(twice, 4).result()), servers="colocated")
        1 8
    """

    def play(w: Worker) -> None:
        take_part(w, main, in_flight)

    run(
        play,
        servers=servers,
        mode=mode,
        on_worker_death=on_worker_death,
        context=context,
        timeout_s=timeout_s,
        restore=restore,
    )


def _servers(place: Place, servers: Servers) -> int:
    """Return the number of servers, on which the program and the launcher agree."""
    if servers == "colocated":
        wanted, known = 0, place.servers
    elif servers is None:
        wanted, known = 1 if place.servers is None else place.servers, place.servers
    else:
        wanted, known = whole(servers, "run", "servers"), place.servers
    if known not in (None, wanted):
        raise invalid(
            "run", f"servers={servers!r}, and {place.source} describes a job with {known} servers"
        )
    return place.size if servers == "colocated" else wanted
