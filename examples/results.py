"""What a training run leaves behind, and how time in communication is counted.

Every rank stamps five moments of a step with CLOCK_MONOTONIC, which all processes of one
host share. The two stretches that count as communication are
  - from the local gradients being complete to the return of loss.backward(): what is left
    of DistributedDataParallel's all-reduces when there is no computation to hide them, and
  - the all-reduce of the loss.
A transfer that overlaps the backward pass is not in these figures; it shows in steps/s.

A rank that comes early waits for the other, and that is the other's lateness, not the
backend's. So *communication* runs from the moment at which the last rank has its data
ready to the moment at which the last rank has the result; *communication and waiting* is
the mean over the ranks of what each of them spent in there.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, median

# The first steps start the loader's workers and let DDP rebuild its buckets.
WARM_UP_STEPS = 5


@dataclass(frozen=True, slots=True)
class StepMarks:
    """One rank's moments of one step, in nanoseconds of CLOCK_MONOTONIC."""

    start_ns: int
    grads_ready_ns: int
    backward_end_ns: int
    loss_begin_ns: int
    end_ns: int  # the loss all-reduce has returned


@dataclass(frozen=True, slots=True)
class ModelResult:
    """One model trained in one run; the lists hold one entry a step."""

    model: str
    parameters: int
    losses: list[float]  # averaged over the ranks
    step_s: list[float]
    comm_s: list[float]
    comm_and_wait_s: list[float]
    score_name: str
    score: float
    score_limit: float
    is_higher_better: bool
    weights_sha256: list[str]  # one entry a rank

    def steps_per_s(self) -> float:
        """Steps per second by the median step: robust against a busy machine."""
        return 1.0 / median(self.step_s[WARM_UP_STEPS:])

    def comm_ms(self) -> float:
        """Median milliseconds of communication in a step."""
        return 1e3 * median(self.comm_s[WARM_UP_STEPS:])

    def comm_and_wait_ms(self) -> float:
        """Median milliseconds that a rank spends in communication, waiting included."""
        return 1e3 * median(self.comm_and_wait_s[WARM_UP_STEPS:])


@dataclass(frozen=True, slots=True)
class PeerPath:
    """The way from one rank to another and why it was chosen."""

    rank: int
    peer: int
    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class RunResult:
    """All of one run: what `torchrun` was started with and what came out."""

    backend: str  # as torch.distributed.get_backend() gave it
    world_size: int
    models: list[ModelResult]
    paths: list[PeerPath]

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")


def load_run(path: Path) -> RunResult:
    """Read what RunResult.save() wrote; floats come back bit for bit."""
    raw = json.loads(path.read_text(encoding="utf-8"))
    return RunResult(
        backend=raw["backend"],
        world_size=raw["world_size"],
        models=[ModelResult(**model) for model in raw["models"]],
        paths=[PeerPath(**peer) for peer in raw["paths"]],
    )


def step_seconds(ranks: Sequence[StepMarks]) -> float:
    """Seconds of one step, fetching the batch included: mean over the ranks."""
    return fmean(mark.end_ns - mark.start_ns for mark in ranks) * 1e-9


def communication_seconds(ranks: Sequence[StepMarks]) -> float:
    """Seconds from the last rank's data being ready to the last rank having the result."""
    gradients = max(m.backward_end_ns for m in ranks) - max(m.grads_ready_ns for m in ranks)
    loss = max(m.end_ns for m in ranks) - max(m.loss_begin_ns for m in ranks)
    return (gradients + loss) * 1e-9


def communication_and_wait_seconds(ranks: Sequence[StepMarks]) -> float:
    """Seconds a rank spends in communication, waiting for the others included: mean."""
    return 1e-9 * fmean(
        (m.backward_end_ns - m.grads_ready_ns) + (m.end_ns - m.loss_begin_ns) for m in ranks
    )
