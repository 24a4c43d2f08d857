"""A small model in as many buckets as it has layers, for `bench busy`."""

from __future__ import annotations

import gc
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import rdmatensor.torch  # noqa: F401  registers "rdmatensor"

PATIENCE = timedelta(seconds=60)
WARM_STEPS = 5  # DistributedDataParallel makes its buckets again after the first
_RATE = 0.01


def model_of(layers: int, width: int) -> torch.nn.Sequential:
    """Return the same for all: layers without bias, each of width * width parameters."""
    torch.manual_seed(1)
    return torch.nn.Sequential(
        *(torch.nn.Linear(width, width, bias=False) for _ in range(layers)),
    )


class Trainee:
    """A model of its own, in as many buckets as layers of DistributedDataParallel on a backend."""

    def __init__(self, backend: str, layers: int, width: int) -> None:
        self.model = model_of(layers, width)
        self.called: Callable[[torch.Tensor], torch.Tensor] = DistributedDataParallel(
            self.model,
            process_group=dist.new_group(backend=backend, timeout=PATIENCE),
            bucket_cap_mb=4.0 * width * width / (1 << 20),
            gradient_as_bucket_view=True,
        )
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=_RATE)

    def step(self, batch: torch.Tensor) -> None:
        self.optimizer.zero_grad()
        loss = self.called(batch).square().mean()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()

    def close(self) -> None:
        """Before the group ends: trainers.py says why."""
        self.called = self.model
        gc.collect()


def same_parameters(trainees: dict[str, Trainee]) -> bool:
    """Whether all backends have trained to the same parameters."""
    several = [list(one.model.parameters()) for one in trainees.values()]
    return all(
        torch.allclose(own, other, rtol=1e-5, atol=1e-7)
        for others in several[1:]
        for own, other in zip(several[0], others, strict=True)
    )
