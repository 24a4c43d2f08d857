"""One of the processes that exchange the gradients of an embedding in different ways, in turns.

    all_reduce      of the whole gradient; each worker updates its copy
    dense           a parameter server: the whole gradient there, all values back, in sync
    rows            a parameter server: the rows of the batch from there, their gradients to it
    all_gather      of the rows' ids and gradients; each worker updates its copy

Ranks are the workers, then two servers; a way with one server leaves the other one idle. Every
worker has other rows, which may overlap. A step is the exchange and the update. Each way's values
are compared with what they have to be before they are timed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore as TorchStore

import rdmatensor.ps as ps
import rdmatensor.torch  # noqa: F401  registers "rdmatensor"
from bench.workers import harness
from rdmatensor import FileStore

OPTIONS: dict[str, object] = {
    "workers": 2,
    "dense_rows": [1024],  # of whole gradients, each
    "rows": 1024,
    "permille": [1000],  # of them in a batch, each
    "calls": 10,
}
DIM = 64
SERVERS = 2
_PIECE_BYTES = 64 << 10  # spread over the servers also where the model is small
_RATE = 0.5
Step = Callable[[], object]


def rows_of(rank: int, rows: int, permille: int) -> torch.Tensor:
    """Return the ids of a worker's batch: so many of a thousand rows, at least one, no repeats."""
    generator = torch.Generator().manual_seed(rank)
    return torch.randperm(rows, generator=generator)[: max(1, rows * permille // 1000)]


class Job:
    """What one rank measures; cells are printed by each worker, the suite takes the slowest."""

    def __init__(self, rank: int, workers: int, calls: int, folder: Path) -> None:
        self.rank, self.workers, self.calls, self.folder = rank, workers, calls, folder

    def timed(self, kind: str, servers: int, rows: int, permille: int, step: Step) -> None:
        step()
        raw_ns, before = [], wire_bytes()
        for _ in range(self.calls):
            began_ns = time.perf_counter_ns()
            step()
            raw_ns.append(time.perf_counter_ns() - began_ns)
        wire = [(after - one) / self.calls for after, one in zip(wire_bytes(), before, strict=True)]
        harness.emit(
            kind=kind,
            servers=servers,
            rows=rows,
            permille=permille,
            raw_ns=raw_ns,
            rank_bytes=max(wire, default=0),
        )

    def check(self, kind: str, found: torch.Tensor, wanted: torch.Tensor) -> None:
        if not torch.allclose(found, wanted):
            raise RuntimeError(f"{kind} left other values than it has to")

    def wanted(self, rows: int, permille: int) -> torch.Tensor:
        """Return all values after one step from zeros, where worker r's gradients are r + 1."""
        values = torch.zeros(rows, DIM)
        for rank in range(self.workers):
            values[rows_of(rank, rows, permille)] -= _RATE * (rank + 1) / self.workers
        return values

    def gradient(self, rows: int, permille: int) -> torch.Tensor:
        gradient = torch.zeros(rows, DIM)
        gradient[rows_of(self.rank, rows, permille)] = self.rank + 1.0
        return gradient


def all_reduce(job: Job, rows: int) -> None:
    gradient, values = job.gradient(rows, 1000), torch.zeros(rows, DIM)
    summed = torch.empty_like(gradient)

    def step() -> None:
        summed.copy_(gradient)
        dist.all_reduce(summed)
        values.add_(summed, alpha=-_RATE / job.workers)

    step()
    job.check("all_reduce", values, job.wanted(rows, 1000))
    job.timed("all_reduce", 0, rows, 1000, step)


def all_gather(job: Job, rows: int, permille: int) -> None:
    ids, values = rows_of(job.rank, rows, permille), torch.zeros(rows, DIM)
    gradients = torch.full((len(ids), DIM), job.rank + 1.0)
    every_id = torch.empty(job.workers * len(ids), dtype=torch.int64)
    every = torch.empty(len(every_id), DIM)

    def step() -> None:
        dist.all_gather_single(every_id, ids)
        dist.all_gather_single(every, gradients)
        values.index_add_(0, every_id, every, alpha=-_RATE / job.workers)

    step()
    job.check("all_gather", values, job.wanted(rows, permille))
    job.timed("all_gather", 0, rows, permille, step)


def dense(job: Job, worker: ps.Worker, rows: int) -> None:
    model = torch.nn.ParameterList([torch.zeros(rows, DIM)])
    held = worker.dense(model, ps.SGD(_RATE), split_bytes=_PIECE_BYTES, name=f"{rows}")
    gradient = job.gradient(rows, 1000)

    def step() -> None:
        torch.autograd.backward([model[0]], [gradient])
        held.step()

    step()
    job.check("dense", model[0].detach(), job.wanted(rows, 1000))
    job.timed("dense", worker.servers, rows, 1000, step)


def pulled(job: Job, worker: ps.Worker, rows: int, permille: int) -> None:
    table = worker.table(f"{rows} {permille}", DIM, rows=rows, rule=ps.SGD(_RATE))
    ids = rows_of(job.rank, rows, permille)
    gradients, values = torch.full((len(ids), DIM), job.rank + 1.0), torch.empty(len(ids), DIM)

    def step() -> None:
        table.pull(ids, values)
        table.push(ids, gradients)
        worker.clock()

    step()
    job.check("rows", table.pull(torch.arange(rows)), job.wanted(rows, permille))
    worker.clock()  # the next step must not be in what another worker compares
    job.timed("rows", worker.servers, rows, permille, step)


def wire_bytes() -> list[int]:
    """Return the bytes in and out of this host's only link; none where it has other interfaces."""
    lines = Path("/proc/self/net/dev").read_text(encoding="ascii").splitlines()[2:]
    found = {
        name.strip(): words.split() for name, _, words in (one.partition(":") for one in lines)
    }
    return [int(found["eth0"][0]), int(found["eth0"][8])] if set(found) == {"eth0", "lo"} else []


def serve_or_push(arguments: SimpleNamespace, job: Job) -> None:
    """Measure the ways with one server, then with two."""
    for servers in range(1, SERVERS + 1):
        size = job.workers + servers
        if job.rank >= size:
            continue
        store = FileStore(job.folder / "ps")
        with ps.join(store, job.rank, size, servers=servers, job=f"{servers}") as cluster:
            if cluster.server is not None:
                cluster.server.serve()
                continue
            assert cluster.worker is not None
            for rows in arguments.dense_rows:
                dense(job, cluster.worker, rows)
            for permille in arguments.permille:
                pulled(job, cluster.worker, arguments.rows, permille)
            cluster.worker.leave()


def main(arguments: SimpleNamespace) -> None:
    torch.set_num_threads(1)
    job = Job(arguments.rank, arguments.workers, arguments.calls, arguments.folder)
    serve_or_push(arguments, job)
    if job.rank < job.workers:
        dist.init_process_group(
            "rdmatensor",
            store=TorchStore(str(job.folder / "c10d"), job.workers),
            rank=job.rank,
            world_size=job.workers,
            timeout=timedelta(seconds=harness.PATIENCE_S),
        )
        for rows in arguments.dense_rows:
            all_reduce(job, rows)
        for permille in arguments.permille:
            all_gather(job, arguments.rows, permille)
        dist.destroy_process_group()
