"""Planned models whose buckets travel by lossy wires, and FSDP2 with a lossy reduce_scatter."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from roles_hooks import TIMEOUT, WIDTH, data, digest, loss_of, net
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import rdmatensor.plan
from graph_analysis import DataParallel, analyze
from rdmatensor import compress

STEPS = 40


class Wide(nn.Module):
    """Buckets of more than 256 KiB, and of less."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first, self.last = nn.Linear(WIDTH, 2000), nn.Linear(2000, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.last(self.first(x).tanh())
        return found


def train(planned: Any, optimizer: Any, rank: int, steps: range) -> float:
    losses = []
    for step in steps:
        optimizer.zero_grad()
        loss = loss_of(planned, data(rank, step % 10))
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(float(loss.detach()))
    return sum(losses[-10:]) / len(losses[-10:])


def made(world: int, **options: Any) -> tuple[Any, Any]:
    model = Wide()
    plan = analyze(model, (torch.ones(16, WIDTH),), strategy=DataParallel(world))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    return rdmatensor.plan.apply(model, plan, optimizer, **options), optimizer


def planned(rank: int, world: int) -> dict[str, Any]:
    """The same steps by each wire; then by residuals of a checkpoint."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    found: dict[str, Any] = {}
    for wire in ("exact", "bf16", "q8", "auto"):
        model, optimizer = made(world, wire=wire, allow=("q8",))
        loss = train(model, optimizer, rank, range(STEPS))
        wires = model.describe()["wires"]
        found[wire] = {"loss": loss, "digest": digest(model.module), "wires": wires}
        if wire == "q8":
            weights, saved = model.module.state_dict(), model.wire_state()
            weights = {name: value.clone() for name, value in weights.items()}
            train(model, optimizer, rank, range(5))
            found["went on"] = digest(model.module)
        model.close()
    for name, state in {"resumed": saved, "from zero": {"residuals": []}}.items():
        model, optimizer = made(world, wire="q8")
        model.module.load_state_dict(weights)
        try:
            model.load_wire_state(state)
        except ValueError as error:
            found["refused"] = str(error)
        train(model, optimizer, rank, range(5))
        found[name] = digest(model.module)
        model.close()
    try:
        made(world, wire="q8" if rank == 0 else "bf16")
    except rdmatensor.plan.PlanMismatchError as error:
        found["mismatch"] = str(error)
    dist.destroy_process_group()
    return found


def sharded(rank: int, world: int) -> dict[str, Any]:
    """FSDP2: exact, and by each wire."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    mesh = init_device_mesh("cpu", (world,))
    found: dict[str, Any] = {}
    for wire in ("exact", "bf16", "q8"):
        model: Any = net()
        fully_shard(model, mesh=mesh)
        model.set_custom_reduce_scatter(compress.ReduceScatter(wire))  # type: ignore[arg-type]
        optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
        found[wire] = train(model, optimizer, rank, range(STEPS))
    dist.destroy_process_group()
    return found
