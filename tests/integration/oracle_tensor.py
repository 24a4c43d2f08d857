"""DTensor: redistribution, operations that communicate, tensor-parallel modules."""

from __future__ import annotations

import itertools
from typing import Any

import torch
import torch.distributed._functional_collectives as functional
from oracle import Results, Turn
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Placement,
    Replicate,
    Shard,
    distribute_tensor,
)
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)

WIDTH = 16


def placed(turn: Turn, mesh: DeviceMesh, placement: Placement, *shape: int) -> DTensor:
    """Place a tensor; one with Partial is a sum, or what it says, of parts that all ranks have."""
    if isinstance(placement, Partial):
        return DTensor.from_local(turn.data(*shape), mesh, [placement])
    return distribute_tensor(turn.data(*shape, rank=0), mesh, [placement])


def redistribution(turn: Turn) -> Results:
    """From every placement to every other, of even and uneven tensors, and back by autograd."""
    mesh = init_device_mesh("cpu", (turn.world,))
    sources = [Replicate(), Shard(0), Shard(1), Partial(), Partial("max"), Partial("avg")]
    targets = [Replicate(), Shard(0), Shard(1)]
    results: dict[str, Any] = {}
    for shape, source, target in itertools.product([(4, 6), (5, 3)], sources, targets):
        tensor = placed(turn, mesh, source, *shape)
        moved = tensor.redistribute(mesh, [target])
        results[f"{shape} {source} {target}"] = [moved.to_local().clone(), moved.full_tensor()]
    by_rows = placed(turn, mesh, Shard(0), 4, 6)
    results["exchanged"] = exchanged(turn, by_rows)
    leaf = placed(turn, mesh, Shard(0), 4, 6).requires_grad_()
    leaf.redistribute(mesh, [Shard(1)]).to_local().square().sum().backward()
    assert isinstance(leaf.grad, DTensor)
    return {**results, "gradient": leaf.grad.to_local()}


def exchanged(turn: Turn, by_rows: DTensor) -> torch.Tensor:
    """From rows to columns. DTensor gathers for that, on the CPU; here it need not."""
    mesh = by_rows.device_mesh
    if turn.backend == "gloo":
        return by_rows.redistribute(mesh, [Shard(1)]).to_local()
    part = by_rows.to_local()
    moved = torch.ops._dtensor.shard_dim_alltoall(part, 0, 1, mesh.get_group().group_name)
    return functional.wait_tensor(moved)


def operations(turn: Turn) -> Results:
    mesh = init_device_mesh("cpu", (turn.world,))
    rows, columns = (placed(turn, mesh, Shard(dim), 8, 8) for dim in (0, 1))
    operations = {
        "sum": rows.sum(),
        "mean": columns.mean(1),
        "product": columns @ rows,
        "softmax": torch.softmax(columns, 1),
        "norm": torch.linalg.vector_norm(rows),
        "max": rows.amax(0),
        "added": rows + columns,
        "everywhere": placed(turn, mesh, Replicate(), 8, 8) @ rows,
    }
    return {
        name: result.full_tensor()
        for name, result in operations.items()
        if isinstance(result, DTensor)
    }


class Feed(nn.Module):
    """Two layers, the first to be split by columns, the second by rows."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.down(torch.relu(self.up(self.norm(x))))
        return out


def net() -> nn.Module:
    torch.manual_seed(8)
    return nn.Sequential(nn.Embedding(32, WIDTH), Feed(), nn.Linear(WIDTH, 32))


def train(model: nn.Module, tokens: torch.Tensor) -> dict[str, Any]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, foreach=False)
    losses = []
    for _ in range(3):
        with loss_parallel():
            logits = model(tokens)
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens.roll(1, 1).flatten())
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        whole = loss.full_tensor() if isinstance(loss, DTensor) else loss
        losses.append(float(whole.detach()))
    parameters = {
        name: value.full_tensor() if isinstance(value, DTensor) else value.detach().clone()
        for name, value in model.named_parameters()
    }
    return {"losses": losses, **parameters}


def tokens_of_all() -> torch.Tensor:
    return torch.randint(0, 32, (4, 8), generator=torch.Generator().manual_seed(2))


def parallelized_module(turn: Turn) -> Results:
    mesh = init_device_mesh("cpu", (turn.world,))
    plan = {
        "0": RowwiseParallel(input_layouts=Replicate()),
        "1.up": ColwiseParallel(),
        "1.down": RowwiseParallel(),
        "2": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False),
    }
    return train(parallelize_module(net(), mesh, plan), tokens_of_all())


def sequence_parallel(turn: Turn) -> Results:
    """Between the layers each rank has a part of the sequence."""
    mesh = init_device_mesh("cpu", (turn.world,))
    plan = {
        "0": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "1": PrepareModuleOutput(output_layouts=Shard(1), desired_output_layouts=Shard(1)),
        "1.norm": SequenceParallel(),
        "1.up": ColwiseParallel(input_layouts=Shard(1)),
        "1.down": RowwiseParallel(output_layouts=Shard(1)),
        "2": ColwiseParallel(
            input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False
        ),
    }
    return train(parallelize_module(net(), mesh, plan), tokens_of_all())
