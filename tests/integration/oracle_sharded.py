"""Parameters spread over the ranks: FSDP1 and FSDP2."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from oracle import Results, Turn
from oracle_ddp import WIDTH, loss_of
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    FullyShardedDataParallel,
    MixedPrecision,
    MixedPrecisionPolicy,
    ShardingStrategy,
    StateDictType,
    fully_shard,
)
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.tensor import DTensor

STEPS = 4


class Unit(nn.Module):
    """A layer with a remainder: its parameters do not divide evenly."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 3 * width + 1)
        self.down = nn.Linear(3 * width + 1, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = x + self.down(torch.tanh(self.up(x)))
        return out


def net() -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(Unit(WIDTH), Unit(WIDTH), nn.Linear(WIDTH, WIDTH))


def train(turn: Turn, model: nn.Module, clip: Callable[[], Any]) -> list[float]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    for step in range(STEPS):
        loss = loss_of(model, turn.data(8, WIDTH, salt=step))
        loss.backward()  # type: ignore[no-untyped-call]
        norm = clip()
        norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
        optimizer.step()
        optimizer.zero_grad()
        losses += [float(loss.detach()), float(norm)]
    return losses


def fsdp1(turn: Turn) -> Results:
    results: dict[str, Any] = {}
    kinds: dict[str, dict[str, Any]] = {
        "full": {},
        "original": {"use_orig_params": True},
        "gradients": {"sharding_strategy": ShardingStrategy.SHARD_GRAD_OP},
        "none": {"sharding_strategy": ShardingStrategy.NO_SHARD},
        "bf16": {"mixed_precision": MixedPrecision(torch.bfloat16, torch.bfloat16)},
    }
    for name, options in kinds.items():
        model = FullyShardedDataParallel(
            net(),
            auto_wrap_policy=ModuleWrapPolicy({Unit}),
            device_id=torch.device("cpu"),
            **options,
        )
        losses = train(turn, model, lambda model=model: model.clip_grad_norm_(0.5))
        with FullyShardedDataParallel.summon_full_params(model):
            whole = {key: value.detach().clone() for key, value in model.named_parameters()}
        results[name] = {"losses": losses, "parameters": whole}
    return results


def fsdp1_state(turn: Turn) -> Results:
    """State dictionaries, full and sharded, and one loaded into another model."""
    model, other = (
        FullyShardedDataParallel(
            net(), auto_wrap_policy=ModuleWrapPolicy({Unit}), device_id=torch.device("cpu")
        )
        for _ in range(2)
    )
    train(turn, model, lambda: model.clip_grad_norm_(0.5))
    results: dict[str, Any] = {}
    for kind in (StateDictType.FULL_STATE_DICT, StateDictType.SHARDED_STATE_DICT):
        with FullyShardedDataParallel.state_dict_type(model, kind):
            state = model.state_dict()
        with FullyShardedDataParallel.state_dict_type(other, kind):
            other.load_state_dict(state)
        results[kind.name] = loss_of(other, turn.data(8, WIDTH, salt=99)).detach()
    return results


def sharded(mesh: Any, has_group_memory: bool, **options: Any) -> nn.Module:
    model = net()
    units: list[Any] = [fully_shard(unit, mesh=mesh, **options) for unit in (*model, model)]
    for unit in units:
        unit.set_allocate_memory_from_process_group_for_comm(has_group_memory)
    return model


def fsdp2(turn: Turn) -> Results:
    """With staging buffers of torch's memory and of the group's, where the backend has some."""
    mesh = init_device_mesh("cpu", (turn.world,))
    is_ours = turn.backend == "rdmatensor"  # Gloo has no memory to give
    kinds: dict[str, dict[str, Any]] = {
        "torch's": {"has_group_memory": False},
        "group's": {"has_group_memory": is_ours},
        "kept": {"has_group_memory": is_ours, "reshard_after_forward": False},
        "bf16": {
            "has_group_memory": is_ours,
            "mp_policy": MixedPrecisionPolicy(torch.bfloat16, torch.float32),
        },
    }
    results: dict[str, Any] = {}
    for name, options in kinds.items():
        model = sharded(mesh, **options)
        clip = lambda model=model: nn.utils.clip_grad_norm_(model.parameters(), 0.5)  # noqa: E731
        results[name] = {"losses": train(turn, model, clip), **whole_of(model)}
    if is_ours:
        check_group_memory()
    return results


def whole_of(model: nn.Module) -> dict[str, torch.Tensor]:
    return {
        name: value.full_tensor() if isinstance(value, DTensor) else value.detach().clone()
        for name, value in model.named_parameters()
    }


def check_group_memory() -> None:
    """Of groups of this process, which have it in common."""
    group: Any = dist.group.WORLD
    stats = group._get_backend(torch.device("cpu")).memory_stats()
    # All but those of the first step, in which every size is new.
    is_reused = stats["slabs_reused"] >= stats["slabs_allocated"] * 3 // 4 > 0
    if not is_reused or stats["slabs_live_bytes"] > 0:
        raise AssertionError(f"memory of the group is not used again, or not given back: {stats}")
