"""One of several processes that train a model in as many buckets as it has layers.

DistributedDataParallel on rdmatensor and on Gloo, and the model alone, take turns in the same
processes on the same batch; a barrier of Gloo before each step. What a step takes beyond that of
the model alone is exposed to communication. Prints lines of JSON, as collectives.py does.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore
from torch.nn.parallel import DistributedDataParallel

import rdmatensor.torch  # noqa: F401  registers "rdmatensor"
from bench.workers.collectives import Gloo, pin

PATIENCE = timedelta(seconds=60)
ALONE = "alone"
WARM_STEPS = 5  # buckets are built anew after the first, and adopted
_RATE = 0.01


def model_of(layers: int, width: int) -> torch.nn.Sequential:
    """Return the same for all: layers without bias, each of width * width parameters."""
    torch.manual_seed(1)
    return torch.nn.Sequential(
        *(torch.nn.Linear(width, width, bias=False) for _ in range(layers)),
    )


class Trainee:
    """A model of its own; backend: of its DistributedDataParallel, or ALONE."""

    def __init__(self, backend: str, layers: int, width: int) -> None:
        self.model = model_of(layers, width)
        self.called: Callable[[torch.Tensor], torch.Tensor] = self.model
        if backend != ALONE:
            wrapped = DistributedDataParallel(
                self.model,
                process_group=dist.new_group(backend=backend, timeout=PATIENCE),
                bucket_cap_mb=4.0 * width * width / (1 << 20),
                gradient_as_bucket_view=True,
            )
            self.called = wrapped
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=_RATE)

    def step(self, batch: torch.Tensor) -> None:
        self.optimizer.zero_grad()
        loss = self.called(batch).square().mean()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()

    def buckets(self) -> int:
        """How many there are, as they are now."""
        assert isinstance(self.called, DistributedDataParallel)
        data = self.called._get_ddp_logging_data()  # type: ignore[no-untyped-call]
        sizes = data.get("rebuilt_bucket_sizes") or data["bucket_sizes"]
        return len(str(sizes).split(","))

    def close(self) -> None:
        """Before the group ends: trainers.py says why."""
        self.called = self.model
        gc.collect()


def same_parameters(trainees: dict[str, Trainee]) -> bool:
    """Whether all backends have trained to the same parameters."""
    several = [list(one.model.parameters()) for name, one in trainees.items() if name != ALONE]
    return all(
        torch.allclose(own, other, rtol=1e-5, atol=1e-7)
        for others in several[1:]
        for own, other in zip(several[0], others, strict=True)
    )


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--backends", required=True)
    parser.add_argument("--layers", type=int, required=True)
    parser.add_argument("--width", type=int, required=True)
    parser.add_argument("--rows", type=int, required=True, help="of the batch")
    parser.add_argument("--rounds", type=int, required=True)
    return parser.parse_args()


def main() -> None:
    arguments = parsed()
    rank, ranks = int(arguments.rank), int(arguments.ranks)
    torch.set_num_threads(1)
    store = FileStore(str(arguments.folder / "c10d"), ranks)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks, timeout=PATIENCE)
    names = [*str(arguments.backends).split(","), ALONE]
    trainees = {name: Trainee(name, arguments.layers, arguments.width) for name in names}
    meeting = Gloo()
    torch.manual_seed(100 + rank)
    batch = torch.randn(arguments.rows, arguments.width)
    for trainee in trainees.values():
        for _ in range(WARM_STEPS):
            trainee.step(batch)
    pin(rank, ranks)
    found: dict[str, list[int]] = {name: [] for name in names}
    spent: dict[str, list[int]] = {name: [] for name in names}
    for number in range(arguments.rounds):
        first = number % len(names)
        for name in [*names[first:], *names[:first]]:
            meeting.barrier()
            cpu_ns, before_ns = time.process_time_ns(), time.perf_counter_ns()
            trainees[name].step(batch)
            found[name].append(time.perf_counter_ns() - before_ns)
            spent[name].append(time.process_time_ns() - cpu_ns)
    if not same_parameters(trainees):
        raise RuntimeError("the backends have trained to different parameters")
    for name, trainee in trainees.items():
        record = {
            "contestant": name,
            "op": "step",
            "size": 4 * int(arguments.width) ** 2,
            "buckets": 0 if name == ALONE else trainee.buckets(),
            "ranks": ranks,
            "rank": rank,
            "raw_ns": found[name],
            "cpu_ns": spent[name],
        }
        sys.stdout.write(json.dumps(record) + "\n")
    for trainee in trainees.values():
        trainee.close()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
