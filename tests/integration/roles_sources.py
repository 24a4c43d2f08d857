"""The plan of the graph, and what is recorded when it runs, where no gradient is summed."""

from __future__ import annotations

import math
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import roles_pipeline
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import pipelining
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.export import Dim

import rdmatensor.plan
from graph_analysis import GraphCollectives, Pipeline, TransferPlan, analyze

sys.path.insert(0, str(Path(__file__).parent.parent / "graph"))

import zoo.language  # needs the line above

TIMEOUT = timedelta(seconds=60)
MICRO_BATCHES = 2  # of a GPT
STEPS = 4  # two that repeat, and one in which torch's pipeline makes its buffers


def messages(plan: TransferPlan | None) -> list[tuple[int, int, int]]:
    """Return sender, receiver and bytes of each message of a step."""
    assert plan is not None
    sizes = {tensor.name: cast("int", tensor.size_bytes) for tensor in plan.tensors}
    members = {group.name: group.ranks for group in plan.groups}
    found = []
    for crossing in plan.crossings:
        if crossing.operation != "send":
            continue
        assert crossing.root is not None
        (peer,) = (rank for rank in members[crossing.group] if rank != crossing.root)
        found.append((crossing.root, peer, sizes[crossing.tensor]))
    return sorted(found)


def sums(plan: TransferPlan | None) -> list[tuple[str, int]]:
    """Return operation and bytes of each collective of a step."""
    assert plan is not None
    sizes = {tensor.name: cast("int", tensor.size_bytes) for tensor in plan.tensors}
    return sorted((c.operation, sizes[c.tensor]) for c in plan.crossings)


def pipeline(rank: int, world: int, name: str) -> dict[str, Any]:
    """Stages of roles_pipeline; rank 0 plans the whole model, for one micro-batch."""
    torch.set_num_threads(1)
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    planned: list[Any] = [None]
    if rank == 0:
        stages = [roles_pipeline.stage_net(number) for number in range(world)]
        x = torch.randn(roles_pipeline.ROWS, roles_pipeline.WIDTH)
        cuts = tuple(str(number) for number in range(1, world))
        plan = analyze(
            nn.Sequential(*stages),
            (x,),
            loss_fn=lambda out, x: nn.functional.mse_loss(out, x.square()),
            strategy=Pipeline(cuts),
        )
        planned = [messages(plan)]
    dist.broadcast_object_list(planned)
    schedule, module = roles_pipeline.schedule_of(name, rank, world, None)
    roles_pipeline.train(schedule, module, rank, world, range(STEPS))
    recorded = rdmatensor.plan.recorded()
    found = {"planned": planned[0], "recorded": messages(recorded), "all": sums(recorded)}
    dist.barrier()
    dist.destroy_process_group()
    return found


def expected(plan: TransferPlan, sizes: dict[str, int]) -> list[tuple[int, int, int]]:
    """Return what messages() does of a plan of a GPT, for inputs of these sizes."""
    tensors = {tensor.name: tensor for tensor in plan.tensors}
    members = {group.name: group.ranks for group in plan.groups}
    found = []
    for crossing in plan.crossings:
        tensor = tensors[crossing.tensor]
        (peer,) = (rank for rank in members[crossing.group] if rank != crossing.root)
        shape = [sizes[dim] if isinstance(dim, str) else dim for dim in tensor.shape]
        found.append((cast("int", crossing.root), peer, math.prod(shape) * tensor.item_bytes))
    return sorted(found)


def gpt_stage(rank: int) -> nn.Module:
    """A half of a GPT of two blocks; a stage of torch's has one module for all that it does."""
    torch.manual_seed(3)
    whole = zoo.language.Gpt(16, 2, 2)

    class First(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.position = whole.embedding, whole.position
            self.block = whole.blocks[0]

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            places = self.position(torch.arange(tokens.shape[1]))
            return cast("torch.Tensor", self.block(self.embedding(tokens) + places))

    return First() if rank == 0 else nn.Sequential(whole.blocks[1], whole.norm, whole.head)


def gpt_plan(shapes: dict[str, Any]) -> TransferPlan:
    torch.manual_seed(3)
    return analyze(
        zoo.language.Gpt(16, 2, 2),
        (torch.randint(0, 1000, (2, 8)),),
        loss_fn=zoo.language.next_token_loss,
        strategy=Pipeline(("blocks.1",)),
        dynamic_shapes={"tokens": shapes},
    )


def pipeline_of_any_size(rank: int, world: int) -> dict[str, Any]:
    """Micro-batches of several batches and lengths, a schedule for each size."""
    torch.set_num_threads(1)
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    most = {"batch": 8, "length": 32}
    of_kind: list[Any] = [None]
    if rank == 0:
        bounded = {0: Dim("batch", min=2, max=8), 1: Dim("length", min=4, max=32)}
        plans = {
            "bounded": gpt_plan(bounded),
            "dynamic": gpt_plan({0: Dim("batch", min=2), 1: Dim("length", min=4)}),
        }
        of_kind = [plans]
    dist.broadcast_object_list(of_kind)
    found: dict[str, Any] = {"sizes": []}
    for kind, plan in of_kind[0].items():
        sent = {crossing.tensor for crossing in plan.crossings}
        found[kind] = [(t.kind, t.max_bytes) for t in plan.tensors if t.name in sent]
    module = gpt_stage(rank)
    for batch, length in ((2, 8), (5, 6), (most["batch"], most["length"])):
        stage = pipelining.PipelineStage(module, rank, world, torch.device("cpu"))
        schedule = pipelining.ScheduleGPipe(
            stage, MICRO_BATCHES, loss_fn=zoo.language.next_token_loss
        )
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        for _ in range(STEPS):
            tokens = torch.randint(0, 1000, (MICRO_BATCHES * batch, length))
            schedule.step(*([tokens] if rank == 0 else []), target=tokens if rank == 1 else None)
            optimizer.step()
            optimizer.zero_grad()
        sizes = {"batch": batch, "length": length}
        recorded = rdmatensor.plan.recorded()
        found["sizes"].append(
            {
                "recorded": messages(recorded),
                "all": len(sums(recorded)),
                **{kind: expected(plan, sizes) for kind, plan in of_kind[0].items()},
            }
        )
    dist.barrier()
    dist.destroy_process_group()
    return found


def tensor_parallel(_rank: int, world: int) -> dict[str, Any]:
    """Two layers cut the one along its columns, the other along its rows."""
    torch.set_num_threads(1)
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    torch.manual_seed(3)
    model = nn.Sequential(
        nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 16), nn.Linear(16, 64), nn.Linear(64, 16)
    )
    how = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    how |= {"3": ColwiseParallel(), "4": RowwiseParallel()}
    parallelize_module(model, init_device_mesh("cpu", (world,)), how)
    x = torch.randn(8, 16)
    plan = analyze(model, (x,), strategy=GraphCollectives(world))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
    found = {
        "planned": sums(plan),
        "recorded": sums(rdmatensor.plan.recorded()),
        "fingerprint": plan.fingerprint(),
    }
    dist.barrier()
    dist.destroy_process_group()
    return found
