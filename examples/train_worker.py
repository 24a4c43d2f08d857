"""One rank of the demo: trains both models and, on rank 0, writes the result as JSON.

Started by torchrun (see train.py). Nothing here imports rdmatensor to use it: the package
registers its backend when torch is imported, and init_process_group() takes it by name.
"""

from __future__ import annotations

import argparse
import faulthandler
import hashlib
import importlib
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

import torch
import torch.distributed as dist
from data import CONTEXT_CHARS, Sample, digits, source_text
from models import CharTransformer, DigitNet
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
from tqdm import tqdm  # type: ignore[import-untyped]

SEED = 7
GROUP_TIMEOUT = timedelta(seconds=30)
BATCH_PER_RANK = 16
# Small enough that the transformer's 1.7 MB leave in several pieces while backward still runs.
BUCKET_MIB = 1
REQUIRED_ACCURACY = 0.9
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Task:
    """A model, its data and the way to judge it."""

    name: str
    build: Callable[[], nn.Module]
    train: Dataset[Sample]
    held_out: Dataset[Sample]
    learning_rate: float
    score_name: str
    score: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # sum over the batch, float64
    score_limit: float
    is_higher_better: bool


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


class Progress:
    """A tqdm bar on a terminal, one line per epoch into a file; silent but on rank 0."""

    def __init__(self, task: Task, *, epochs: int, steps: int) -> None:
        self._is_shown = dist.get_rank() == 0
        self._name = task.name
        self._epochs = epochs
        self._started_s = time.monotonic()
        is_tty = sys.stderr.isatty()
        self._has_lines = self._is_shown and not is_tty
        self._bar = tqdm(
            total=steps,
            desc=task.name,
            unit="step",
            dynamic_ncols=True,
            disable=not (self._is_shown and is_tty),
        )

    def step(self, loss: float) -> None:
        self._bar.set_postfix(loss=f"{loss:.3f}", refresh=False)
        self._bar.update()

    def epoch(self, number: int, step: int, loss: float) -> None:
        if self._has_lines:
            seconds = time.monotonic() - self._started_s
            print(
                f"  {self._name}: epoch {number + 1}/{self._epochs}, step {step}, "
                f"loss {loss:.3f}, {seconds:.1f} s",
                file=sys.stderr,
                flush=True,
            )

    def close(self) -> None:
        self._bar.close()


def correct_answers(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return (logits.argmax(dim=-1) == labels).sum(dtype=torch.float64)


def summed_nats(logits: torch.Tensor, symbols: torch.Tensor) -> torch.Tensor:
    nats = functional.cross_entropy(logits.flatten(0, -2), symbols.flatten(), reduction="none")
    return nats.sum(dtype=torch.float64)


def tasks(max_text_chars: int) -> Iterator[Task]:
    """Yield the two tasks, each loading its data when its turn comes."""
    train, held_out = digits()
    yield Task(
        name="digits CNN",
        build=DigitNet,
        train=train,
        held_out=held_out,
        learning_rate=2e-3,
        score_name="accuracy on held-out digits",
        score=correct_answers,
        score_limit=REQUIRED_ACCURACY,
        is_higher_better=True,
    )
    text = source_text(max_text_chars)
    yield Task(
        name="source-text transformer",
        build=lambda: CharTransformer(text.vocabulary, CONTEXT_CHARS),
        train=text.train,
        held_out=text.held_out,
        learning_rate=2e-3,
        score_name="held-out nats per character",
        score=summed_nats,
        score_limit=text.frequency_loss,
        is_higher_better=False,
    )


def loader(dataset: Dataset[Sample], sampler: DistributedSampler[Sample]) -> DataLoader[Sample]:
    """Batches by two forked workers; they are forked while the process group is alive."""
    return DataLoader(
        dataset,
        batch_size=BATCH_PER_RANK,
        sampler=sampler,
        drop_last=True,
        num_workers=2,
        persistent_workers=True,
        multiprocessing_context="fork",
        generator=torch.Generator().manual_seed(SEED),
    )


def train(task: Task, *, epochs: int) -> ModelResult:
    torch.manual_seed(SEED)
    bare = task.build()
    clock = GradientClock(bare)
    model = DistributedDataParallel(bare, bucket_cap_mb=BUCKET_MIB, gradient_as_bucket_view=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=task.learning_rate)
    sampler: DistributedSampler[Sample] = DistributedSampler(task.train, seed=SEED, drop_last=True)
    batches = loader(task.train, sampler)
    progress = Progress(task, epochs=epochs, steps=epochs * len(batches))
    losses: list[float] = []
    marks: list[StepMarks] = []

    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        start_ns = time.monotonic_ns()
        for inputs, targets in batches:
            optimizer.zero_grad()
            outputs = model(inputs)
            loss = functional.cross_entropy(outputs.flatten(0, -2), targets.flatten())
            loss.backward()  # type: ignore[no-untyped-call]
            backward_end_ns = time.monotonic_ns()
            optimizer.step()

            mean_loss = loss.detach()
            loss_begin_ns = time.monotonic_ns()
            dist.all_reduce(mean_loss)
            end_ns = time.monotonic_ns()
            losses.append(float(mean_loss) / dist.get_world_size())
            marks.append(
                StepMarks(start_ns, clock.ready_ns, backward_end_ns, loss_begin_ns, end_ns)
            )
            progress.step(losses[-1])
            start_ns = end_ns
        progress.epoch(epoch, len(losses), losses[-1])
    progress.close()
    return summarize(task, bare, losses, marks)


def summarize(
    task: Task, model: nn.Module, losses: list[float], marks: list[StepMarks]
) -> ModelResult:
    by_step = list(zip(*gather(marks), strict=True))
    return ModelResult(
        model=task.name,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        losses=losses,
        step_s=[step_seconds(ranks) for ranks in by_step],
        comm_s=[communication_seconds(ranks) for ranks in by_step],
        comm_and_wait_s=[communication_and_wait_seconds(ranks) for ranks in by_step],
        score_name=task.score_name,
        score=held_out_score(task, model),
        score_limit=task.score_limit,
        is_higher_better=task.is_higher_better,
        weights_sha256=gather(weights_digest(model)),
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
        return [PeerPath(me, rank, f"tcp ({backend.title()})", "") for rank in others]
    described = importlib.import_module("rdmatensor").describe()
    return [
        PeerPath(me, int(peer["rank"]), str(peer["path"]), str(peer["reason"]))
        for peer in described["peers"]
        if int(peer["rank"]) != me
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", required=True)
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--max-text-chars", type=int, required=True)
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
    models = [train(task, epochs=args.epochs) for task in tasks(args.max_text_chars)]
    backend = dist.get_backend()
    paths = [path for rank in gather(peer_paths(backend)) for path in rank]
    if dist.get_rank() == 0:
        RunResult(backend, dist.get_world_size(), models, paths).save(args.result)
    dist.barrier()
    dist.destroy_process_group()
    faulthandler.cancel_dump_traceback_later()


if __name__ == "__main__":
    main()
