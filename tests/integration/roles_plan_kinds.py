"""Kinds of parameters that a plan takes, or refuses: sparse gradients, layouts."""

from __future__ import annotations

import copy
import gc

import torch
import torch.distributed as dist
from roles_plan_safe import STEPS, TIMEOUT, applied, batch_of, distance
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import rdmatensor.plan


def sparse(_rank: int, _world: int, *, is_functional: bool) -> str:
    """A sparse gradient is refused: by apply() where a layer says so, else when it comes."""

    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(100, 32, sparse=not is_functional)
            self.last = nn.Linear(32, 4)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            found = nn.functional.embedding(ids, self.words.weight, sparse=self.is_sparse)
            out: torch.Tensor = self.last(found.mean(1))
            return out

        is_sparse = not is_functional

    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    model = Words()
    said = ""
    try:
        planned, _ = applied(model, torch.randint(0, 100, (4, 5)))
        model.is_sparse = True
        planned(torch.randint(0, 100, (4, 5))).sum().backward()
    except rdmatensor.plan.PlanMismatchError as error:
        said = str(error)
    dist.barrier()
    dist.destroy_process_group()
    return said


def layouts(rank: int, _world: int) -> list[float]:
    """Parameters that are dense, and not row-major, train as with DDP."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    gloo = dist.new_group(backend="gloo", timeout=TIMEOUT)
    errors = []
    conv = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 8, 3))
    cases: tuple[tuple[nn.Module, tuple[int, ...]], ...] = (
        (conv.to(memory_format=torch.channels_last), (2, 3, 8, 8)),
        (nn.utils.parametrizations.orthogonal(nn.Linear(32, 32)), (4, 32)),
    )
    for model, shape in cases:
        torch.manual_seed(4)
        theirs = copy.deepcopy(model)
        planned, _ = applied(model, torch.ones(shape))
        ddp = DistributedDataParallel(theirs, process_group=gloo)
        for step in range(STEPS):
            for called, module in ((planned, model), (ddp, theirs)):
                module.zero_grad()
                called(batch_of(rank, *shape, step=step)).square().sum().backward()
            errors.append(distance(model, theirs))
        planned.close()
        del ddp, called  # before its group, whose threads may want Python's lock
        gc.collect()
    dist.destroy_process_group()
    return errors


class Scaled(nn.Module):
    """Its output depends on a buffer that a pass in train mode changes."""

    scale: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.register_buffer("scale", torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.scale.mul_(0.5).add_(0.5 * x.detach().abs().mean(0))
        out: torch.Tensor = self.layer(x) * self.scale
        return out


def changed_buffers(rank: int, _world: int, *, how: str) -> list[float]:
    """Buffers change between two steps: by a broadcast of the program's, or by an evaluation."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    gloo = dist.new_group(backend="gloo", timeout=TIMEOUT)
    torch.manual_seed(0)
    model = Scaled()
    theirs = copy.deepcopy(model)
    planned, _ = applied(model, torch.ones(8, 4))
    ddp = DistributedDataParallel(theirs, process_group=gloo)
    errors = []
    for step in range(STEPS):
        for called, module in ((planned, model), (ddp, theirs)):
            module.zero_grad()
            called(batch_of(rank, 8, 4, step=step)).square().sum().backward()
            if how == "broadcast":
                dist.broadcast(module.scale, 0, group=gloo)
            elif how == "evaluated" or (how == "rank 0" and rank == 0):
                with torch.no_grad():
                    module(batch_of(rank + 7, 8, 4, step=step))
        errors.append(distance(model, theirs))
    planned.close()
    del ddp, called  # before its group, whose threads may want Python's lock
    gc.collect()
    dist.destroy_process_group()
    return errors
