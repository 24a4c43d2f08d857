"""Every way to train by a plan, with every kind of model, and DDP on Gloo as the oracle."""

from __future__ import annotations

import copy
import functools
import gc
import io
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from roles_plan import MODELS, TIMEOUT, bits_of, loss_of, make, train
from roles_steady import held
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import rdmatensor
import rdmatensor.plan
from graph_analysis import DataParallel, TransferPlan, analyze

WIDTH = 512
SETTINGS = {"lr": 0.01, "momentum": 0.9}  # with which each of the models learns
Batches = Callable[[int, int], torch.Tensor]
WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "clipped": {"clip": True},
    "bf16": {"autocast": True},
    "accumulated": {"accumulate": 3},
    "kept gradients": {"keep_grads": True},
    "frozen": {},
    "unused": {},
}


class Halves(nn.Module):
    """Two weights that share a storage, each with its half of it."""

    def __init__(self) -> None:
        super().__init__()
        whole = torch.randn(2, 16, 16)
        self.first, self.second = nn.Parameter(whole[0]), nn.Parameter(whole[1])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x @ self.first).tanh() @ self.second


MODELS["halves"] = (Halves, lambda generator: torch.randn(8, 16, generator=generator))


class Spared(nn.Module):
    """A model with a layer that a step may go without."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.spare = inner, nn.Linear(4, 4)
        self.is_used = True

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.inner(batch)
        return out + self.spare(torch.ones(4)).sum() if self.is_used else out


def model_for(name: str, way: str) -> tuple[nn.Module, Batches]:
    """Return the model of its name as this way wants it."""
    model, batch_of = make(name)
    if way == "frozen":
        next(model.parameters()).requires_grad_(False)
    return (Spared(model) if way == "unused" else model), batch_of


@functools.cache
def plan_for(name: str, way: str, world: int) -> TransferPlan:
    """Return the plan of this way; most have the model as it is."""
    if way not in ("frozen", "unused", ""):
        return plan_for(name, "", world)
    model, batch_of = model_for(name, way)
    return analyze(model, (batch_of(0, 0),), strategy=DataParallel(world))


def ways(rank: int, world: int, model: str) -> dict[str, Any]:
    """Train a model in each way, by a plan here and with DDP on Gloo there."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    gloo = dist.new_group(backend="gloo", timeout=TIMEOUT)
    # oneDNN has no LSTM in bfloat16 for a CPU without AVX-512, and torch asks it before its own.
    with torch.backends.mkldnn.flags(enabled=model != "lstm"):
        found = {way: beside_gloo(rank, world, model, way, gloo) for way in WAYS}
    found["resumed"] = resumed(rank, world, model)
    gc.collect()  # DDP has to go before the group: roles_adopt.buckets()
    dist.destroy_process_group()
    return found


def beside_gloo(
    rank: int, world: int, name: str, way: str, gloo: dist.ProcessGroup
) -> dict[str, Any]:
    mine, batch_of = model_for(name, way)
    theirs = copy.deepcopy(mine)
    is_spared = way == "unused"
    optimizers = [torch.optim.SGD(model.parameters(), **SETTINGS) for model in (mine, theirs)]
    plan = plan_for(name, way, world)
    planned = rdmatensor.plan.apply(mine, plan, optimizers[0], find_unused_parameters=is_spared)
    oracle = DistributedDataParallel(
        theirs,
        process_group=gloo,
        gradient_as_bucket_view=True,
        find_unused_parameters=is_spared,
    )

    def spare(model: Any) -> Callable[[int], None]:
        def before(step: int) -> None:
            model.is_used = step % 2 == 0

        return before if is_spared else lambda _step: None

    losses, gloo_losses = (
        train(called, batch_of, rank, optimizer=optimizer, before=spare(model), **WAYS[way])
        for called, model, optimizer in zip(
            (planned, oracle), (mine, theirs), optimizers, strict=True
        )
    )
    planned.close()
    return {
        "losses": losses,
        "gloo_losses": gloo_losses,
        "far": max(
            float((a - b).detach().abs().max())
            for a, b in zip(mine.parameters(), theirs.parameters(), strict=True)
        ),
        "gradients": len(planned._memory.gradients),
        "trained": len([p for p in mine.parameters() if p.requires_grad]),
        "bits": bits_of(mine),
    }


def resumed(rank: int, world: int, name: str) -> dict[str, Any]:
    """Two steps, a checkpoint into another model with a plan of its own, and two more; and four."""
    plan = plan_for(name, "", world)
    whole, batch_of = make(name)
    _, losses = _steps(whole, plan, None, batch_of, range(4), rank)
    file, _ = _steps(make(name)[0], plan, None, batch_of, range(2), rank)
    again = make(name)[0]
    _, last = _steps(again, plan, file, batch_of, range(2, 4), rank)
    return {"losses": losses[2:], "again": last, "bits": bits_of(again), "whole": bits_of(whole)}


def _steps(
    model: nn.Module,
    plan: TransferPlan,
    file: bytes | None,
    batch_of: Batches,
    numbers: range,
    rank: int,
) -> tuple[bytes, list[float]]:
    """Train by a plan from a checkpoint, and return the next one, with the losses."""
    optimizer = torch.optim.SGD(model.parameters(), **SETTINGS)
    planned = rdmatensor.plan.apply(model, plan, optimizer)
    if file is not None:
        saved = torch.load(io.BytesIO(file), weights_only=True)
        planned.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
    losses = []
    for number in numbers:
        optimizer.zero_grad()
        loss = loss_of(planned(batch_of(number, rank)))
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    torch.save(
        {"model": planned.state_dict(), "optimizer": optimizer.state_dict()},
        buffer := io.BytesIO(),
    )
    planned.close()
    return buffer.getvalue(), losses


def _allocated() -> int:
    arena: Any = rdmatensor.default_context().describe()["arena"]
    return int(arena["allocated_bytes"])


def _one_step(called: Any, optimizer: torch.optim.Optimizer) -> int:
    """Train once; return what the C library's heap holds more with the gradients than without."""
    optimizer.zero_grad()
    before = held()["heap_bytes"]
    loss_of(called(torch.ones(4, WIDTH))).backward()
    more = held()["heap_bytes"] - before
    optimizer.step()
    return more


def memory(_rank: int, world: int) -> dict[str, Any]:
    """What gradients take, by the plan, by the arena's count and by that of the heap."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    torch.manual_seed(1)
    first, second = (nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(4))) for _ in range(2))
    plan = analyze(first, (torch.ones(4, WIDTH),), strategy=DataParallel(world))
    found: dict[str, Any] = {
        "peak": plan.arenas[0].peak_bytes,
        "gradients": sum(p.nbytes for p in first.parameters()),
    }
    optimizer = torch.optim.SGD(first.parameters(), lr=0.01)
    planned = rdmatensor.plan.apply(first, plan, optimizer)
    with_first = _allocated()
    planned.close()  # paths are there
    del planned
    dist.barrier()
    deadline_s = time.monotonic() + 20
    while _allocated() == with_first and time.monotonic() < deadline_s:
        time.sleep(0.01)  # the other rank lets the memory go
    optimizer = torch.optim.SGD(second.parameters(), lr=0.01)
    before = _allocated()
    planned = rdmatensor.plan.apply(second, plan, optimizer)
    found["allocated"] = [_allocated() - before]
    found["heap"] = [_one_step(planned, optimizer) for _ in range(4)]
    found["allocated"].append(_allocated() - before)
    found["described"] = planned.describe()["arena_bytes"]
    planned.close()
    # The same without a plan: the heap's count sees gradients.
    optimizer = torch.optim.SGD(first.parameters(), lr=0.01)
    found["heap_alone"] = [_one_step(first, optimizer) for _ in range(4)]
    dist.destroy_process_group()
    return found
