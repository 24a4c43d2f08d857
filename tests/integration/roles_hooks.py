"""DistributedDataParallel with the lossy hooks."""

from __future__ import annotations

import hashlib
from contextlib import nullcontext
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import rdmatensor.hooks

TIMEOUT = timedelta(seconds=60)
WIDTH = 48


def net() -> nn.Sequential:
    torch.manual_seed(7)
    return nn.Sequential(
        nn.Linear(WIDTH, 160), nn.Tanh(), nn.Linear(160, 160), nn.Tanh(), nn.Linear(160, WIDTH)
    )


def data(rank: int, salt: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 * salt + rank)
    return torch.randn(16, WIDTH, generator=generator)


def loss_of(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return nn.functional.mse_loss(model(x), x.square().tanh())


def digest(model: nn.Module) -> str:
    """Return what is the same where all parameters have the same bits."""
    flat = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    return hashlib.sha256(flat.numpy().tobytes()).hexdigest()


HOOKS: dict[str, Any] = {
    "exact": lambda: None,
    "q8": rdmatensor.hooks.q8,
    "q8, no feedback": lambda: rdmatensor.hooks.q8(error_feedback=False),
    "q8 of 32": lambda: rdmatensor.hooks.q8(32),
    "bf16": rdmatensor.hooks.bf16,
}


def training(rank: int, world: int) -> dict[str, Any]:
    """The same steps by each hook: the last losses, and digests of the parameters."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    found: dict[str, Any] = {}
    for name, make in HOOKS.items():
        model = DistributedDataParallel(net(), gradient_as_bucket_view=True, bucket_cap_mb=0.1)
        made = make()
        if made is not None:
            model.register_comm_hook(*made)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
        losses = []
        for step in range(70):
            optimizer.zero_grad()
            loss = loss_of(model, data(rank, step % 10))
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            losses.append(float(loss.detach()))
        found[name] = {
            "loss": sum(losses[-10:]) / 10,
            "first": losses[0],
            "digest": digest(model),
            "report": made[0].describe() if made is not None else None,
        }
    dist.destroy_process_group()
    return found


def gradients(rank: int, _world: int) -> dict[str, float]:
    """Relative errors of gradients where not each backward pass communicates, or reaches all."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    modes: dict[str, dict[str, Any]] = {
        "plain": {},
        "views": {"gradient_as_bucket_view": True},
        "static": {"static_graph": True},
        "unused": {"find_unused_parameters": True},
    }
    errors = {}
    for name, options in modes.items():
        found = []
        for is_lossy in (False, True):
            model: Any = DistributedDataParallel(net(), **options)
            if is_lossy:
                model.register_comm_hook(*rdmatensor.hooks.q8())
            quiet = (1,) if name == "static" else (0, 1)  # a static graph's first step learns it
            for salt in range(3):
                with model.no_sync() if salt in quiet else nullcontext():
                    loss_of(model, data(rank, salt)).backward()  # type: ignore[no-untyped-call]
            found.append(torch.cat([each.grad.flatten() for each in model.parameters()]))
        exact, lossy = found
        errors[name] = float(torch.linalg.vector_norm(lossy - exact) / exact.norm())
    dist.destroy_process_group()
    return errors


def scaled(rank: int, _world: int) -> list[str]:
    """An infinite gradient on one rank: every rank's GradScaler leaves that step out."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    model = DistributedDataParallel(net())
    state, hook = rdmatensor.hooks.q8()
    model.register_comm_hook(state, hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    digests = [digest(model)]
    for step in range(3):
        optimizer.zero_grad()
        loss = loss_of(model, data(rank, step))
        if step == 1 and rank == 0:
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        digests.append(digest(model))
    assert state.describe()["not_finite_blocks"] > 0
    dist.destroy_process_group()
    return digests


def made(weights: torch.Tensor | None = None) -> tuple[Any, Any, Any]:
    """Return a model with its hook's state and its optimizer."""
    torch.manual_seed(1)
    model = DistributedDataParallel(nn.Linear(WIDTH, WIDTH, bias=False))
    if weights is not None:
        with torch.no_grad():
            model.module.weight.copy_(weights)
    state, hook = rdmatensor.hooks.q8(64)
    model.register_comm_hook(state, hook)
    return model, state, torch.optim.SGD(model.parameters(), lr=0.1)


def cut_again(rank: int, _world: int) -> dict[str, Any]:
    """The parameters of a bucket in three steps, and whether its residual was zero before them."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    layers = [nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(2)]
    model = DistributedDataParallel(nn.Sequential(*layers))
    state, hook = rdmatensor.hooks.q8()
    is_zero: list[bool] = []

    def seen(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        known = state._bucket_of(bucket)
        is_zero.append(not known.residual.any())
        found: torch.futures.Future[torch.Tensor] = hook(state, bucket)
        return found

    seen.__annotations__.clear()
    model.register_comm_hook(state, seen)
    parameters = []
    for step in range(3):
        loss_of(model, data(rank, step)).backward()  # type: ignore[no-untyped-call]
        parameters.append(list(state.state_dict()["buckets"][0]["parameters"]))
    dist.destroy_process_group()
    return {"parameters": parameters, "is_zero": is_zero}


def checkpoint(rank: int, _world: int) -> dict[str, Any]:
    """Five steps, or three and two after a checkpoint; then the residuals of another model."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)

    def run(model: Any, optimizer: Any, steps: range) -> str:
        for step in steps:
            optimizer.zero_grad()
            loss_of(model, data(rank, step)).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        return digest(model)

    model, _, optimizer = made()
    whole = run(model, optimizer, range(5))
    model, state, optimizer = made()
    run(model, optimizer, range(3))
    weights, saved = model.module.weight.detach().clone(), state.state_dict()
    found: dict[str, Any] = {"whole": whole}
    model, state, optimizer = made(weights)
    state.load_state_dict(saved)
    found["resumed"] = run(model, optimizer, range(3, 5))
    model, state, optimizer = made(weights)
    found["without residuals"] = run(model, optimizer, range(3, 5))

    other = DistributedDataParallel(nn.Linear(WIDTH, 2 * WIDTH, bias=False))
    state, hook = rdmatensor.hooks.q8()
    other.register_comm_hook(state, hook)
    state.load_state_dict(saved)
    for name, act in {
        "another model": lambda: other(data(rank, 0)).sum().backward(),
        "no state": lambda: state.load_state_dict({"buckets": [1]}),
        "no feedback": lambda: rdmatensor.hooks.q8(error_feedback=False)[0].load_state_dict(saved),
        "doubles": lambda: _double(rank),
    }.items():
        try:
            act()
            found[name] = "no error"
        except (RuntimeError, TypeError, ValueError) as error:
            found[name] = f"{type(error).__name__}: {error}"
    dist.barrier()
    dist.destroy_process_group()
    return found


def _double(rank: int) -> None:
    model = DistributedDataParallel(nn.Linear(WIDTH, 4).double())
    model.register_comm_hook(*rdmatensor.hooks.bf16())
    model(data(rank, 0).double()).sum().backward()
