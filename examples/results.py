"""What a training run leaves behind, and how time in communication is counted.

Every rank stamps five moments of a step with CLOCK_MONOTONIC, which all processes of one
host share. The two stretches that count as communication are
  - from the local gradients being complete to the return of loss.backward(): what is left
    of DistributedDataParallel's all-reduces when no computation hides them, and
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

# The first steps start the loader's workers and let DDP rebuild its buckets; after the turn of
# another run, caches are cold and threads asleep.
WARM_UP_STEPS = 5
WARM_UP_STEPS_A_TURN = 2


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
    turn_begins: list[int]  # the first step of each turn
    losses: list[float]  # averaged over the ranks
    step_s: list[float]
    comm_s: list[float]
    comm_and_wait_s: list[float]
    score_name: str
    score: float
    score_limit: float
    is_higher_better: bool
    weights_sha256: list[str]  # one entry a rank

    def gradient_mb(self) -> float:
        """Megabytes of gradients in float32, which each step sums over the ranks."""
        return self.parameters * 4 / 1e6

    def step_ms(self) -> float:
        """Median milliseconds of a step."""
        return 1e3 * median(self._timed(self.step_s))

    def comm_ms(self) -> float:
        """Median milliseconds of communication in a step."""
        return 1e3 * median(self._timed(self.comm_s))

    def comm_and_wait_ms(self) -> float:
        """Median milliseconds that a rank spends in communication, waiting included."""
        return 1e3 * median(self._timed(self.comm_and_wait_s))

    def turn_step_ms(self) -> list[float]:
        """Median milliseconds of a step in each turn that has steps after its warm-up."""
        turns = (self._timed(self.step_s, turn) for turn in range(len(self.turn_begins)))
        return [1e3 * median(steps) for steps in turns if steps]

    def _timed(self, seconds: list[float], turn: int | None = None) -> list[float]:
        """Without the warm-up; of one turn, or of all."""
        ends = [*self.turn_begins[1:], len(seconds)]
        kept: list[float] = []
        for number, (begin, end) in enumerate(zip(self.turn_begins, ends, strict=True)):
            if turn in (None, number):
                kept += seconds[max(begin + WARM_UP_STEPS_A_TURN, WARM_UP_STEPS) : end]
        return kept


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
