"""Pipelining: each rank has one stage or two, micro-batches go through them in many orders."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from oracle import Results, Turn
from oracle_sharded import Unit
from torch import nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleLoopedBFS,
    SplitPoint,
    pipeline,
)

WIDTH = 12
BATCH = 16
MICRO_BATCHES = 4
CPU = torch.device("cpu")


def stage_net(number: int) -> nn.Module:
    torch.manual_seed(20 + number)
    return nn.Sequential(Unit(WIDTH), nn.Tanh())


def stage_of(turn: Turn, number: int, stages: int, group: Any = None) -> PipelineStage:
    return PipelineStage(stage_net(number), number, stages, CPU, group=group)


def train(
    turn: Turn, schedule: Any, modules: list[nn.Module], is_first: bool, is_last: bool
) -> dict[str, Any]:
    """Three steps. The same inputs are made everywhere; the first and the last stage use them."""
    parameters = [parameter for module in modules for parameter in module.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.05)
    results: dict[str, Any] = {}
    for step in range(3):
        x = turn.data(BATCH, WIDTH, salt=step, rank=0)
        losses: list[torch.Tensor] = []
        target = {"target": x.square(), "losses": losses} if is_last else {}
        output = schedule.step(*([x] if is_first else []), **target)
        optimizer.step()
        optimizer.zero_grad()
        results[f"output {step}"] = output.detach() if is_last else None
        results[f"losses {step}"] = [float(loss.detach()) for loss in losses]
    results["parameters"] = [parameter.detach().clone() for parameter in parameters]
    return results


def schedules_of_one_stage(turn: Turn) -> Results:
    last = turn.world - 1
    results: dict[str, Any] = {}
    for kind in (ScheduleGPipe, Schedule1F1B):
        stage = stage_of(turn, turn.rank, turn.world)
        schedule = kind(stage, MICRO_BATCHES, loss_fn=nn.functional.mse_loss)
        results[kind.__name__] = train(
            turn, schedule, [stage.submod], turn.rank == 0, turn.rank == last
        )
    stage = traced_stage(turn)
    schedule = ScheduleGPipe(stage, MICRO_BATCHES, loss_fn=nn.functional.mse_loss)
    results["traced"] = train(turn, schedule, [stage.submod], turn.rank == 0, turn.rank == last)
    return results


def traced_stage(turn: Turn) -> Any:
    """A whole model, cut where a module begins."""
    model = nn.Sequential(*(stage_net(number) for number in range(turn.world)))
    example = turn.data(BATCH // MICRO_BATCHES, WIDTH, rank=0)
    cuts = {str(number): SplitPoint.BEGINNING for number in range(1, turn.world)}
    pipe = pipeline(model, (example,), split_spec=cuts)
    return pipe.build_stage(turn.rank, CPU, dist.group.WORLD)


def schedules_of_two_stages(turn: Turn) -> Results:
    """Stage s is on rank s modulo the number of ranks."""
    stages = 2 * turn.world
    kinds = (ScheduleInterleaved1F1B, ScheduleLoopedBFS, ScheduleInterleavedZeroBubble)
    results: dict[str, Any] = {}
    for kind in kinds:
        mine = [stage_of(turn, number, stages) for number in (turn.rank, turn.rank + turn.world)]
        schedule = kind(mine, MICRO_BATCHES, loss_fn=nn.functional.mse_loss)
        modules = [stage.submod for stage in mine]
        is_last = turn.rank == turn.world - 1
        results[kind.__name__] = train(turn, schedule, modules, turn.rank == 0, is_last)
    return results
