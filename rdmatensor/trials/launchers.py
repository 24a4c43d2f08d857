"""What starts the ranks of a trial: this host, Slurm or Ray."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from rdmatensor.trials.agent import Request
from rdmatensor.trials.rank import Outcome, Payload, run_in_environment

if TYPE_CHECKING:
    import submitit

_AGENT = "import sys; from rdmatensor.trials.agent import main; sys.exit(main())"
_END_S = 10.0  # for an agent to kill its ranks and end
_POLL_S = 0.5  # of Slurm's jobs
_RESULT_S = 5.0
_ARENA_PIECE_MIB = 64  # the arena's default piece


class Fleet(Protocol):
    """Ranks of one call of optimize(). host: how ranks reach the driver, which binds bind_host."""

    host: str
    bind_host: str

    def run(self, lane: int, payload: Payload) -> list[Outcome]:
        """Run a trial; a lane is used by one thread at a time."""
        ...

    def close(self) -> None:
        """Kill what runs; run() then returns in its threads."""
        ...


class Launcher(Protocol):
    """Makes fleets."""

    def open(self, ranks: int, parallel: int) -> Fleet:
        """Return the ranks for one call of optimize()."""
        ...


# ---- this host -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Local:
    """Starts ranks on this host, with the variables that torchrun sets.

    Each lane of `parallel` has a process that imports torch once and forks the ranks of one trial
    after the other. Ranks share the cores evenly unless OMP_NUM_THREADS is set.

    Attributes:
        ports: First and last port that the study may listen on, both included; each lane has its
            share. None: free ports of the system's choice. Give two studies disjoint ranges.
        arena_max_mib: Limit of the arenas of all ranks that run at once, in MiB; None: none.
        logs: A folder for the output of ranks, a file for each; None: the driver's output.

    Example:
        >>> Local(ports=(29000, 29019), arena_max_mib=1024).ports
        (29000, 29019)
    """

    ports: tuple[int, int] | None = None
    arena_max_mib: int | None = None
    logs: str | Path | None = None

    def open(self, ranks: int, parallel: int) -> Fleet:
        """Return the processes of one call of optimize(), which calls this.

        Args:
            ranks: Ranks of a trial.
            parallel: Trials at once.

        Returns:
            The fleet.

        Raises:
            ValueError: The ports or the arena do not suffice for so many ranks.

        Example:
            >>> Local().open(2, 1).close()
        """
        return _LocalFleet(self, ranks, parallel)


class _LocalFleet:
    host = bind_host = "127.0.0.1"

    def __init__(self, launcher: Local, ranks: int, parallel: int) -> None:
        self._logs, self._ranks = launcher.logs, ranks
        self._lock = threading.Lock()
        self._is_closed = False
        self._agents: dict[int, tuple[subprocess.Popen[bytes], Connection]] = {}
        cores = len(os.sched_getaffinity(0))
        self._environment = {"OMP_NUM_THREADS": str(max(1, cores // (ranks * parallel)))}
        self._environment.update(os.environ)
        if launcher.arena_max_mib is not None:
            share = launcher.arena_max_mib // (ranks * parallel)
            if share < 1:
                raise ValueError(
                    f"arena_max_mib={launcher.arena_max_mib}: {ranks * parallel} ranks run at "
                    "once, and each needs at least 1 MiB"
                )
            self._environment["RDMATENSOR_ARENA_MAX_MIB"] = str(share)
            self._environment["RDMATENSOR_ARENA_MIB"] = str(min(share, _ARENA_PIECE_MIB))
        self._ports: list[tuple[int, int]] = []
        if launcher.ports is not None:
            first, last = launcher.ports
            share = (last - first + 1) // parallel
            if share < ranks + 1:
                raise ValueError(
                    f"ports={launcher.ports}: {parallel} trials at once of {ranks} ranks need "
                    f"{parallel * (ranks + 1)} ports: one for each rank, one for each trial"
                )
            self._ports = [
                (first + lane * share, first + (lane + 1) * share - 1) for lane in range(parallel)
            ]

    def run(self, lane: int, payload: Payload) -> list[Outcome]:
        with self._lock:
            if self._is_closed:
                return []
            if lane not in self._agents:
                self._agents[lane] = self._start(lane)
            process, connection = self._agents[lane]
        log = None
        if self._logs is not None:
            log = str(Path(self._logs).absolute() / f"trial{payload.number}-rank{{rank}}.log")
        port = self._ports[lane][0] if self._ports else 0
        try:
            connection.send(Request(payload, self._ranks, port, log))
            outcomes: list[Outcome] = connection.recv()
        except (EOFError, BrokenPipeError, ConnectionResetError):
            with self._lock:
                del self._agents[lane]
            connection.close()
            died = Outcome("died", f"lost the process that started it: {process.wait(_END_S)}")
            return [died] * self._ranks
        return outcomes

    def _start(self, lane: int) -> tuple[subprocess.Popen[bytes], Connection]:
        environment = dict(self._environment)
        if self._ports:
            first, last = self._ports[lane]
            environment["RDMATENSOR_PORTS"] = f"{first + 1}-{last}"
        ours, theirs = Pipe()
        process = subprocess.Popen(
            [sys.executable, "-c", _AGENT, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env=environment,
            start_new_session=True,  # Ctrl-C reaches the driver alone
        )
        theirs.close()
        return process, ours

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            agents = list(self._agents.values())
        for _, connection in agents:
            with contextlib.suppress(BrokenPipeError):
                connection.send(None)
        for process, _ in agents:
            try:
                process.wait(_END_S)
            except subprocess.TimeoutExpired:
                process.kill()  # its ranks die with it
                process.wait()


# ---- Slurm ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Slurm:
    """Starts each trial as a Slurm job, with submitit: `pip install rdmatensor[slurm]`.

    The nodes reach the driver by its host name; the folder is on a file system that they share.

    Attributes:
        folder: Where submitit keeps scripts, logs and results.
        nodes: Nodes of a trial; its ranks are spread evenly.
        cluster: "slurm", or "local" to run submitit without Slurm.
        options: Of submitit's `update_parameters()`, such as slurm_partition or timeout_min.

    Example:
        >>> Slurm("out/jobs", options={"slurm_partition": "cpu", "timeout_min": 60}).nodes
        1
    """

    folder: str | Path
    nodes: int = 1
    cluster: str = "slurm"
    options: Mapping[str, object] = field(default_factory=dict)

    def open(self, ranks: int, parallel: int) -> Fleet:
        """Return the jobs of one call of optimize(), which calls this.

        Args:
            ranks: Ranks of a trial.
            parallel: Trials at once.

        Returns:
            The fleet.

        Raises:
            ImportError: submitit is missing.
            ValueError: The ranks cannot be spread evenly over the nodes.

        Example:
            >>> Slurm("out/jobs", cluster="local").open(2, 1).close()  # doctest: +SKIP
        """
        del parallel  # Slurm's queue decides
        return _SlurmFleet(self, ranks)


class _SlurmFleet:
    bind_host = ""

    def __init__(self, launcher: Slurm, ranks: int) -> None:
        import submitit

        if ranks % launcher.nodes:
            raise ValueError(f"{ranks} ranks cannot be spread evenly over {launcher.nodes} nodes")
        self.host = "127.0.0.1" if launcher.cluster == "local" else socket.gethostname()
        self._is_local = launcher.cluster == "local"
        self._ranks, self._lock = ranks, threading.Lock()
        self._is_closed = False
        self._jobs: dict[int, submitit.Job[Outcome]] = {}
        self._executor = submitit.AutoExecutor(launcher.folder, cluster=launcher.cluster)
        self._executor.update_parameters(
            nodes=launcher.nodes, tasks_per_node=ranks // launcher.nodes, **launcher.options
        )

    def run(self, lane: int, payload: Payload) -> list[Outcome]:
        with self._lock:
            if self._is_closed:
                return []
            job = self._jobs[lane] = self._executor.submit(_slurm_task, payload)
        tasks = [job.task(rank) for rank in range(self._ranks)]
        results = [task.paths.result_pickle for task in tasks]
        left_s = _RESULT_S
        while left_s > 0 and not all(one.exists() for one in results):
            time.sleep(_POLL_S)
            # A result may be seen later than the end of its job, on a shared file system.
            left_s = _RESULT_S if self._is_active(job) else left_s - _POLL_S
        return [_slurm_outcome(task) for task in tasks]

    def _is_active(self, job: submitit.Job[Outcome]) -> bool:
        """Ask Slurm's controller: submitit asks the accounting, which not every cluster has."""
        if self._is_local:
            return not job.done()
        number = str(job.job_id).partition("_")[0]
        said = subprocess.run(
            ["squeue", "--noheader", "--jobs", number, "--format=%t"],
            capture_output=True,
            text=True,
            check=False,
        )
        # A controller that does not answer leaves the job as it was.
        is_unknown = said.returncode == 0 or "Invalid job id" in said.stderr
        return bool(said.stdout.strip()) or not is_unknown

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            for job in self._jobs.values():
                if not job.done():
                    job.cancel()


def _slurm_task(payload: Payload) -> Outcome:
    from submitit.helpers import TorchDistributedEnvironment

    TorchDistributedEnvironment().export(set_cuda_visible_devices=False, overwrite=True)
    return run_in_environment(payload, {}, None)


def _slurm_outcome(task: submitit.Job[Outcome]) -> Outcome:
    from submitit.core.utils import FailedJobError

    if not task.paths.result_pickle.exists():
        said = (task.stderr() or "no output").strip().splitlines()
        return Outcome("died", f"of job {task.job_id} left no result: {said[-1]}")
    try:
        return task.result()
    except FailedJobError as error:
        return Outcome("died", f"of job {task.job_id}: {str(error).strip().splitlines()[-1]}")


# ---- Ray -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ray:
    """Starts each rank as a Ray actor: `pip install rdmatensor[ray]`, then `ray.init()`.

    Attributes:
        resources: Of each rank, such as {"CPU": 4}.
        strategy: Of the placement group: "PACK", "SPREAD", "STRICT_PACK" or "STRICT_SPREAD".

    Example:
        >>> Ray({"CPU": 4}).strategy
        'PACK'
    """

    resources: Mapping[str, float] = field(default_factory=lambda: {"CPU": 1})
    strategy: str = "PACK"

    def open(self, ranks: int, parallel: int) -> Fleet:
        """Return the actors of one call of optimize(), which calls this.

        Args:
            ranks: Ranks of a trial.
            parallel: Trials at once.

        Returns:
            The fleet.

        Raises:
            ImportError: ray is missing.

        Example:
            >>> Ray().open(2, 1).close()  # doctest: +SKIP
        """
        del parallel  # Ray's scheduler decides
        return _RayFleet(self, ranks)


class _RayRank:
    """An actor: one rank of one trial."""

    def address(self) -> tuple[str, int]:
        import ray

        with socket.socket() as free:
            free.bind(("", 0))
            return ray.util.get_node_ip_address(), free.getsockname()[1]

    def run(self, payload: Payload, environment: Mapping[str, str]) -> Outcome:
        return run_in_environment(payload, environment, None)


class _RayFleet:
    bind_host = ""

    def __init__(self, launcher: Ray, ranks: int) -> None:
        import ray

        self._ray, self._launcher, self._ranks = ray, launcher, ranks
        self.host = ray.util.get_node_ip_address()
        self._lock, self._is_closed = threading.Lock(), False
        self._actors: dict[int, list[Any]] = {}

    def run(self, lane: int, payload: Payload) -> list[Outcome]:
        from ray.util.placement_group import placement_group, remove_placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        resources = dict(self._launcher.resources)
        group = placement_group([resources] * self._ranks, strategy=self._launcher.strategy)
        actor = self._ray.remote(_RayRank).options(
            num_cpus=resources.pop("CPU", 0),
            resources=resources,
            max_restarts=0,
            scheduling_strategy=PlacementGroupSchedulingStrategy(group),
        )
        with self._lock:
            if self._is_closed:
                return []
            ranks = self._actors[lane] = [actor.remote() for _ in range(self._ranks)]
        try:
            address, port = self._ray.get(ranks[0].address.remote())
            shared = {"WORLD_SIZE": str(self._ranks), "MASTER_ADDR": address}
            started = [
                one.run.remote(payload, {**shared, "MASTER_PORT": str(port), "RANK": str(rank)})
                for rank, one in enumerate(ranks)
            ]
            return [self._outcome(one) for one in started]
        except self._ray.exceptions.RayError as error:
            return [Outcome("died", str(error))] * self._ranks
        finally:
            for one in ranks:
                self._ray.kill(one)
            remove_placement_group(group)

    def _outcome(self, started: object) -> Outcome:
        try:
            outcome: Outcome = self._ray.get(started)
        except self._ray.exceptions.RayError as error:
            return Outcome("died", str(error).strip().splitlines()[0])
        return outcome

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            for ranks in self._actors.values():
                for one in ranks:
                    self._ray.kill(one)
