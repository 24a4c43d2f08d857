"""What the recorder makes of the steps of programs, seen from a rank."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import rdmatensor.distributed
import rdmatensor.plan
from graph_analysis import TransferPlan

TIMEOUT = timedelta(seconds=60)


def small_model() -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(
        nn.Linear(16, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 64), nn.Linear(64, 4)
    )


def state_of(group: dist.ProcessGroup | None = None) -> dict[str, Any]:
    """Return describe()'s part on the plan."""
    return cast("dict[str, Any]", rdmatensor.distributed.describe(group)["plan"])


def crossing(plan: TransferPlan | None) -> list[tuple[str, str, int | None]]:
    """Return operation, tensor and bytes of what crosses in a step."""
    if plan is None:
        return []
    sizes = {tensor.name: tensor.size_bytes for tensor in plan.tensors}
    return [(c.operation, c.tensor, sizes[c.tensor]) for c in plan.crossings]


def cases(rank: int, world: int) -> dict[str, Any]:
    """One program after the other in one job, each in a group of its own."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    programs: dict[str, Callable[[int, int], object]] = {
        "early": early,  # before an optimizer steps
        "ddp": ddp,
        "moving": moving,
        "fsdp": sharded,
        "eager": eager,
        "messages": messages,
        "loop": loop,
        "sharded steps": sharded_steps,
        "never": never,
        "changed": changed,
    }
    found: dict[str, object] = {name: run(rank, world) for name, run in programs.items()}
    dist.destroy_process_group()
    return found


def new_group() -> dist.ProcessGroup:
    group = dist.new_group(backend="rdmatensor", timeout=TIMEOUT)
    assert isinstance(group, dist.ProcessGroup)
    return group


def steps_of(
    module: nn.Module, rank: int, group: dist.ProcessGroup, count: int
) -> list[dict[str, Any]]:
    """Train for some steps; what describe() says after each."""
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    said = []
    for step in range(count):
        generator = torch.Generator().manual_seed(10 * step + rank)
        optimizer.zero_grad()
        module(torch.randn(8, 16, generator=generator)).square().mean().backward()
        optimizer.step()
        said.append(state_of(group))
    return said


def ddp(rank: int, _world: int) -> dict[str, Any]:
    group = new_group()
    module = DistributedDataParallel(
        small_model(), process_group=group, gradient_as_bucket_view=True, bucket_cap_mb=0.01
    )
    said = steps_of(module, rank, group, 6)
    plan = rdmatensor.plan.recorded(group)
    assert plan is not None
    buckets = [bucket.tensors for bucket in plan.buckets if bucket.operation == "all_reduce"]
    return {
        "states": [entry["state"] for entry in said],
        "last": said[-1],
        "crossing": crossing(plan),
        "buckets": buckets,
        "source": plan.source,
        "fingerprint": plan.fingerprint(),
        "gradients": {f"{n}.grad": p.nbytes for n, p in module.module.named_parameters()},
        "buffers": {n: b.nbytes for n, b in module.module.named_buffers()},
    }


class Moving(nn.Module):
    """Has a new tensor for its buffer after each forward pass."""

    average: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(16, 4)
        self.register_buffer("average", torch.zeros(4))

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.inner(batch)
        self.average = 0.9 * self.average + out.detach().mean(0)
        return out


def moving(rank: int, _world: int) -> dict[str, Any]:
    group = new_group()
    module = DistributedDataParallel(Moving(), process_group=group)
    said = steps_of(module, rank, group, 6)
    return {"last": said[-1], "crossing": crossing(rdmatensor.plan.recorded(group))}


def early(rank: int, _world: int) -> dict[str, Any]:
    """Only rank 0's sums repeat before training, at one address; then both train, and change."""
    group = new_group()
    tensors = [torch.ones(4) for _ in range(4)]
    for tensor in tensors:
        dist.all_reduce(tensors[0] if rank == 0 else tensor, group=group)
    state = state_of(group)["state"]
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    crossings = []
    for size in (5, 6):
        for _ in range(4):
            dist.all_reduce(torch.ones(size), group=group)
            optimizer.step()
            dist.barrier(group=group)
        crossings.append(crossing(rdmatensor.plan.recorded(group)))
    return {"state": state, "crossings": crossings}


def sharded(rank: int, world: int) -> dict[str, Any]:
    module = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))
    mesh = dist.device_mesh.init_device_mesh("cpu", (world,))
    for layer in (module[0], module[2], module):
        fully_shard(layer, mesh=mesh)
    said = steps_of(module, rank, mesh.get_group(), 5)
    plan = rdmatensor.plan.recorded(mesh.get_group())
    assert plan is not None
    return {"last": said[-1], "crossing": crossing(plan)}


def eager(rank: int, _world: int) -> dict[str, Any]:
    """A loop of one's own around an optimizer."""
    group = new_group()
    model = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        optimizer.zero_grad()
        model(torch.full((2, 8), float(rank))).sum().backward()
        for parameter in model.parameters():
            assert parameter.grad is not None
            dist.all_reduce(parameter.grad, group=group)
        optimizer.step()
    return {"last": state_of(group), "crossing": crossing(rdmatensor.plan.recorded(group))}


def messages(rank: int, world: int) -> dict[str, Any]:
    """A ring of messages, and a sum, in each step."""
    group = new_group()
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    for _ in range(3):
        got, sum_of = torch.zeros(8 + (rank - 1) % world), torch.ones(3)
        ahead = dist.irecv(got, (rank - 1) % world, group=group)
        dist.send(torch.ones(8 + rank), (rank + 1) % world, group=group)
        assert ahead is not None
        ahead.wait()
        dist.all_reduce(sum_of, group=group)
        optimizer.step()
    return {"crossing": crossing(rdmatensor.plan.recorded(group))}


def loop(_rank: int, _world: int) -> dict[str, Any]:
    """A loop without an optimizer, in a process in which others have stepped."""
    group = new_group()
    tensor = torch.ones(2)
    for _ in range(20):
        dist.all_reduce(tensor, group=group)
    return state_of(group)


def sharded_steps(rank: int, world: int) -> dict[str, Any]:
    """Each rank's optimizer has a shard, and steps between the broadcasts of the others' shards.

    The same operations, in which each rank's steps end at other places.
    """
    group = new_group()
    sizes = [3 + 2 * owner for owner in range(world)]
    shards = [torch.zeros(size, requires_grad=True) for size in sizes]
    optimizer = torch.optim.SGD([shards[rank]], lr=0.1)
    flat = torch.empty(sum(sizes))
    for _ in range(20):
        flat.fill_(1.0)
        dist.all_reduce(flat, group=group)
        for shard, gradient in zip(shards, flat.split(sizes), strict=True):
            shard.grad = gradient.clone()
        for owner in range(world):
            if owner == rank:
                optimizer.step()
            dist.broadcast(shards[owner].detach(), owner, group=group)
    try:
        rdmatensor.plan.recorded(group)
    except rdmatensor.plan.PlanMismatchError as error:
        said = str(error)
    else:
        said = "nothing was said"
    return {
        "sums": [float(shard.detach().sum()) for shard in shards],
        "state": state_of(group),
        "said": said,
    }


def never(_rank: int, _world: int) -> dict[str, Any]:
    """A group whose steps are never the same, and one that is not used."""
    group, unused = new_group(), new_group()
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    for step in range(1, 12):
        dist.all_reduce(torch.ones(step), group=group)
        optimizer.step()
    return {
        "state": state_of(group),
        "unused": state_of(unused),
        "plan": crossing(rdmatensor.plan.recorded(group)),
    }


def changed(_rank: int, _world: int) -> list[tuple[str, int, int]]:
    """A step that becomes another one, with a step that sends nothing in between."""
    group = new_group()
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    said = []
    for size in (4, 4, 4, 0, 4, 6, 6, 6):
        if size:
            dist.all_reduce(torch.ones(size), group=group)
        optimizer.step()
        state = state_of(group)
        said.append((state["state"], state["changes"], state.get("bytes", 0)))
    return said


def unmarked(rank: int, world: int) -> dict[str, Any]:
    """A job in which no optimizer steps: equal sizes alone are no step, equal tensors are."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    group = new_group()
    buckets = [torch.ones(4) for _ in range(5)]
    before = [
        state_of(group)["state"] for tensor in buckets if not dist.all_reduce(tensor, group=group)
    ]
    last = torch.ones(3)
    for _ in range(2):
        for tensor in (last, *buckets):
            dist.all_reduce(tensor, group=group)
    dist.all_reduce(last, group=group)
    plan = rdmatensor.plan.recorded(group)
    found = {"before": before, "after": state_of(group), "crossing": crossing(plan)}
    dist.destroy_process_group()
    return found


def switched_off(_rank: int, _world: int) -> dict[str, Any]:
    """Steps that would be found."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    group = new_group()
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    tensor = torch.ones(4)
    for _ in range(4):
        dist.all_reduce(tensor, group=group)
        optimizer.step()
    found = {"state": state_of(group), "plan": crossing(rdmatensor.plan.recorded(group))}
    dist.destroy_process_group()
    return found
