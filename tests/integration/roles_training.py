"""Training steps over the backend, with Gloo as the oracle."""

from __future__ import annotations

import gc
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import holdings
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

TIMEOUT = timedelta(seconds=60)


class Squares(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """x and x squared; each item is made by torch, in the worker."""

    def __len__(self) -> int:
        return 192

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.randn(8, generator=torch.Generator().manual_seed(index))
        return x, x.square()


def model() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 8)
    )


def losses_of(
    group: dist.ProcessGroup | None,
    *,
    hook: str = "none",
    workers: int = 0,
    epochs: int = 2,
    **modes: Any,
) -> list[float]:
    bare = model()
    wrapped = DistributedDataParallel(bare, process_group=group, **modes)
    register(wrapped, group, hook)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.05, momentum=0.9)
    data = Squares()
    sampler: DistributedSampler[Any] = DistributedSampler(data, seed=1, drop_last=True)
    loader: DataLoader[Any] = DataLoader(
        data,
        batch_size=16,
        sampler=sampler,
        num_workers=workers,
        persistent_workers=workers > 0,
        multiprocessing_context="fork" if workers else None,
    )
    losses = []
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(wrapped(x), y)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            mean = loss.detach().double()
            dist.all_reduce(mean, group=group)
            losses.append(float(mean))
    return losses


def register(wrapped: DistributedDataParallel, group: Any, hook: str) -> None:
    hooks: dict[str, Callable[..., Any]] = {
        "fp16": default_hooks.fp16_compress_hook,
    }
    if hook == "powerSGD":
        state = powerSGD_hook.PowerSGDState(group, start_powerSGD_iter=2, use_error_feedback=True)
        wrapped.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    elif hook != "none":
        wrapped.register_comm_hook(group, hooks[hook])


MODES: dict[str, dict[str, Any]] = {
    "plain": {},
    "bucket views": {"gradient_as_bucket_view": True, "bucket_cap_mb": 0.01},
    "static graph": {"static_graph": True},
    "unused parameters": {"find_unused_parameters": True},
    "fp16": {"hook": "fp16"},
    "powerSGD": {"hook": "powerSGD"},
    "workers": {"workers": 2, "epochs": 3},
}


OF_GLOO = ("sockets", "events")  # has them too, and ends them when it likes


def train(rank: int, world: int) -> dict[str, Any]:
    """Train in each mode, over both; return the losses, and what is left of ours in the end."""
    before = {name: had for name, had in holdings.count().items() if name not in OF_GLOO}
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    gloo = dist.new_group(backend="gloo", timeout=TIMEOUT)
    losses = {
        name: {"ours": losses_of(None, **modes), "gloo": losses_of(gloo, **modes)}
        for name, modes in MODES.items()
    }
    dist.barrier()
    gc.collect()  # DDP has to go before Gloo's group: roles_adopt.buckets()
    dist.destroy_process_group()
    return {"losses": losses, "left": holdings.left(before)}
