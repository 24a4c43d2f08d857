"""Pipelines of torch over this backend and over Gloo, and what a step of theirs costs."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from roles_counts import witnessed
from torch import nn
from torch.distributed import pipelining

import rdmatensor.distributed
import rdmatensor.torch
from rdmatensor._torch.pipeline import stage_buffers

TIMEOUT = timedelta(seconds=60)
WIDTH = 512
ROWS = 64  # of a micro-batch: 128 KiB, more than goes eagerly
MICRO_BATCHES = 4
WARM = 4  # what repeats is seen in the second step, and told in full by the end of the third
STEPS = 5
CPU = torch.device("cpu")


def stage_net(number: int) -> nn.Module:
    torch.manual_seed(30 + number)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())


def schedule_of(
    name: str, rank: int, world: int, group: Any, module: nn.Module | None = None
) -> tuple[Any, nn.Module]:
    """Make this rank's stage, of a module that is there already if one is given."""
    module = stage_net(rank) if module is None else module
    stage = pipelining.PipelineStage(module, rank, world, CPU, group=group)
    kind = getattr(pipelining, f"Schedule{name}")
    return kind(stage, MICRO_BATCHES, loss_fn=nn.functional.mse_loss), module


def train(
    schedule: Any, module: nn.Module, rank: int, world: int, steps: range, rows: int = ROWS
) -> list[dict[str, Any]]:
    """Return, per step, the losses and the gradients. rows: of a micro-batch."""
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    found = []
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        x = torch.randn(MICRO_BATCHES * rows, WIDTH, generator=generator)
        losses: list[torch.Tensor] = []
        target = {"target": x.square(), "losses": losses} if rank == world - 1 else {}
        schedule.step(*([x] if rank == 0 else []), **target)
        found.append(
            {
                "losses": [loss.detach() for loss in losses],
                "gradients": [p.grad.clone() for p in module.parameters() if p.grad is not None],
            }
        )
        optimizer.step()
        optimizer.zero_grad()
    return found


def is_same(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> bool:
    pairs = [
        (a, b)
        for mine, other in zip(ours, theirs, strict=True)
        for name in mine
        for a, b in zip(mine[name], other[name], strict=True)
    ]
    return len(pairs) > 0 and all(torch.equal(a, b) for a, b in pairs)


def trains(rank: int, world: int, *, name: str) -> dict[str, Any]:
    torch.set_num_threads(1)
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    gloo = dist.new_group(backend="gloo", timeout=TIMEOUT)
    dist.barrier(group=gloo)
    found: dict[str, Any] = {"bytes": ROWS * WIDTH * 4}
    schedule, module = schedule_of(name, rank, world, None)
    ours = train(schedule, module, rank, world, range(WARM))
    with witnessed(found, gloo):
        ours += train(schedule, module, rank, world, range(WARM, WARM + STEPS))
    counters = rdmatensor.default_context().counters()
    found["verified_bytes"] = counters.verified_bytes
    found["adopted"] = rdmatensor.distributed.describe()["adopted"]
    schedule, module = schedule_of(name, rank, world, gloo)
    theirs = train(schedule, module, rank, world, range(WARM + STEPS))
    found["is_same"] = is_same(ours, theirs)
    found["gradients"] = sum(len(step["gradients"]) for step in ours)
    dist.barrier(group=gloo)
    dist.destroy_process_group()
    return found


def a_stage_is_killed(rank: int, world: int, *, name: str, victim: int) -> dict[str, Any]:
    """The victim dies in the middle of a step, long after all places were told."""
    torch.set_num_threads(1)
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    schedule, module = schedule_of(name, rank, world, None)
    train(schedule, module, rank, world, range(WARM))
    if rank == victim:
        calls = []

        def die(*_: object) -> None:
            calls.append(1)
            if len(calls) == MICRO_BATCHES + 2:
                os.kill(os.getpid(), signal.SIGKILL)

        module.register_forward_pre_hook(die)
    try:
        train(schedule, module, rank, world, range(WARM, WARM + STEPS))
    except RuntimeError as error:
        return {"error": str(error)}
    return {"error": ""}


def watch_sends(stage: Any) -> list[bool]:
    """Return what grows by whether it is in the arena for each tensor that the stage sends."""
    places: list[bool] = []

    def watched(operations: Callable[[int], list[Any]]) -> Callable[[int], list[Any]]:
        def of_chunk(chunk: int) -> list[Any]:
            made = operations(chunk)
            places.extend(rdmatensor.torch.is_in_arena(operation.tensor) for operation in made)
            return made

        return of_chunk

    for name in ("get_fwd_send_ops", "get_bwd_send_ops"):
        setattr(stage, name, watched(getattr(stage, name)))
    return places


def sends_from_the_arena(rank: int, world: int, *, name: str) -> dict[str, Any]:
    """As over devices, which are made believe: where the tensors are that each step sends."""
    torch.set_num_threads(1)
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    gloo = dist.new_group(backend="gloo", timeout=TIMEOUT)
    stage_buffers.StageBuffers._has_devices = lambda _self: True  # type: ignore[method-assign]
    schedule, module = schedule_of(name, rank, world, None)
    places = watch_sends(schedule._stage)
    found: dict[str, Any] = {"places": []}
    ours: list[dict[str, Any]] = []
    for step in range(STEPS):
        ours += train(schedule, module, rank, world, range(step, step + 1))
        found["places"].append([places.pop(0) for _ in range(len(places))])
    found["adopted"] = rdmatensor.distributed.describe()["adopted"]
    schedule, module = schedule_of(name, rank, world, gloo)
    found["is_same"] = is_same(ours, train(schedule, module, rank, world, range(STEPS)))
    dist.barrier(group=gloo)
    dist.destroy_process_group()
    return found
