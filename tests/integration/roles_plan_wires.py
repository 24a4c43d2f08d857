"""Planned models whose buckets travel by lossy wires, and FSDP2 with a lossy reduce_scatter."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from roles_hooks import TIMEOUT, WIDTH, data, digest, loss_of, net
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import rdmatensor._plan.layout
import rdmatensor.plan
from graph_analysis import DataParallel, Mask, analyze
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
    none: dict[str, Any] = {"plan": saved["plan"], "residuals": []}
    for name, state in {"resumed": saved, "from zero": none}.items():
        model, optimizer = made(world, wire="q8")
        model.module.load_state_dict(weights)
        try:
            model.load_wire_state(state)
        except ValueError as error:
            found["refused"] = str(error)
        train(model, optimizer, rank, range(5))
        found[name] = digest(model.module)
        try:
            model.load_wire_state({**saved, "plan": "of other masks"})
        except ValueError as error:
            found["other masks"] = str(error)
        model.close()
    try:
        made(world, wire="q8" if rank == 0 else "bf16")
    except rdmatensor.plan.PlanMismatchError as error:
        found["mismatch"] = str(error)
    dist.destroy_process_group()
    return found


class Odd(nn.Module):
    """Gradients whose sizes are no multiple of 64 bytes."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first, self.last = nn.Linear(7, 401), nn.Linear(401, 301)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.last(self.first(x).tanh())
        return found


def odd(world: int, **options: Any) -> Any:
    model = Odd()
    plan = analyze(model, (torch.ones(4, 7),), strategy=DataParallel(world))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return rdmatensor.plan.apply(model, plan, optimizer, **options)


MASK = {"first.weight": Mask((1, 1), tuple(range(0, 2807, 3)))}


def overflow(rank: int, world: int) -> dict[str, list[bool]]:
    """Whether all gradients of three steps are finite; one rank's first ones are infinite."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    found = {}
    for name in ("q8", "q8 kept", "q8 thin", "bf16", "auto"):
        model = odd(world, wire=name.split()[0], allow=("q8",))
        if name == "q8 thin":
            model.thin(MASK)
        finite, kept = [], []
        for step in range(3):
            model.zero_grad()
            loss = model(torch.ones(4, 7)).square().mean()
            (loss * float("inf") if step == rank == 0 else loss).backward()
            finite.append(all(bool(one.grad.isfinite().all()) for one in model.parameters()))
            if name == "q8 kept":  # so that a copy of the bucket is sent
                kept += [one.grad for one in model.parameters()]
        found[name] = finite
        model.close()
    dist.destroy_process_group()
    return found


def unknown(rank: int, world: int) -> str:
    """One rank names a wire that does not exist."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    try:
        odd(world, wire="q9" if rank == 0 else "q8")
    except (RuntimeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    finally:
        dist.destroy_process_group()
    return "no error"


def no_places(rank: int, world: int) -> dict[str, Any]:
    """One rank lacks the memory for the places of a thin plan."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    model = odd(world)
    layout: Any = rdmatensor._plan.layout
    real = layout.GradientMemory

    def full(*_: object) -> None:
        raise MemoryError("no memory")

    if rank == 0:
        layout.GradientMemory = full
    model.thin(MASK)
    raised = []
    for call in (model, model, model.module):
        try:
            call(torch.ones(4, 7))
            raised.append("no error")
        except (MemoryError, RuntimeError) as error:
            raised.append(f"{type(error).__name__}: {error}")
        layout.GradientMemory = real
    with torch.no_grad():
        evaluates = model(torch.ones(4, 7)).isfinite().all().item()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    again: Any = rdmatensor.plan.apply(model, model.plan, optimizer)
    again(torch.ones(4, 7)).sum().backward()
    dist.destroy_process_group()
    return {"raised": raised, "evaluates": evaluates, "applied again": again.describe()["steps"]}


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
