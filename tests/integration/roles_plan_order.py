"""Programs of a planned model whose ranks use different parameters, or change .grad in a hook."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
import torch.distributed as dist
from roles_plan_safe import TIMEOUT, applied
from torch import nn
from torch.distributed.nn import functional
from torch.nn.parallel import DistributedDataParallel

import rdmatensor.plan
from graph_analysis import DataParallel, analyze

WIDTH = 1024
STEPS = 3


class Optional(nn.Module):
    """Has a layer that a rank may leave out."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer, self.extra = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor, is_used: bool = True) -> torch.Tensor:
        y: torch.Tensor = self.layer(x)
        return y + self.extra(y) if is_used else y


class Middle(nn.Module):
    """Has a collective in the middle of its backward pass, behind a layer that may be left out."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), Optional(8)
        self.group: dist.ProcessGroup | None = None

    def forward(self, x: torch.Tensor, is_used: bool = True) -> torch.Tensor:
        y: torch.Tensor = self.first(x)
        if self.group is not None:
            y = functional.all_reduce(y, group=self.group)
        out: torch.Tensor = self.last(y, is_used)
        return out


@dataclasses.dataclass
class Output:
    """What a model may return, which torch's pytree does not know."""

    used: torch.Tensor
    unused: torch.Tensor


class Returning(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.is_tuple = True

    def forward(self, x: torch.Tensor) -> Any:
        used, unused = self.layer(x), x * 1.0
        return (used, unused) if self.is_tuple else Output(used, unused)


def swapped_memory(rank: int, _world: int, *, way: str) -> list[float]:
    """Return a gradient's ends, by step; it is given other memory as its bucket flies."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH))
    for parameter in model.parameters():
        nn.init.constant_(parameter, 0.001)
    seen: list[float] = []

    def hook(_parameter: torch.Tensor) -> None:
        grad = model[1].weight.grad
        assert isinstance(grad, torch.Tensor)
        if way == "data":
            grad.data = grad.data.clone()
        else:
            with torch.no_grad():
                grad.set_(grad.clone())  # type: ignore[call-overload]

    model[0].weight.register_post_accumulate_grad_hook(hook)
    x = torch.full((2, WIDTH), float(rank + 1))
    planned, optimizer = applied(model, x)
    for _ in range(STEPS):
        optimizer.zero_grad()
        planned(x).sum().backward()
        grad = model[1].weight.grad
        assert isinstance(grad, torch.Tensor)
        seen += [float(grad[0, 0]), float(grad[-1, -1])]
    planned.close()
    dist.destroy_process_group()
    return seen


def unused(rank: int, world: int, *, kind: str) -> list[float]:
    """Return how far gradients are from DistributedDataParallel's, by step.

    Rank 1 leaves a layer out, and the backward pass has collectives of others on the same group:
    those of another plan, or the program's own.
    """
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    gloo = dist.new_group(backend="gloo")
    torch.manual_seed(0)
    models: list[nn.Module] = [Middle()] if kind == "middle" else [nn.Linear(8, 8), Optional(8)]
    x = torch.ones(2, 8) * (rank + 1)

    def gradients(called: list[Any], group: dist.ProcessGroup | None) -> list[torch.Tensor]:
        for model in models:
            model.zero_grad()
            if isinstance(model, Middle):
                model.group = group
        out = x
        for call in called[:-1]:
            out = call(out)
        called[-1](out, rank == 0).square().mean().backward()
        return [p.grad.clone() for m in models for p in m.parameters() if p.grad is not None]

    trained: list[Any] = [
        DistributedDataParallel(model, process_group=gloo, find_unused_parameters=True)
        for model in models
    ]
    want = gradients(trained, gloo)
    trained.clear()
    if isinstance(models[0], Middle):
        models[0].group = None
    for model in models:
        plan = analyze(model, (x,), strategy=DataParallel(world))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        trained.append(rdmatensor.plan.apply(model, plan, optimizer, find_unused_parameters=True))
    errors = []
    for _ in range(STEPS):
        pairs = zip(gradients(trained, dist.group.WORLD), want, strict=True)
        errors.append(max(float((one - other).abs().max()) for one, other in pairs))
    for planned in trained:
        planned.close()
    dist.destroy_process_group()
    return errors


def unreached(rank: int, _world: int) -> list[float]:
    """Return a gradient, by step: in the second one rank 1's loss reaches no parameter."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    model = Returning()
    planned, optimizer = applied(model, torch.ones(2, 8))
    model.is_tuple = False
    seen = []
    for step in range(STEPS):
        optimizer.zero_grad()
        output = planned(torch.ones(2, 8, requires_grad=True))
        (output.unused if rank == 1 and step == 1 else output.used).sum().backward()
        assert model.layer.bias.grad is not None
        seen.append(float(model.layer.bias.grad[0]))
    planned.close()
    dist.destroy_process_group()
    return seen


def empty_dropped(_rank: int, _world: int) -> list[bool]:
    """A hook drops the gradient of a parameter without elements, whose bucket has yet to leave."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)

    class Empty(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.nothing = nn.Linear(8, 8), nn.Parameter(torch.empty(0))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.first(x) + self.nothing.sum()
            return out

    model = Empty()

    def hook(_parameter: torch.Tensor) -> None:
        model.nothing.grad = None

    model.first.weight.register_post_accumulate_grad_hook(hook)
    x = torch.ones(2, 8)
    planned, optimizer = applied(model, x)
    seen = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        planned(x).sum().backward()
        seen.append(model.first.weight.grad is not None)
    planned.close()
    dist.destroy_process_group()
    return seen


def unseen(_rank: int, _world: int, *, is_late: bool) -> str:
    """The loss uses a parameter that no output leads to, which is taken for unused.

    Autograd goes first through what was made last: is_late is after the bucket has left.
    """
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    model = Optional(8)
    x = torch.ones(2, 8)
    plan = analyze(model, (x,), strategy=DataParallel(2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    planned = rdmatensor.plan.apply(model, plan, optimizer, find_unused_parameters=True)
    said = ""
    early = model.extra.weight.sum()
    output = planned(x, False).sum()
    late = model.extra.weight.sum()
    try:
        (output + (early if is_late else late)).backward()
    except rdmatensor.plan.PlanMismatchError as error:
        said = str(error)
    dist.destroy_process_group()
    return said
