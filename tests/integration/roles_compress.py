"""Ranks that compress one model together; see test_compress.py."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from roles_collectives import TIMEOUT
from torch import nn

import rdmatensor.plan
from graph_analysis import DataParallel, analyze
from rdmatensor import compress
from rdmatensor.errors import PlanMismatchError


def data(rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(100 + rank)
    return torch.randn(64, 16, generator=generator), torch.randn(64, 8, generator=generator)


def net(seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8))


def same_everywhere(values: list[torch.Tensor]) -> bool:
    mine = torch.cat([value.double().flatten() for value in values])
    everyone = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, mine)
    return all(torch.equal(other, mine) for other in everyone)


def agree(rank: int, world: int, kind: str, by: str) -> bool:
    """Each rank has other data; masks, weights and the history are the same on all."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    inputs, wanted = data(rank)
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    trained: Any
    if kind == "ddp":
        trained = nn.parallel.DistributedDataParallel(model)
    else:
        plan = analyze(model, (inputs,), strategy=DataParallel(world))
        trained = rdmatensor.plan.apply(model, plan, optimizer)

    def loss_of(one: nn.Module) -> Any:
        return (one(inputs) - wanted).square().mean()

    def train(one: nn.Module) -> None:
        for _ in range(3):
            optimizer.zero_grad()
            loss_of(one).backward()
            optimizer.step()

    train(trained)
    policy = compress.Policy(
        compress.Prune("*", by=by, block=(1, 4), to=0.6),  # type: ignore[arg-type]
        compress.Quantize("2", points="clustered", bits=4),
        process=compress.Progressive(step=0.3, retrain=train),
    )
    result = compress.run(
        trained,
        policy,
        optimizer,
        evaluate=lambda one: float(loss_of(one).item()),
        score=lambda one: loss_of(one).backward(),
        progress=False,
    )
    losses = torch.tensor([entry.loss for entry in result.history])
    weights = [model[0].weight.detach(), model[2].weight.detach(), losses]
    assert len(result.history) == 3
    assert (model[0].weight == 0).float().mean() >= 0.6
    same = same_everywhere([*result.masks.values(), *weights])
    if kind == "plan":
        trained.close()
    dist.destroy_process_group()
    return same


def differing(rank: int, world: int, what: str) -> str:
    """The last rank has other weights, another rule or another mask; return each rank's error."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    try:
        return error_of(what, is_last=rank == world - 1)
    finally:
        dist.destroy_process_group()


def error_of(what: str, *, is_last: bool) -> str:
    model = net(seed=int(is_last and what == "weights"))
    policy = compress.Policy(compress.Prune("2", to=0.7 if is_last and what == "rule" else 0.5))
    if what == "mask":
        compress.run(model, policy, progress=False)
        if is_last:
            mask = model[2].compressed_weight[0]
            mask.set(mask.alive.flip(0))
    try:
        compress.run(model, policy, progress=False)
    except PlanMismatchError as error:
        return str(error)
    return "nothing was said"
