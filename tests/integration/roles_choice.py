"""Planned models whose plan has one bucket where more would be right."""

from __future__ import annotations

import copy
import time
from datetime import timedelta
from functools import partial
from typing import Any, Literal, get_args

import torch
import torch.distributed as dist
from roles_plan import bits_of
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import rdmatensor.distributed
import rdmatensor.plan
from graph_analysis import CostModel, DataParallel, analyze
from rdmatensor import _algorithms
from rdmatensor._plan_memory import Gradient, GradientMemory
from rdmatensor.context import default_context

TIMEOUT = timedelta(seconds=60)
STEPS = 13
PLANNED = (2, 5, 6, 9)  # of the steps before the choice is final, those by the plan
SLEEP_S = 0.01  # of each layer's backward; many times what the transfer of a layer takes
SLOWER_S = 1.0
Kind = Literal["kept", "slower", "once", "held", "declined", "accumulated", "added", "cached"]
KINDS: tuple[Kind, ...] = get_args(Kind)
# Kind, rank and step of a backward pass that is slow, whatever the buckets, and by how much: so
# steps by the plan, or those by the choice, lose by far more than a busy machine's noise. "once":
# the first of those by the plan loses alone.
DAWDLES_S = {
    **{(kind, 0, step): SLOWER_S for kind in ("kept", "accumulated", "added") for step in PLANNED},
    **{("slower", 1, step): SLOWER_S for step in (3, 4, 7)},
    ("once", 0, 2): 2 * SLOWER_S,
    **{("once", 0, step): SLOWER_S for step in (3, 4, 7, 8)},
}


class Slow(torch.autograd.Function):
    """The identity, with a slow backward: so that a bucket has something to hide behind."""

    @staticmethod
    def forward(_ctx: Any, x: torch.Tensor) -> torch.Tensor:
        """Return the input."""
        return x.clone()

    @staticmethod
    def backward(_ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        """Return the gradient, late."""
        time.sleep(SLEEP_S)
        return grads[0]


class Layers(nn.Module):
    """Linear layers with pauses between them, and buffers that what comes out hangs on."""

    mean: torch.Tensor
    most: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(512, 512) for _ in range(4))
        self.register_buffer("mean", torch.zeros(512))
        self.register_buffer("most", torch.zeros(512))
        self.is_slow = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.mean.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
        self.most.copy_(torch.maximum(self.most, x.detach().abs().amax(0)))
        x = x - self.mean + 0.1 * self.most
        for layer in self.layers:
            x = layer(x)
            if self.is_slow:
                x = Slow.apply(x)  # type: ignore[no-untyped-call]
        return x


def cases(rank: int, world: int) -> dict[str, Any]:
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    found = {kind: run(kind, rank, world) for kind in KINDS}
    dist.destroy_process_group()
    return found


def run(kind: Kind, rank: int, world: int) -> dict[str, Any]:
    """Train; the oracle is the same model without a plan."""
    torch.manual_seed(4)
    model = Layers()
    theirs = DistributedDataParallel(copy.deepcopy(model), gradient_as_bucket_view=True)
    # A message is assumed to cost so much that one is best.
    cost = CostModel(latency_ns=10**9)
    example = (torch.randn(2, 512),)
    plan = analyze(model, example, strategy=DataParallel(world), cost=cost)
    model.is_slow = True
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.01) for m in (model, theirs)]
    planned = rdmatensor.plan.apply(model, plan, optimizers[0], choose_again=kind != "declined")
    said: list[rdmatensor.plan.Described] = []
    held = []
    for step in range(STEPS):
        batch = torch.randn(2, 512, generator=torch.Generator().manual_seed(10 * step + rank))
        for module, optimizer in zip((planned, theirs), optimizers, strict=True):
            optimizer.zero_grad(set_to_none=kind not in ("added", "cached"))
            if kind == "accumulated":
                with module.no_sync():
                    module(batch + 1.0).square().mean().backward()
            output: Any = module(batch)
            if module is planned:
                output.register_hook(partial(_dawdle, DAWDLES_S.get((kind, rank, step), 0.0)))
            output.square().mean().backward()
            optimizer.step()
        said.append(planned.describe())
        if kind == "held" and rank == 0:
            held += [parameter.grad for parameter in model.parameters()]
        if kind == "cached" and step == 0:
            held += [parameter.grad for parameter in model.parameters()]
    mine, other = ([*one.parameters(), *one.buffers()] for one in (model, theirs))
    found = {
        "buckets": [entry["buckets"] for entry in said],
        "last": said[-1]["buckets"],
        "choice": [entry["choice"] for entry in said],
        "arena_bytes": [entry["arena_bytes"] for entry in said],
        "copied": [entry["copied"] for entry in said],
        "fingerprint": planned.plan.fingerprint(),
        "bits": bits_of(model),
        "is_right": all(
            torch.allclose(a, b, rtol=1e-4, atol=1e-6) for a, b in zip(mine, other, strict=True)
        ),
        "held": len(held),
        "is_same": all(
            parameter.grad is one for parameter, one in zip(model.parameters(), held, strict=False)
        ),
    }
    planned.close()
    return found


def refused_places(rank: int, world: int) -> list[dict[str, bool]]:
    """Lay a plan out anew in its memory, in which each gradient in turn is refused its place."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    model = Layers()
    plan = analyze(model, (torch.randn(2, 512),), strategy=DataParallel(world))
    named = dict(model.named_parameters())
    take = GradientMemory.take
    found = []
    for refused in range(len(named)):
        taken: list[Gradient] = []

        def refusing(
            memory: GradientMemory,
            gradient: Gradient,
            taken: list[Gradient] = taken,
            refused: int = refused,
        ) -> torch.Tensor:
            taken.append(gradient)
            if len(taken) > refused:
                raise MemoryError
            return take(memory, gradient)

        memory = GradientMemory(plan, named, default_context())
        for number, gradient in enumerate(memory.gradients.values()):
            gradient.parameter.grad = memory.take(gradient).fill_(float(number))
        memory.lift()
        entry = {"is_refused": False}
        GradientMemory.take = refusing  # type: ignore[assignment, method-assign]
        try:
            GradientMemory(plan, named, default_context(), memory)
        except MemoryError:
            entry["is_refused"] = True
        GradientMemory.take = take  # type: ignore[method-assign]
        grads = [gradient.parameter.grad for gradient in memory.gradients.values()]
        entry["is_kept"] = all(
            grad is not None and bool((grad == float(number)).all())
            for number, grad in enumerate(grads)
        )
        entry["is_free"] = not any(
            grad is not None and memory.is_in_place(gradient, grad)
            for gradient, grad in zip(memory.gradients.values(), grads, strict=True)
        )
        found.append(entry)
        model.zero_grad()
    dist.destroy_process_group()
    return found


# Of rank 0 and rank 1: a length by ALGORITHMS, in ns. The slower rank of each counts, by which a
# ring is best; rank 0 alone would take a tree.
TIMED = ((1000, 990, 800, 100, 400), (1000, 990, 800, 2000, 500))


def algorithms(rank: int, world: int, *, is_slower: bool) -> dict[str, Any]:
    """Each rank has timed something else; is_slower: rank 1 then finds its steps slow."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    timed: list[list[int]] = []

    def times_ns(self: _algorithms.Algorithms, sizes: list[int]) -> list[int]:
        timed.append(self_times(self, sizes))
        return [taken for _ in sizes for taken in TIMED[rank]]

    self_times = _algorithms.Algorithms.times_ns
    _algorithms.Algorithms.times_ns = times_ns  # type: ignore[assignment, method-assign]
    found = _sum_by_others(rank, world, is_slower=is_slower)
    dist.destroy_process_group()
    return {**found, "timed": timed}


def _sum_by_others(rank: int, world: int, *, is_slower: bool) -> dict[str, Any]:
    torch.manual_seed(4)
    model = Layers()
    theirs = DistributedDataParallel(copy.deepcopy(model), gradient_as_bucket_view=True)
    plan = analyze(model, (torch.randn(2, 512),), strategy=DataParallel(world))
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.01) for m in (model, theirs)]
    planned = rdmatensor.plan.apply(model, plan, optimizers[0])
    preferred, writes = [], []
    slow = ((1, 4), (1, 5), (1, 8)) if is_slower else tuple((0, step + 1) for step in PLANNED)
    for step in range(STEPS):
        batch = torch.randn(2, 512, generator=torch.Generator().manual_seed(10 * step + rank))
        for module, optimizer in zip((planned, theirs), optimizers, strict=True):
            before = rdmatensor.distributed.describe()["collectives"]
            optimizer.zero_grad()
            output: Any = module(batch)
            if module is planned and (rank, step + 1) in slow:
                output.register_hook(partial(_dawdle, SLOWER_S))
            output.square().mean().backward()
            optimizer.step()
            if module is planned:
                after: Any = rdmatensor.distributed.describe()["collectives"]
                preferred.append(after["preferred"])
                writes.append(after["writes"] - before["writes"])  # type: ignore[index]
    mine, other = model.parameters(), theirs.parameters()
    found = {
        "choice": planned.describe()["choice"],
        "buckets": planned.describe()["buckets"],
        "preferred": preferred,
        "writes": writes,
        "bits": bits_of(model),
        "is_right": all(
            torch.allclose(a, b, rtol=1e-4, atol=1e-6) for a, b in zip(mine, other, strict=True)
        ),
    }
    planned.close()
    del theirs
    return found


def _dawdle(seconds: float, _grad: torch.Tensor) -> None:
    time.sleep(seconds)
