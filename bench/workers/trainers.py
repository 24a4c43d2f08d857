"""The trainers of a step: a model, its batch and its optimizer, and a way to move gradients.

planned    rdmatensor.plan.apply() with the plan of graph_analysis, which is made once
adopted    DistributedDataParallel on rdmatensor, gradient_as_bucket_view=True
copied     the same with RDMATENSOR_ADOPT=0 and without the view
variant    rdmatensor's transports as a tuned RPC would use them (copy_variant.py)
gloo       DistributedDataParallel on Gloo, gradient_as_bucket_view=True
grpc_cpp   a parameter server over gRPC in C++, with workers' ends in C++ (grpc_native.py)
floor      the same steps, and nothing is sent
planned_floor  the same by the plan: gradients lie in their places, and are not sent
"""

from __future__ import annotations

import gc
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch.nn.parallel import DistributedDataParallel

import graph_analysis
import rdmatensor.plan
import rdmatensor.torch
from bench.benchlib import rig
from bench.workers import copy_variant, grpc_native
from bench.workers.paper_models import MODELS


@dataclass(frozen=True, slots=True)
class Job:
    """What a group of ranks does; folder: its own; patience_s: for all; rate: of learning.

    has_lessons: whether its batches have something to learn; else it is one, of random classes.
    server_host: the address of the server that has the parameters. store: where ranks of two hosts
    meet; those of one have a file. warm_steps: before the timed ones; 0: the worker's default.
    """

    name: str
    model: str
    divisor: int
    ranks: int
    steps: int
    plan: Path
    folder: Path
    patience_s: float
    rate: float = 0.01
    has_lessons: bool = False
    server_host: str = "127.0.0.1"
    store: str = ""
    warm_steps: int = 0


class Trainer:
    """A model, its batch and its optimizer; what all have in common is the floor."""

    backend = "gloo"  # leads the ranks to the start
    environment: dict[str, str] = {}  # noqa: RUF012  it is never written to
    # A process next to the ranks, until they end; returns what it held.
    server: Callable[[Job], list[torch.nn.Parameter]] | None = None

    def __init__(self, job: Job, rank: int) -> None:
        torch.manual_seed(1)
        self.rank, self.is_alone_here = rank, bool(job.store)
        self.spec = MODELS[job.model]
        self.model = self.spec.make(job.divisor)
        self.batches = (
            self.spec.lessons(job.divisor, 100 + rank)
            if job.has_lessons
            else [self.spec.batch(job.divisor, 100 + rank)]
        )
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=job.rate)
        self.called: Callable[..., Any] = self.model

    def step(self, number: int) -> torch.Tensor:
        """Train; return the loss before it."""
        torch.manual_seed(1000 * number + self.rank)  # of what dropout leaves out
        batch = self.batches[number % len(self.batches)]
        self.optimizer.zero_grad()
        loss: torch.Tensor = self.spec.loss_fn(self.called(*batch), *batch)
        loss.backward()  # type: ignore[no-untyped-call]
        self.finish()
        return loss.detach()

    def finish(self) -> None:
        self.optimizer.step()

    def spent_ns(self) -> int:
        """Processor time of this process so far, and on rank 0 of those that have no rank.

        Of a rank that has a host, that of the machine: its kernel moves packets for no process.
        """
        return int(rig.busy_s() * 1e9) if self.is_alone_here else time.process_time_ns()

    def arena_bytes(self) -> int:
        """What is in use of the arena, which others do not have: gradients, slots, messages."""
        if self.backend != "rdmatensor":
            return 0
        arena = cast("dict[str, int]", rdmatensor.default_context().describe()["arena"])
        return arena["allocated_bytes"]

    def costs(self) -> dict[str, float]:
        """This process's page faults so far; of those on rdmatensor what communication took.

        Takes microseconds.
        """
        faults = {"page_faults": float(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)}
        if self.backend != "rdmatensor":
            return faults
        counters = rdmatensor.default_context().counters()
        return {"wait_s": counters.wait_s, "wakeups_sent": counters.wakeups_sent, **faults}

    def passes(self) -> dict[str, float]:
        """And how long sums and copies took, which it takes milliseconds to ask for."""
        if self.backend != "rdmatensor":
            return {}
        collectives = cast("dict[str, float]", rdmatensor.distributed.describe()["collectives"])
        return {name: collectives[name] for name in ("summing_s", "copying_s")}

    def close(self) -> None:
        """After the last step, while the group is there.

        DistributedDataParallel has to go before the group: it gives up its hold on it with
        Python's lock held, and if that was the last, it waits for threads of Gloo that may want
        this lock (torch 2.13). The group's own object releases it.
        """
        self.called = self.model
        gc.collect()


class Planned(Trainer):
    backend = "rdmatensor"

    def __init__(self, job: Job, rank: int) -> None:
        super().__init__(job, rank)
        plan = graph_analysis.plan_from_json(job.plan.read_text(encoding="utf-8"))
        self._planned = rdmatensor.plan.apply(self.model, plan, self.optimizer)
        self.called = self._planned

    def costs(self) -> dict[str, float]:
        described = self._planned.describe()
        held = {"posting_s": described["posting_s"], "ending_s": described["ending_s"]}
        return {**held, **super().costs()}

    def close(self) -> None:
        self._planned.close()
        super().close()


class PlannedFloor(Planned):
    def step(self, number: int) -> torch.Tensor:
        with self._planned.no_sync():
            return super().step(number)

    def costs(self) -> dict[str, float]:
        return {"page_faults": super().costs()["page_faults"]}  # nothing is sent

    def passes(self) -> dict[str, float]:
        return {}


class Adopted(Trainer):
    backend = "rdmatensor"

    def __init__(self, job: Job, rank: int) -> None:
        super().__init__(job, rank)
        self.called = DistributedDataParallel(
            self.model, gradient_as_bucket_view=True, bucket_cap_mb=self.spec.bucket_mib
        )


class Copied(Trainer):
    backend = "rdmatensor"
    environment = {"RDMATENSOR_ADOPT": "0"}  # noqa: RUF012

    def __init__(self, job: Job, rank: int) -> None:
        super().__init__(job, rank)
        self.called = DistributedDataParallel(self.model, bucket_cap_mb=self.spec.bucket_mib)


class Gloo(Adopted):
    backend = "gloo"


def _parameters_of(job: Job) -> list[torch.nn.Parameter]:
    torch.manual_seed(1)
    return list(MODELS[job.model].make(job.divisor).parameters())


def _serve(job: Job) -> list[torch.nn.Parameter]:
    parameters = _parameters_of(job)
    grpc_native.serve(
        parameters, job.ranks, job.rate, port_file(job), job.patience_s, job.server_host
    )
    return parameters


class Served(Trainer):
    server = staticmethod(_serve)

    def __init__(self, job: Job, rank: int) -> None:
        super().__init__(job, rank)
        parameters = list(self.model.parameters())
        self._client = grpc_native.Client(
            parameters, port_file(job), job.patience_s, job.server_host
        )

    def finish(self) -> None:
        self._client.pull()

    def spent_ns(self) -> int:
        has_part = self.rank == 0 and not self.is_alone_here
        server_ns = self._client.server_spent_ns() if has_part else 0
        return super().spent_ns() + server_ns

    def close(self) -> None:
        self._client.close()
        super().close()


class Variant(Trainer):
    def __init__(self, job: Job, rank: int) -> None:
        super().__init__(job, rank)
        parameters = list(self.model.parameters())
        self._exchange = copy_variant.Exchange(
            parameters, job.folder, rank, job.ranks, job.patience_s
        )
        for index, parameter in enumerate(parameters):
            register = parameter.register_post_accumulate_grad_hook
            register(self._push(index))  # type: ignore[no-untyped-call]

    def _push(self, index: int) -> Callable[[torch.Tensor], None]:
        def push(parameter: torch.Tensor) -> None:
            assert parameter.grad is not None
            self._exchange.push(index, parameter.grad)

        return push

    def finish(self) -> None:
        self._exchange.finish()
        super().finish()

    def close(self) -> None:
        self._exchange.close()
        super().close()


TRAINERS: dict[str, type[Trainer]] = {
    "planned": Planned,
    "adopted": Adopted,
    "copied": Copied,
    "variant": Variant,
    "gloo": Gloo,
    "grpc_cpp": Served,
    "floor": Trainer,
    "planned_floor": PlannedFloor,
}


def port_file(job: Job) -> Path:
    return job.folder / "port"
