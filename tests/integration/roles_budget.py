"""Ranks that share a budget of memory, lend and borrow; see test_budget_ranks.py."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from roles_collectives import TIMEOUT
from torch import nn

from rdmatensor import budget
from rdmatensor.errors import InvalidArgumentError, PlanMismatchError

WIDTH, ROWS = 128, 1024


def net(depth: int = 6, width: int = WIDTH) -> Any:
    torch.manual_seed(0)
    blocks = [
        nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Dropout(0.1)) for _ in range(depth)
    ]
    return nn.Sequential(*blocks)


def inputs(rank: int, rows: int = ROWS) -> tuple[torch.Tensor]:
    generator = torch.Generator().manual_seed(100 + rank)
    return (torch.randn(rows, WIDTH, generator=generator),)


def squares(output: torch.Tensor, *_: object) -> torch.Tensor:
    return output.square().mean()


def gradients(model: Any, given: tuple[torch.Tensor]) -> list[torch.Tensor]:
    model.zero_grad()
    torch.manual_seed(7)
    squares(model(*given)).backward()
    return [one.grad.clone() for one in model.parameters()]


def agree(rank: int, world: int) -> list[object]:
    """Rank 1 has more rows: its peak counts, and all ranks choose alike."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    model, given = net(), inputs(rank, ROWS * (2 if rank == 1 else 1))
    whole = budget.fit(model, given, "1GiB", loss_fn=squares)
    alone = budget.fit(
        model,
        given,
        "1GiB",
        loss_fn=squares,
        group=dist.new_group([rank], use_local_synchronization=True),
    )
    chosen = budget.fit(model, given, (whole.least_bytes + whole.peak_bytes) // 2, loss_fn=squares)
    wanted = gradients(model, given)
    plain = nn.parallel.DistributedDataParallel(model)
    with chosen.apply(model):
        same = all(map(torch.equal, gradients(model, given), wanted))
        summed = gradients(plain, given)
    again = gradients(plain, given)
    dist.destroy_process_group()
    return [
        chosen.fingerprint(),
        sum(one.way == "recompute" for one in chosen.units),
        same and all(map(torch.equal, summed, again)),
        whole.peak_bytes,
        alone.peak_bytes,
    ]


def differing(rank: int, world: int, what: str) -> str:
    """What the last rank does otherwise is named on all ranks."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    is_last = rank == world - 1
    model = net(7 if is_last and what == "model" else 6)
    size = "1GiB" if is_last and what == "budget" else "2GiB"
    tiers: tuple[str, ...] = ("disk",) if is_last and what == "tier" else ("recompute",)
    try:
        budget.fit(model, inputs(rank), size, loss_fn=squares, tiers=tiers)
    except (PlanMismatchError, InvalidArgumentError) as error:
        said = str(error)
    dist.destroy_process_group()
    return said
