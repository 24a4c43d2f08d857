"""Who takes part in a training step: a model, its batch and its optimizer, and who moves gradients.

planned    rdmatensor.plan.apply() with the plan of graph_analysis, which is made once
adopted    DistributedDataParallel on rdmatensor, gradient_as_bucket_view=True
copied     the same with RDMATENSOR_ADOPT=0 and without the view
variant    own transports as a tuned RPC would use them (copy_variant.py)
gloo       DistributedDataParallel on Gloo, gradient_as_bucket_view=True
grpc       a parameter server over gRPC (grpc_server.py)
floor      the same steps, and nobody says anything
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

import graph_analysis
import rdmatensor.plan
import rdmatensor.torch
from bench.workers import copy_variant, grpc_server
from bench.workers.paper_models import MODELS

RATE = 0.01


@dataclass(frozen=True, slots=True)
class Job:
    """What a group of ranks does; folder: its own; patience_s: for all."""

    contestant: str
    model: str
    divisor: int
    ranks: int
    steps: int
    plan: Path
    folder: Path
    patience_s: float


class Trainer:
    """A model, its batch and its optimizer; what contestants have in common is the floor."""

    backend = "gloo"  # leads the ranks to the start
    environment: dict[str, str] = {}  # noqa: RUF012  nobody writes to it

    def __init__(self, job: Job, rank: int) -> None:
        torch.manual_seed(1)
        self.rank = rank
        self.spec = MODELS[job.model]
        self.model = self.spec.make(job.divisor)
        self.batch = self.spec.batch(job.divisor, 100 + rank)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=RATE)
        self.called: Callable[..., Any] = self.model

    def step(self, number: int) -> None:
        torch.manual_seed(1000 * number + self.rank)  # of what dropout leaves out
        self.optimizer.zero_grad()
        loss = self.spec.loss_fn(self.called(*self.batch), *self.batch)
        loss.backward()  # type: ignore[no-untyped-call]
        self.finish()

    def finish(self) -> None:
        self.optimizer.step()

    def spent_ns(self) -> int:
        """Processor time of this process so far, and on rank 0 of those that have no rank."""
        return time.process_time_ns()

    def close(self) -> None:
        """After the last step."""


class Planned(Trainer):
    backend = "rdmatensor"

    def __init__(self, job: Job, rank: int) -> None:
        super().__init__(job, rank)
        plan = graph_analysis.plan_from_json(job.plan.read_text(encoding="utf-8"))
        self._planned = rdmatensor.plan.apply(self.model, plan, self.optimizer)
        self.called = self._planned

    def close(self) -> None:
        self._planned.close()


class Adopted(Trainer):
    backend = "rdmatensor"

    def __init__(self, job: Job, rank: int) -> None:
        super().__init__(job, rank)
        self.called = DistributedDataParallel(self.model, gradient_as_bucket_view=True)


class Copied(Trainer):
    backend = "rdmatensor"
    environment = {"RDMATENSOR_ADOPT": "0"}  # noqa: RUF012

    def __init__(self, job: Job, rank: int) -> None:
        super().__init__(job, rank)
        self.called = DistributedDataParallel(self.model)


class Gloo(Adopted):
    backend = "gloo"


class Served(Trainer):
    def __init__(self, job: Job, rank: int) -> None:
        super().__init__(job, rank)
        parameters = list(self.model.parameters())
        self._client = grpc_server.Client(parameters, port_file(job), job.patience_s)

    def finish(self) -> None:
        self._client.pull()

    def spent_ns(self) -> int:
        server_ns = self._client.server_spent_ns() if self.rank == 0 else 0
        return super().spent_ns() + server_ns

    def close(self) -> None:
        self._client.close()


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


TRAINERS: dict[str, type[Trainer]] = {
    "planned": Planned,
    "adopted": Adopted,
    "copied": Copied,
    "variant": Variant,
    "gloo": Gloo,
    "grpc": Served,
    "floor": Trainer,
}


def port_file(job: Job) -> Path:
    return job.folder / "port"


def serve(job: Job) -> None:
    """The process that holds the parameters."""
    torch.manual_seed(1)
    model = MODELS[job.model].make(job.divisor)
    parameters = list(model.parameters())
    grpc_server.serve(parameters, job.ranks, RATE, port_file(job), job.patience_s)
