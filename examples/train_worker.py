"""One rank of the demo: trains the models and, on rank 0, writes the result as JSON.

Started by torchrun (see train.py). Nothing here imports rdmatensor to use it: the package
registers its backend when torch is imported, and init_process_group() takes it by name.
"""

from __future__ import annotations

import argparse
import faulthandler
import hashlib
import importlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TypeVar

import torch
import torch.distributed as dist
from data import CONTEXT_CHARS, Sample, digits, source_text
from models import CharTransformer, DigitNet, WidePerceptron
from results import (
    ModelResult,
    PeerPath,
    RunResult,
    StepMarks,
    communication_and_wait_seconds,
    communication_seconds,
    step_seconds,
)
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler
from turns import TurnClient

SEED = 7
GROUP_TIMEOUT = timedelta(seconds=30)
REQUIRED_ACCURACY = 0.9
WIDE_ACCURACY = 0.8  # after few steps, as they are long; guesses have 0.1
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Size:
    """How much of each task."""

    digit_epochs: int
    text_epochs: int
    text_chars: int
    wide_epochs: int


FULL = Size(digit_epochs=3, text_epochs=3, text_chars=60_000, wide_epochs=6)
QUICK = Size(digit_epochs=2, text_epochs=1, text_chars=50_000, wide_epochs=4)


@dataclass(frozen=True, slots=True)
class Task:
    """A model, its data and the way to judge it."""

    name: str
    build: Callable[[], nn.Module]
    train: Dataset[Sample]
    held_out: Dataset[Sample]
    score_name: str
    score: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # sum over the batch, float64
    score_limit: float
    is_higher_better: bool
    optimizer: Callable[[Iterator[nn.Parameter]], torch.optim.Optimizer]
    turns: int  # one epoch each
    batch: int  # of each rank
    bucket_mib: int


class GradientClock:
    """Stamps the moment at which the last local gradient of a backward pass is complete.

    The hook runs inside autograd, before DistributedDataParallel hears of the gradient, so
    its own path (no Python communication hook) is what is being measured.
    """

    def __init__(self, model: nn.Module) -> None:
        self.ready_ns = 0
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                self._stamp
            )

    def _stamp(self, _parameter: torch.Tensor) -> None:
        self.ready_ns = time.monotonic_ns()


def correct_answers(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return (logits.argmax(dim=-1) == labels).sum(dtype=torch.float64)


def summed_nats(logits: torch.Tensor, symbols: torch.Tensor) -> torch.Tensor:
    nats = functional.cross_entropy(logits.flatten(0, -2), symbols.flatten(), reduction="none")
    return nats.sum(dtype=torch.float64)


def adam(parameters: Iterator[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=2e-3)


def sgd(parameters: Iterator[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


def tasks(size: Size) -> Iterator[Task]:
    """Yield the tasks, each loading its data when its turn comes."""
    train, held_out = digits()
    of_digits = partial(
        Task,
        train=train,
        held_out=held_out,
        score_name="accuracy on held-out digits",
        score=correct_answers,
        is_higher_better=True,
    )
    yield of_digits(
        name="digits CNN",
        build=DigitNet,
        score_limit=REQUIRED_ACCURACY,
        optimizer=adam,
        turns=size.digit_epochs,
        batch=16,
        bucket_mib=1,
    )
    text = source_text(size.text_chars)
    yield Task(
        name="text transformer",
        build=lambda: CharTransformer(text.vocabulary, CONTEXT_CHARS),
        train=text.train,
        held_out=text.held_out,
        score_name="held-out nats per character",
        score=summed_nats,
        score_limit=text.frequency_loss,
        is_higher_better=False,
        optimizer=adam,
        turns=size.text_epochs,
        batch=16,
        # Small enough that the 1.7 MB leave in several pieces while backward still runs.
        bucket_mib=1,
    )
    yield of_digits(
        name="wide perceptron",
        build=WidePerceptron,
        score_limit=WIDE_ACCURACY,
        optimizer=sgd,
        turns=size.wide_epochs,
        batch=64,
        bucket_mib=25,  # DistributedDataParallel's default
    )


def loader(task: Task, sampler: DistributedSampler[Sample]) -> DataLoader[Sample]:
    """Batches by two forked workers; they are forked while the process group is alive."""
    return DataLoader(
        task.train,
        batch_size=task.batch,
        sampler=sampler,
        drop_last=True,
        num_workers=2,
        persistent_workers=True,
        multiprocessing_context="fork",
        generator=torch.Generator().manual_seed(SEED),
    )


class Training:
    """A model in training: its losses, and the moments of its steps."""

    def __init__(self, task: Task) -> None:
        torch.manual_seed(SEED)
        self.bare = task.build()
        self._clock = GradientClock(self.bare)
        self._model = DistributedDataParallel(
            self.bare, bucket_cap_mb=task.bucket_mib, gradient_as_bucket_view=True
        )
        self._optimizer = task.optimizer(self.bare.parameters())
        self._sampler: DistributedSampler[Sample] = DistributedSampler(
            task.train, seed=SEED, drop_last=True
        )
        self._batches = loader(task, self._sampler)
        self.losses: list[float] = []
        self.marks: list[StepMarks] = []

    def epoch(self, number: int) -> None:
        self._sampler.set_epoch(number)
        start_ns = time.monotonic_ns()
        for inputs, targets in self._batches:
            start_ns = self._step(inputs, targets, start_ns)

    def _step(self, inputs: torch.Tensor, targets: torch.Tensor, start_ns: int) -> int:
        """Train on one batch; returns the moment of its end."""
        self._optimizer.zero_grad()
        outputs = self._model(inputs)
        loss = functional.cross_entropy(outputs.flatten(0, -2), targets.flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        backward_end_ns = time.monotonic_ns()
        self._optimizer.step()

        mean_loss = loss.detach()
        loss_begin_ns = time.monotonic_ns()
        dist.all_reduce(mean_loss)
        end_ns = time.monotonic_ns()
        self.losses.append(float(mean_loss) / dist.get_world_size())
        self.marks.append(
            StepMarks(start_ns, self._clock.ready_ns, backward_end_ns, loss_begin_ns, end_ns)
        )
        return end_ns


def train(task: Task, turns: TurnClient) -> ModelResult:
    """Train an epoch in each turn; the first turn begins with making the model."""
    turns.wait(task.name, 1, task.turns)
    training = Training(task)
    turn_begins = []
    for epoch in range(task.turns):
        if epoch > 0:
            turns.wait(task.name, epoch + 1, task.turns)
        turn_begins.append(len(training.losses))
        training.epoch(epoch)
    return summarize(task, training, turn_begins)


def summarize(task: Task, training: Training, turn_begins: list[int]) -> ModelResult:
    by_step = list(zip(*gather(training.marks), strict=True))
    return ModelResult(
        model=task.name,
        parameters=sum(parameter.numel() for parameter in training.bare.parameters()),
        turn_begins=turn_begins,
        losses=training.losses,
        step_s=[step_seconds(ranks) for ranks in by_step],
        comm_s=[communication_seconds(ranks) for ranks in by_step],
        comm_and_wait_s=[communication_and_wait_seconds(ranks) for ranks in by_step],
        score_name=task.score_name,
        score=held_out_score(task, training.bare),
        score_limit=task.score_limit,
        is_higher_better=task.is_higher_better,
        weights_sha256=gather(weights_digest(training.bare)),
    )


@torch.no_grad()
def held_out_score(task: Task, model: nn.Module) -> float:
    """Mean score over the held-out data; every rank judges its share, without overlap."""
    total = torch.zeros(2, dtype=torch.float64)  # score, answers
    held_out_count = len(task.held_out)  # type: ignore[arg-type]
    shard = range(dist.get_rank(), held_out_count, dist.get_world_size())
    for first in range(0, len(shard), 64):
        samples = [task.held_out[index] for index in shard[first : first + 64]]
        inputs = torch.stack([sample[0] for sample in samples])
        targets = torch.stack([sample[1] for sample in samples])
        total[0] += task.score(model(inputs), targets)
        total[1] += targets.numel()
    dist.all_reduce(total)
    return float(total[0] / total[1])


def weights_digest(model: nn.Module) -> str:
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def gather(mine: T) -> list[T]:
    """Return every rank's object, in rank order, on every rank."""
    everyone: list[T | None] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    return [theirs for theirs in everyone if theirs is not None]


def peer_paths(backend: str) -> list[PeerPath]:
    """Ask the backend which way this rank's bytes went; Gloo has only the one."""
    me = dist.get_rank()
    if backend != "rdmatensor":
        others = (rank for rank in range(dist.get_world_size()) if rank != me)
        return [PeerPath(me, rank, "tcp", f"all that {backend.title()} has") for rank in others]
    described = importlib.import_module("rdmatensor.distributed").describe()
    return [
        PeerPath(me, int(peer["rank"]), str(peer["path"]), str(peer["reason"]))
        for peer in described["peers"]
        if int(peer["rank"]) != me
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", required=True)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--turns", required=True, help="address of the server of turns")
    parser.add_argument("--label", required=True, help="this run's name there")
    parser.add_argument("--result", type=Path, required=True)
    parser.add_argument("--dump-at-s", type=float, required=True, help="on CLOCK_MONOTONIC")
    args = parser.parse_args()

    # Shortly before the launcher ends a run that hangs, say where it hangs.
    faulthandler.dump_traceback_later(max(0.1, args.dump_at_s - time.monotonic()), exit=False)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    # Filling every torch.empty() would be timed as part of the step.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]

    dist.init_process_group(args.backend, timeout=GROUP_TIMEOUT)
    turns = TurnClient(args.turns, args.label, dist.get_rank())
    models = [train(task, turns) for task in tasks(QUICK if args.quick else FULL)]
    backend = dist.get_backend()
    paths = [path for rank in gather(peer_paths(backend)) for path in rank]
    if dist.get_rank() == 0:
        RunResult(backend, dist.get_world_size(), models, paths).save(args.result)
    dist.barrier()
    dist.destroy_process_group()
    turns.close()
    faulthandler.cancel_dump_traceback_later()


if __name__ == "__main__":
    main()
