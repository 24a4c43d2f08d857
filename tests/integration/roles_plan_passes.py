"""Passes that are not one sum of all gradients: grad() alone, checkpoints, gradients held."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint

import rdmatensor.plan
from graph_analysis import DataParallel, analyze

TIMEOUT = timedelta(seconds=60)
WIDTH = 8
STEPS = 12


class Twice(nn.Module):
    """Two layers, or one twice, each in a reentrant checkpoint where it is asked for."""

    def __init__(self, *, is_shared: bool) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.second = self.first if is_shared else nn.Linear(WIDTH, WIDTH)
        self.is_checkpointed = False

    def forward(self, x: torch.Tensor, *, is_used: bool = True) -> torch.Tensor:
        if not is_used:
            return 2 * x
        for layer in (self.first, self.second):
            x = checkpoint(layer, x, use_reentrant=True) if self.is_checkpointed else layer(x)
        return x


def _applied(
    world: int, *, is_shared: bool
) -> tuple[Twice, rdmatensor.plan.PlannedModel, torch.optim.Optimizer]:
    torch.manual_seed(3)
    model = Twice(is_shared=is_shared)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    plan = analyze(model, (torch.ones(2, WIDTH),), strategy=DataParallel(world))
    planned = rdmatensor.plan.apply(model, plan, optimizer)
    return model, planned, optimizer


def _batch(rank: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rank)
    return torch.randn(2, WIDTH, generator=generator).requires_grad_()


def _loss(out: torch.Tensor) -> torch.Tensor:
    return out.square().mean()


def _gradients(model: nn.Module) -> list[torch.Tensor]:
    return [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in model.parameters()]


def _is_mean(found: list[torch.Tensor], of_ranks: list[list[torch.Tensor]]) -> bool:
    means = [torch.stack(each).mean(0) for each in zip(*of_ranks, strict=True)]
    return all(torch.allclose(a, b, atol=1e-6) for a, b in zip(found, means, strict=True))


def checkpointed(rank: int, world: int, *, is_shared: bool) -> dict[str, Any]:
    """Train through reentrant checkpoints, whose gradients come from passes within the pass."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    model, planned, _ = _applied(world, is_shared=is_shared)
    wanted = []
    with planned.no_sync():
        for other in range(world):
            model.zero_grad()
            _loss(model(_batch(other))).backward()
            wanted.append(_gradients(model))
    model.is_checkpointed = True
    said, is_right = "", []
    for _ in range(3):
        model.zero_grad()
        try:
            _loss(planned(_batch(rank))).backward()
        except rdmatensor.plan.PlanMismatchError as error:
            said = str(error)
            break
        is_right.append(_is_mean(_gradients(model), wanted))
    dist.barrier()  # the other may send still
    planned.close()
    dist.destroy_process_group()
    return {"said": said, "is_right": is_right, "steps": planned.describe()["steps"]}


def differentiated(rank: int, world: int) -> dict[str, Any]:
    """grad() on one rank alone, before and between steps, and on both with a penalty."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    model, planned, optimizer = _applied(world, is_shared=False)
    found: dict[str, Any] = {}
    x = _batch(rank)
    if rank == 0:
        torch.autograd.grad(_loss(planned(x)), x)
        # As .grad: None, and nothing is sent, since nobody would answer.
        found["left"] = [p.grad is None for p in model.parameters()]

    def penalized(batch: torch.Tensor) -> torch.Tensor:
        out = _loss(planned(batch))
        (slope,) = torch.autograd.grad(out, batch, create_graph=True)
        penalty: torch.Tensor = out + slope.square().sum()
        return penalty

    wanted = []
    with planned.no_sync():
        for other in range(world):
            model.zero_grad()
            penalized(_batch(other)).backward()
            wanted.append(_gradients(model))
    is_right = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        penalized(x).backward()
        if rank == 0:
            torch.autograd.grad(_loss(planned(x)), [x, *model.parameters()])
        is_right.append(_is_mean(_gradients(model), wanted))
        optimizer.step()
    found |= {"is_right": is_right, "steps": planned.describe()["steps"]}
    planned.close()
    dist.destroy_process_group()
    return found


def unused_by_one(rank: int, world: int) -> dict[str, Any]:
    """A rank whose loss reaches no parameter at all, and one that uses all."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    model, planned, optimizer = _applied(world, is_shared=False)
    with planned.no_sync():
        _loss(model(_batch(0))).backward()
        wanted = [_gradients(model), [torch.zeros_like(p) for p in model.parameters()]]
    optimizer.zero_grad()
    _loss(planned(_batch(rank), is_used=rank == 0)).backward()
    is_right = _is_mean(_gradients(model), wanted)  # before step(): a program may clip them
    optimizer.step()
    steps = planned.describe()["steps"]
    planned.close()
    dist.destroy_process_group()
    return {"is_right": is_right, "steps": steps}


def held(rank: int, world: int) -> dict[str, Any]:
    """A program that keeps a gradient: its place is taken, and the next one leaves from aside."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    model, planned, optimizer = _applied(world, is_shared=False)
    copied = []
    kept = None
    for step in range(4):
        optimizer.zero_grad()
        _loss(planned(_batch(rank))).backward()
        optimizer.step()
        copied.append(planned.describe()["last_step"]["copied_bytes"])
        if step == 2:
            kept = model.first.weight.grad
    (bucket,) = planned._memory.buckets
    found = {
        "copied": copied,
        "flat_bytes": bucket.flat.nbytes,
        "gradient_bytes": sum(p.nbytes for p in model.parameters()),
        "kept_bytes": 0 if kept is None else kept.nbytes,
    }
    planned.close()
    dist.destroy_process_group()
    return found
