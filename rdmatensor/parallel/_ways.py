"""What splitting a unit costs apart from its transfers: torch's work around each layer."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from graph_analysis import Cost
from rdmatensor.parallel._ranks import Ranks
from rdmatensor.parallel._split import shard, split_pair
from rdmatensor.parallel._stages import make_schedule, run_schedule
from rdmatensor.parallel._timing import timed

_REPEATS = 9


def way_costs(ranks: Ranks, alphas_ns: dict[str, int]) -> list[Cost]:
    """The fixed time of a step for each pair that is split, and for each sharded unit.

    It is the time of the smallest such unit, without that of the same layers alone and without the
    fixed times of its collectives. That of a stage is the smallest pipeline's, for a micro-batch.
    """
    if ranks.size == 1:
        return [Cost(f"{way}.unit_ns", 0) for way in ("column_row", "fsdp", "stage")]
    mesh = DeviceMesh.from_group(ranks.group, "cpu", mesh_dim_names=("ranks",))
    plain, pair, sharded = (_smallest(ranks.size) for _ in range(3))
    split_pair(pair, ("0", "2"), None, mesh)
    shard(sharded, mesh, set(sharded.parameters()))
    steps = [_step(model, ranks.size) for model in (plain, pair, sharded)]
    plain_ns, pair_ns, sharded_ns = (timed(ranks, step, _REPEATS) for step in steps)
    gather, scatter = alphas_ns["all_gather"], alphas_ns["reduce_scatter"]
    found = {
        "column_row": pair_ns - plain_ns - 2 * gather - 2 * scatter,
        "fsdp": sharded_ns - plain_ns - 2 * gather - scatter,
        "stage": _pipeline_ns(ranks) - 2 * (ranks.size - 1) * alphas_ns["send"],
    }
    return [Cost(f"{way}.unit_ns", max(0, ns)) for way, ns in found.items()]


def _pipeline_ns(ranks: Ranks) -> int:
    schedule = make_schedule(nn.Linear(1, 1), 1, nn.functional.mse_loss, ranks)
    one = torch.ones(1, 1)
    return timed(ranks, lambda: run_schedule(schedule, one, one, ranks), _REPEATS)


def _smallest(world: int) -> nn.Module:
    return nn.Sequential(nn.Linear(world, world), nn.ReLU(), nn.Linear(world, world))


def _step(model: nn.Module, width: int) -> Callable[[], None]:
    x = torch.ones(1, width, requires_grad=True)

    def step() -> None:
        model.zero_grad()
        torch.autograd.backward(model(x).sum())

    return step
