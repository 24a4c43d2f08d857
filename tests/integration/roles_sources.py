"""The plan of the graph, and what is recorded when it runs, where no gradient is summed."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, cast

import roles_pipeline
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

import rdmatensor.plan
from graph_analysis import GraphCollectives, Pipeline, TransferPlan, analyze, merge_plans

TIMEOUT = timedelta(seconds=60)
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
    recorded = rdmatensor.plan.recorded()
    assert recorded is not None
    merged = merge_plans(plan, recorded)
    found = {
        "planned": sums(plan),
        "recorded": sums(recorded),
        "fingerprint": plan.fingerprint(),
        "merged": sums(merged),
        "known_from": sorted({crossing.source for crossing in merged.crossings}),
    }
    dist.barrier()
    dist.destroy_process_group()
    return found
