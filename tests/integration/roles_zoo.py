"""Models of the zoo: what the plan of their graph says against what the backend recorded."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from torch.export import Dim
from torch.nn.parallel import DistributedDataParallel

import rdmatensor.plan
from graph_analysis import DataParallel, TransferPlan, analyze
from rdmatensor._backend.groups import backend_of

sys.path.insert(0, str(Path(__file__).parent.parent / "graph"))

import zoo  # needs the line above
from zoo.scaled import SCALED, Made

TIMEOUT = timedelta(seconds=300)
STEPS = 3  # the buckets are made again after the first one
_BROADCAST = 1  # RDT_COLL_BROADCAST
_SIZES = ((2, 8), (5, 6), (3, 7))  # batch and length of each step, where the plan leaves them open
_MOST = {"tokens": {0: Dim("batch", min=2, max=8), 1: Dim("length", min=4, max=32)}}
_ANY = {"tokens": {0: Dim("batch", min=2), 1: Dim("length", min=4)}}
# Those that are planned for any batch and length, up to a most or without one.
OPEN = {"gpt": _MOST, "moe": _MOST, "huggingface": _MOST, "gpt, unbounded": _ANY}
NAMES = [*SCALED, "gpt, unbounded"]


def compare(rank: int, world: int, names: Sequence[str], is_small: bool) -> dict[str, Any]:
    """Plan, train and compare each model; rank 0's plan is everybody's."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    found = {}
    for name in names:
        torch.manual_seed(3)
        made = (SCALED if is_small else zoo.FACTORIES)[name.split(",")[0]]()
        plans: list[TransferPlan | None] = [None]
        if rank == 0:
            plans = [planned(name, made, world)]
        dist.broadcast_object_list(plans)
        plan = plans[0]
        assert plan is not None
        found[name] = train(made, plan)
    dist.destroy_process_group()
    return found


def planned(name: str, made: Made, world: int) -> TransferPlan:
    """Return the plan, of what is in OPEN for any batch and length."""
    model, inputs, loss_fn = made
    return analyze(
        model,
        inputs,
        loss_fn=loss_fn,
        strategy=DataParallel(world),
        dynamic_shapes=OPEN.get(name),
    )


def train(made: Made, plan: TransferPlan) -> dict[str, Any]:
    """Train by DistributedDataParallel, as a script that knows of no plan."""
    model, inputs, loss_fn = made
    group = dist.new_group(backend="rdmatensor", timeout=TIMEOUT)
    assert isinstance(group, dist.ProcessGroup)
    module = DistributedDataParallel(model, process_group=group, gradient_as_bucket_view=True)
    # The first broadcast is DistributedDataParallel's own: the parameters' shapes, to compare them.
    watched = backend_of(group).recorded()["watched_operations"]
    setup = sum([entry[5] for entry in watched if entry[0] == _BROADCAST][1:])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    sizes: list[tuple[int, ...]] = []
    began = time.monotonic()
    for step in range(STEPS):
        batch = varied(plan, inputs, step)
        sizes.append(tuple(batch[0].shape[:2]))
        optimizer.zero_grad()
        loss_fn(module(*batch), *batch).backward()
        optimizer.step()
    taken_s = (time.monotonic() - began) / STEPS
    recorded = rdmatensor.plan.recorded(group)
    assert recorded is not None
    found = {
        "planned": sent(plan, is_setup=False),
        "recorded": sent(recorded, is_setup=False),
        "planned_setup": sum(size for _, _, size in sent(plan, is_setup=True)),
        "recorded_setup": setup,
        "planned_buckets": len([b for b in plan.buckets if b.operation == "all_reduce"]),
        "buckets": len([b for b in recorded.buckets if b.operation == "all_reduce"]),
        "described": backend_of(group).recorded()["state"],
        "step_s": taken_s,
        "sizes": sizes,
        "symbols": [symbol.name for symbol in plan.symbols if symbol.dim is not None],
        "kinds": sorted({tensor.kind for tensor in plan.tensors if tensor.symbols}),
    }
    dist.destroy_process_group(group)
    return found


def varied(
    plan: TransferPlan, inputs: tuple[torch.Tensor, ...], step: int
) -> tuple[torch.Tensor, ...]:
    """Return a batch; where the plan leaves its size open, one of another size in each step."""
    if not any(symbol.dim is not None for symbol in plan.symbols):
        return inputs
    tokens = inputs[0]
    of_step = torch.Generator().manual_seed(step)
    return (torch.randint(0, int(tokens.max()) + 1, _SIZES[step], generator=of_step),)


def sent(plan: TransferPlan, *, is_setup: bool) -> list[tuple[str, str, int]]:
    """Return operation, tensor and bytes of what crosses in a step, or at set-up."""
    sizes = {tensor.name: tensor.size_bytes for tensor in plan.tensors}
    return sorted(
        (c.operation, c.tensor, cast("int", sizes[c.tensor]))
        for c in plan.crossings
        if (c.phase == "setup") == is_setup
    )
