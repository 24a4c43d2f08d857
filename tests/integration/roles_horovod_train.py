"""Ranks that train by Horovod's API, and ranks that die or disappoint."""

from __future__ import annotations

import contextlib
import logging
import os
import random
import signal
import time
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

import rdmatensor.horovod.torch as hvd

OPTIMIZERS = {
    one.__name__: one
    for one in (getattr(torch.optim, name) for name in dir(torch.optim))
    if isinstance(one, type)
    and issubclass(one, torch.optim.Optimizer)
    and one.__name__ not in ("Optimizer", "LBFGS", "SparseAdam", "Muon")
}


def _model() -> torch.nn.Module:
    torch.manual_seed(3)
    return torch.nn.Sequential(
        torch.nn.Linear(6, 32), torch.nn.Tanh(), torch.nn.Linear(32, 8), torch.nn.Linear(8, 1)
    )


def _train(model: torch.nn.Module, optimizer: Any, rank: int, steps: int = 6) -> None:
    data = torch.Generator().manual_seed(rank)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, 6, generator=data)).square().mean().backward()
        optimizer.step()


def like_ddp(rank: int, _world: int) -> dict[str, float]:
    """Train by both; return the greatest difference for each optimizer."""
    hvd.init()
    found = {}
    for name, kind in OPTIMIZERS.items():
        ours, theirs = _model(), torch.nn.parallel.DistributedDataParallel(_model())
        named = ours.named_parameters()
        _train(ours, hvd.DistributedOptimizer(kind(ours.parameters(), lr=0.01), named), rank)
        _train(theirs, kind(theirs.parameters(), lr=0.01), rank)
        found[name] = max(
            float((one - other).abs().max().detach())
            for one, other in zip(ours.parameters(), theirs.parameters(), strict=True)
        )
    hvd.shutdown()
    return found


def _all_in_one(world: int) -> torch.nn.Module:
    """Train with the data of all ranks in this one."""
    model = _model()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    data = [torch.Generator().manual_seed(one) for one in range(world)]
    for _ in range(6):
        sgd.zero_grad()
        for one in data:
            (model(torch.randn(4, 6, generator=one)).square().mean() / world).backward()
        sgd.step()
    return model


def options(rank: int, world: int) -> dict[str, float]:
    """Train with each option of DistributedOptimizer(); the differences to all data in one."""
    hvd.init()
    expected = _all_in_one(world)
    kinds: dict[str, dict[str, Any]] = {
        "plain": {},
        "predivide": {"gradient_predivide_factor": float(world)},
        "groups": {"groups": 2},
        "fp16": {"compression": hvd.Compression.fp16},
        "many_groups": {"groups": 50},
    }
    found = {}
    for label, options in kinds.items():
        model = _model()
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        _train(model, hvd.DistributedOptimizer(sgd, model.named_parameters(), **options), rank)
        found[label] = _distance(model, expected)
    model = _model()
    lists = [list(model[0].parameters()), [model[2].weight]]
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    _train(model, hvd.DistributedOptimizer(sgd, groups=lists), rank)
    found["lists"] = _distance(model, expected)

    model = _model()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    twice = hvd.DistributedOptimizer(
        sgd, model.named_parameters(), backward_passes_per_step=2, op=hvd.Sum
    )
    data = torch.Generator().manual_seed(rank)
    for _ in range(6):
        twice.zero_grad()
        batch = torch.randn(4, 6, generator=data)
        for half in batch.split(2):
            (model(half).square().mean() / 2 / world).backward()
        twice.step()
    found["passes"] = _distance(model, expected)
    hvd.shutdown()
    return found


def _distance(model: torch.nn.Module, other: torch.nn.Module) -> float:
    return max(
        float((one - two).abs().max().detach())
        for one, two in zip(model.parameters(), other.parameters(), strict=True)
    )


def missing(rank: int, world: int) -> dict[str, Any]:
    """Each rank leaves out other layers in each step; numpy has the sums."""
    hvd.init()
    layers = torch.nn.ModuleList(torch.nn.Linear(1, 1, bias=False) for _ in range(6))
    for layer in layers:
        torch.nn.init.zeros_(layer.weight)
    sgd = torch.optim.SGD(layers.parameters(), lr=1.0)
    optimizer = hvd.DistributedOptimizer(sgd, layers.named_parameters())
    expected = np.zeros(6)
    for step in range(12):
        optimizer.zero_grad()
        used = [_uses(one, step) for one in range(world)]
        expected -= np.mean(
            [[one + 1.0 if u else 0.0 for u in used[one]] for one in range(world)], 0
        )
        value = torch.full((1,), rank + 1.0)
        outs = [layer(value) for layer, u in zip(layers, used[rank], strict=True) if u]
        random.Random(f"{rank} {step}").shuffle(outs)
        if outs:
            torch.cat(outs).sum().backward()
        optimizer.step()
    found = [float(layer.weight.detach()) for layer in layers]
    hvd.shutdown()
    return {"found": found, "expected": expected.tolist()}


def _uses(rank: int, step: int) -> list[bool]:
    if step < 5:
        return [True] * 6  # a fast lane begins
    rng = random.Random(f"uses {rank} {step}")
    return [rng.random() < 0.6 for _ in range(6)]


def schedules(rank: int, world: int, first: int, count: int) -> int:
    """Run random schedules: any order, late names, other operations, uneven ends."""
    hvd.init()
    for seed in range(first, first + count):
        _schedule(rank, world, seed)
    hvd.shutdown()
    return count


def _value(seed: int, rank: int, name: int, step: int) -> float:
    return float(random.Random(f"{seed} {rank} {name} {step}").randrange(100))


class _Step:
    """One step of a schedule on this rank."""

    def __init__(self, seed: int, rank: int, step: int, sizes: list[int], there: list[int]) -> None:
        self.seed, self.rank, self.step, self.sizes, self.there = seed, rank, step, sizes, there
        self.handles: dict[int, int] = {}

    def submit(self, names: list[int]) -> None:
        """Submit these tensors."""
        for name in names:
            given = torch.full((self.sizes[name],), _value(self.seed, self.rank, name, self.step))
            op = (hvd.Sum, hvd.Average, hvd.Max)[self.seed % 3]
            self.handles[name] = hvd.allreduce_async(given, name=f"{self.seed}.{name}", op=op)

    def check(self, names: list[int], own: random.Random) -> None:
        """Wait for these tensors."""
        for name in names:
            if own.random() < 0.2:
                hvd.poll(self.handles[name])
            found = hvd.synchronize(self.handles.pop(name))
            values = [_value(self.seed, one, name, self.step) for one in self.there]
            average = float(np.float32(sum(values)) / np.float32(hvd.size()))
            expected = (sum(values), average, max(values))[self.seed % 3]
            where = (self.seed, self.step, name)
            assert found.tolist() == [expected] * self.sizes[name], where


def _schedule(rank: int, world: int, seed: int) -> None:
    common, own = random.Random(f"common {seed}"), random.Random(f"own {seed} {rank}")
    names = list(range(common.randrange(1, 7)))
    sizes = [common.choice((1, 3, 5000)) for _ in names]
    steps = common.randrange(1, 8)
    ends = [steps + common.randrange(3) for _ in range(world)]
    is_sync = common.random() < 0.3
    odd = {step for step in range(steps) if common.random() < 0.15}
    for step in range(ends[rank]):
        one = _Step(
            seed, rank, step, sizes, [other for other in range(world) if ends[other] > step]
        )
        early = names if is_sync else common.sample(names, common.randrange(len(names) + 1))
        late = [name for name in names if name not in early]
        if is_sync:
            for name in names:
                one.submit([name])
                one.check([name], own)
        elif own.random() < 0.3:  # the late ones are not submitted before the early ones are there
            one.submit(own.sample(early, len(early)))
            one.check(own.sample(early, len(early)), own)
            one.submit(own.sample(late, len(late)))
            one.check(own.sample(late, len(late)), own)
        else:
            one.submit(own.sample(names, len(names)))
            if own.random() < 0.2:
                time.sleep(0.001)
            one.check(own.sample(names, len(names)), own)
        if step in odd:
            root = step % world
            assert int(hvd.broadcast(torch.tensor(rank), root)) == root
    hvd.join()


def killed(rank: int, world: int, victim: int, is_idle: bool) -> dict[str, Any]:
    """One rank is killed; the others say who, and how long after."""
    hvd.init()
    for step in range(6):
        hvd.allreduce(torch.full((1000,), float(step)), name="x")
    if rank == victim:
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGKILL)
    if is_idle:
        time.sleep(0.6)
    since = time.monotonic()
    try:
        for _ in range(100):
            hvd.allreduce(torch.ones(1000), name="x")
    except hvd.HorovodInternalError as error:
        late_s = time.monotonic() - since
        words = str(error)
    else:
        raise AssertionError("nothing failed")
    with contextlib.suppress(hvd.HorovodInternalError):
        hvd.allreduce(torch.ones(2), name="after")
    hvd.shutdown()
    return {"words": words, "late_s": late_s}


def stalled(rank: int, _world: int, gives_up: bool) -> dict[str, Any]:
    """Rank 1 submits late, or not before the others give up."""
    words: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: words.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("rdmatensor.horovod").addHandler(handler)
    hvd.init()
    for _ in range(5):
        hvd.allreduce(torch.ones(2), name="often")
    error = ""
    try:
        if rank == 1:
            time.sleep(6.0 if gives_up else 4.0)
        hvd.allreduce(torch.ones(2), name="often")
    except hvd.HorovodInternalError as caught:
        error = str(caught)
    hvd.shutdown()
    return {"words": words, "error": error}


def shut_down_early(rank: int, _world: int) -> str:
    """Rank 0 leaves while the others have an operation in flight; then all meet again."""
    hvd.init()
    for _ in range(4):
        hvd.allreduce(torch.ones(2), name="x")
    words = ""
    if rank != 0:
        try:
            hvd.allreduce(torch.ones(2), name="x")
        except hvd.HorovodInternalError as error:
            words = str(error)
    hvd.shutdown()
    hvd.init()
    assert hvd.allreduce(torch.ones(2), name="x").tolist() == [1.0, 1.0]
    hvd.shutdown()
    assert not dist.is_initialized()
    return words
