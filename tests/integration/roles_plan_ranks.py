"""Planned models on which something happens that could part the ranks."""

from __future__ import annotations

import copy
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import rdmatensor
import rdmatensor.distributed
import rdmatensor.plan
from graph_analysis import CostModel, DataParallel, TransferPlan, analyze

TIMEOUT = timedelta(seconds=20)
SMALL = CostModel(latency_ns=1)  # a bucket for each gradient


class Fuse(torch.autograd.Function):
    """The identity, whose backward raises while it is lit."""

    is_lit = False

    @staticmethod
    def forward(_ctx: Any, x: torch.Tensor) -> torch.Tensor:
        """Return the input."""
        return x.clone()

    @staticmethod
    def backward(_ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        """Return the gradient."""
        if Fuse.is_lit:
            raise ValueError("lit")
        return grads[0]


class Fused(nn.Module):
    """Two layers; the gradient of the second is there before the first one's may raise."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
        self.has_fuse = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        if self.has_fuse:
            x = Fuse.apply(x)  # type: ignore[no-untyped-call]
        second: torch.Tensor = self.second(x)
        return second


def raised(rank: int, world: int) -> dict[str, Any]:
    """A backward pass raises between two buckets, while the program holds the last gradient."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    torch.manual_seed(2)
    model = Fused()
    plan = analyze(model, (torch.ones(1, 4),), strategy=DataParallel(world), cost=SMALL)
    model.has_fuse = True
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    planned = rdmatensor.plan.apply(model, plan, optimizer)

    def step(value: float) -> None:
        optimizer.zero_grad()
        planned(torch.full((1, 4), value + rank)).sum().backward()
        optimizer.step()

    for _ in range(2):
        step(1.0)
    wanted = [_gradient(parameter).clone() for parameter in model.parameters()]
    held = model.second.weight.grad
    Fuse.is_lit = True
    try:
        step(100.0)
    except ValueError as error:
        said = str(error)
    Fuse.is_lit = False
    del held
    step(1.0)
    found = {
        "said": said,
        "buckets": planned.describe()["buckets"],
        "is_right": all(
            torch.equal(_gradient(parameter), gradient)
            for parameter, gradient in zip(model.parameters(), wanted, strict=True)
        ),
    }
    planned.close()
    dist.destroy_process_group()
    return found


def _gradient(parameter: nn.Parameter) -> torch.Tensor:
    assert parameter.grad is not None
    return parameter.grad


class Averaged(nn.Module):
    """Assigns itself a new buffer in each forward pass, and has a batch norm."""

    average: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)
        self.register_buffer("average", torch.zeros(4))
        self.saw: list[list[float]] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not torch.compiler.is_compiling():
            self.saw.append(self.average.tolist())
        if self.training:
            self.average = 0.9 * self.average + 0.1 * x.detach().mean(0)
        normed: torch.Tensor = self.norm(self.layer(x) - self.average)
        return normed


def buffers(rank: int, world: int) -> dict[str, Any]:
    """Training with accumulation, then evaluation; the oracle is DistributedDataParallel."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    gloo = dist.new_group(backend="gloo", timeout=TIMEOUT)
    torch.manual_seed(3)
    model = Averaged()
    plan = analyze(copy.deepcopy(model), (torch.ones(8, 4),), strategy=DataParallel(world))
    theirs = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    planned = rdmatensor.plan.apply(model, plan, optimizer)
    outputs = [
        _follow(planned, optimizer, rank),
        _follow(
            DistributedDataParallel(theirs, process_group=gloo),
            torch.optim.SGD(theirs.parameters(), lr=0.1),
            rank,
        ),
    ]
    said = ""
    planned(torch.ones(8, 4))
    model.average = model.average.double()
    try:
        planned(torch.ones(8, 4))
    except rdmatensor.plan.PlanMismatchError as error:
        said = str(error)
    planned.close()
    found = {
        "saw": [[round(x, 5) for x in one] for one in model.saw[: len(theirs.saw)]],
        "theirs": [[round(x, 5) for x in one] for one in theirs.saw],
        "is_same": torch.allclose(outputs[0], outputs[1], rtol=1e-5, atol=1e-6),
        "output": outputs[0].tolist(),
        "said": said,
    }
    dist.destroy_process_group()
    return found


def _follow(model: Any, optimizer: torch.optim.Optimizer, rank: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rank)
    for _ in range(3):
        optimizer.zero_grad()
        with model.no_sync():
            model(torch.randn(8, 4, generator=generator)).square().mean().backward()
        model(torch.randn(8, 4, generator=generator)).square().mean().backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        for _ in range(2):
            output: torch.Tensor = model(torch.ones(8, 4))
    model.train()
    return output


class Normed(nn.Module):
    """Six batch norms, and a buffer that is too large to be packed."""

    table: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        blocks = [nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16)) for _ in range(6)]
        self.blocks = nn.Sequential(*blocks)
        self.register_buffer("table", torch.ones(16, 1024))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normed: torch.Tensor = self.blocks(x) * self.table[:, 0]
        return normed


def many_buffers(rank: int, world: int) -> dict[str, Any]:
    """How many messages buffers take, and whether they are those of DistributedDataParallel."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    gloo = dist.new_group(backend="gloo", timeout=TIMEOUT)
    torch.manual_seed(3)
    model = Normed()
    plan = analyze(copy.deepcopy(model), (torch.ones(8, 16),), strategy=DataParallel(world))
    theirs = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    first = copy.deepcopy(model)
    with_first = torch.optim.SGD(first.parameters(), lr=0.1)
    rdmatensor.plan.apply(first, plan, with_first).close()  # paths are there
    arena_bytes = _allocated()
    planned = rdmatensor.plan.apply(model, plan, optimizer)
    arena_bytes = _allocated() - arena_bytes
    model.eval()
    with torch.inference_mode():  # of what comes first nothing may be kept that training writes to
        planned(torch.ones(8, 16))
    model.train()
    copied = planned._buffers.copied_bytes
    calls = _steps_of(planned, optimizer, rank)
    copied = planned._buffers.copied_bytes - copied
    steps = torch.optim.SGD(theirs.parameters(), lr=0.1)
    _steps_of(DistributedDataParallel(theirs, process_group=gloo), steps, rank)
    recorded = rdmatensor.plan.recorded()
    said = planned.describe()
    is_same = all(
        torch.allclose(a, b, rtol=1e-4, atol=1e-6)
        for a, b in zip(model.buffers(), theirs.buffers(), strict=True)
    )
    # Two passes, of which the second one's buffers arrive before the first one has gone back.
    optimizer.zero_grad()
    sum(planned(torch.ones(8, 16)).square().mean() for _ in range(2)).backward()
    planned.close()
    planned.close()
    found = {
        "calls": calls,
        "arena_bytes": arena_bytes,
        "peak_bytes": plan.arenas[0].peak_bytes,
        "gradients": said["buckets"],
        "copied_bytes": copied,
        "small_bytes": sum(b.nbytes for b in model.buffers() if b.nbytes < model.table.nbytes),
        "is_same": is_same,
        "planned": _broadcasts(plan),
        "recorded": [] if recorded is None else _broadcasts(recorded),
    }
    dist.destroy_process_group()
    return found


def _allocated() -> int:
    arena: Any = rdmatensor.default_context().describe()["arena"]
    return int(arena["allocated_bytes"])


def _steps_of(model: Any, optimizer: torch.optim.Optimizer, rank: int) -> list[int]:
    """Return how many collectives of the default group each of five steps had."""
    generator = torch.Generator().manual_seed(rank)
    calls = []
    for _ in range(5):
        before = rdmatensor.distributed.describe()["collectives"]
        optimizer.zero_grad()
        model(torch.randn(8, 16, generator=generator)).square().mean().backward()
        optimizer.step()
        after = rdmatensor.distributed.describe()["collectives"]
        calls.append(after["calls"] - before["calls"])  # type: ignore[index,operator]
    return calls


def _broadcasts(plan: TransferPlan) -> list[str]:
    return sorted(name for b in plan.buckets if b.operation == "broadcast" for name in b.tensors)


def one_refuses(rank: int, world: int) -> dict[str, str]:
    """Rank 1 alone has a plan or a model that does not fit: each rank is told, and by which."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    said = {}

    def attempt(what: str, call: Callable[[], object]) -> None:
        try:
            call()
        except (rdmatensor.plan.PlanMismatchError, rdmatensor.InvalidArgumentError) as error:
            said[what] = f"{type(error).__name__}: {error}"

    def applied(model: nn.Module, ranks: int) -> object:
        plan = analyze(Fused(), (torch.ones(1, 4),), strategy=DataParallel(ranks))
        return rdmatensor.plan.apply(model, plan, torch.optim.SGD(Fused().parameters(), lr=0.1))

    attempt("world", lambda: applied(Fused(), world + rank))
    frozen = Fused()
    frozen.second.weight.requires_grad_(rank != 1)
    attempt("frozen", lambda: applied(frozen, world))
    dist.destroy_process_group()
    return said


class Hollow(nn.Module):
    """Has a parameter of no elements."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.hollow = nn.Linear(4, 4), nn.Linear(4, 0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layer(x)
        return out.sum() + self.hollow(out).sum()


def hollow(rank: int, world: int) -> dict[str, Any]:
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    torch.manual_seed(4)
    model = Hollow()
    plan = analyze(model, (torch.ones(2, 4),), strategy=DataParallel(world))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    planned = rdmatensor.plan.apply(model, plan, optimizer)
    for step in range(8):
        optimizer.zero_grad()
        planned(torch.full((2, 4), float(step + rank))).backward()
        optimizer.step()
    found = {
        "gradient": _gradient(model.layer.weight).tolist(),
        "shape": tuple(_gradient(model.hollow.weight).shape),
        "bits": [parameter.detach().double().sum().item() for parameter in model.parameters()],
    }
    planned.close()
    dist.destroy_process_group()
    return found
