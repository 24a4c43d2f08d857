"""DistributedDataParallel: hooks, uneven inputs, steps without communication, averaging."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from oracle import Results, Turn
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import (
    default_hooks,
    post_localSGD_hook,
    powerSGD_hook,
)
from torch.distributed.algorithms.join import Join
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import PostLocalSGDOptimizer
from torch.nn.parallel import DistributedDataParallel

import rdmatensor

STEPS = 5
WIDTH = 12


def net() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Linear(WIDTH, 48),
        nn.BatchNorm1d(48),
        nn.Tanh(),
        nn.Linear(48, 48, bias=False),
        nn.Tanh(),
        nn.Linear(48, WIDTH),
    )


def loss_of(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return nn.functional.mse_loss(model(x), x.square())


def state_of(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def steps(turn: Turn, model: nn.Module, optimizer: Any, count: int = STEPS) -> list[float]:
    """Train on this rank's data; return its losses."""
    losses = []
    for step in range(count):
        optimizer.zero_grad()
        loss = loss_of(model, turn.data(8, WIDTH, salt=step))
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def hooks(group: Any) -> dict[str, tuple[Any, Callable[..., Any]]]:
    def low_rank(**options: Any) -> powerSGD_hook.PowerSGDState:
        return powerSGD_hook.PowerSGDState(
            group, start_powerSGD_iter=2, min_compression_rate=0.5, **options
        )

    low = powerSGD_hook.powerSGD_hook
    return {
        "allreduce": (group, default_hooks.allreduce_hook),
        "fp16": (group, default_hooks.fp16_compress_hook),
        "bf16": (group, rdmatensor.distributed.bf16_hook),
        "powerSGD": (low_rank(), low),
        "powerSGD, cold": (low_rank(warm_start=False, use_error_feedback=False), low),
        # Half precision's small numbers: without the addend it divides by zero.
        "powerSGD, fp16": (
            low_rank(orthogonalization_epsilon=1e-2),
            default_hooks.fp16_compress_wrapper(low),
        ),
        "powerSGD, bf16": (low_rank(), rdmatensor.distributed.bf16_wrapper(low)),
    }


def comm_hooks(turn: Turn) -> Results:
    results = {}
    for name, (state, hook) in hooks(dist.group.WORLD).items():
        # PowerSGD wants buckets that do not change after the first steps: see its documentation.
        model = DistributedDataParallel(net(), bucket_cap_mb=1)
        model.register_comm_hook(state, hook)
        losses = steps(turn, model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9))
        results[name] = {"losses": losses, **state_of(model)}
    return results


def uneven_inputs(turn: Turn) -> Results:
    """Rank 0 has three inputs, each later rank two more; Join lets all take part to the end."""
    results = {}
    for name, options in {
        "last": {},
        "divided by all": {"divide_by_initial_world_size": True},
    }.items():
        model = DistributedDataParallel(net())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        with Join([model], **options):
            losses = steps(turn, model, optimizer, 3 + 2 * turn.rank)
        results[name] = {"losses": losses, **state_of(model)}
    model = DistributedDataParallel(net())
    try:
        with Join([model], throw_on_early_termination=True):
            steps(turn, model, torch.optim.SGD(model.parameters(), lr=0.05), 3 + 2 * turn.rank)
    except RuntimeError as error:
        results["thrown"] = {"error": str(error).splitlines()[0]}
    return results


def no_sync(turn: Turn) -> Results:
    """Gradients added up over three steps, of which not all communicate, in all four modes."""
    modes: dict[str, dict[str, Any]] = {
        "plain": {},
        "views": {"gradient_as_bucket_view": True},
        "static": {"static_graph": True},
        "unused": {"find_unused_parameters": True},
    }
    results = {}
    for name, options in modes.items():
        model = DistributedDataParallel(net(), **options)
        # The first step of a static graph learns it, and has to communicate.
        quiet_steps = (1,) if name == "static" else (0, 1)
        for salt in range(3):
            with model.no_sync() if salt in quiet_steps else nullcontext():
                loss_of(model, turn.data(8, WIDTH, salt=salt)).backward()
        results[name] = {
            key: parameter.grad.clone()
            for key, parameter in model.named_parameters()
            if parameter.grad is not None
        }
    return results


def post_local_sgd(turn: Turn) -> Results:
    """After two steps each rank goes its own way, and the parameters are averaged."""
    alone, _ = dist.new_subgroups(1)
    results = {}
    for name, group in {"alone": alone, "together": dist.group.WORLD}.items():
        state = post_localSGD_hook.PostLocalSGDState(
            process_group=None, subgroup=group, start_localSGD_iter=2
        )
        model = DistributedDataParallel(net())
        model.register_comm_hook(state, post_localSGD_hook.post_localSGD_hook)
        optimizer = PostLocalSGDOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
            PeriodicModelAverager(period=2, warmup_steps=2),
        )
        results[name] = {"losses": steps(turn, model, optimizer, 6), **state_of(model)}
    return results


def model_averaging(turn: Turn) -> Results:
    """No gradient is ever sent; the parameters are averaged every third step."""
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    averager = PeriodicModelAverager(period=3)
    losses = []
    for step in range(7):
        losses += steps(turn, model, optimizer, 1)
        averager.average_parameters(model.parameters())
        losses.append(float(model(turn.data(8, WIDTH, salt=step)).sum().detach()))
    return {"losses": losses, **state_of(model)}
