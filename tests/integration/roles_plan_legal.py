"""What programs of torch do, and a plan has to bear."""

from __future__ import annotations

import copy
import gc
import multiprocessing
import os
import time
from typing import Any

import torch
import torch.distributed as dist
from roles_plan_safe import TIMEOUT
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import rdmatensor
import rdmatensor.plan
from graph_analysis import DataParallel, analyze

STEPS = 4


def applied(
    model: nn.Module, example: Any, optimizer: torch.optim.Optimizer, of: nn.Module | None = None
) -> rdmatensor.plan.PlannedModel:
    """Plan `of`, or a copy of the model, and apply that to the model."""
    planned = copy.deepcopy(model) if of is None else of
    plan = analyze(planned, example, strategy=DataParallel(dist.get_world_size()))
    return rdmatensor.plan.apply(model, plan, optimizer)


def _networks() -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    generator = nn.Sequential(nn.Linear(4, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 8))
    judge = nn.Sequential(nn.Linear(8, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 1))
    return generator, judge


def _batch(rank: int, step: int, width: int) -> torch.Tensor:
    return torch.randn(5, width, generator=torch.Generator().manual_seed(100 * step + rank))


def _adversarial(
    parts: tuple[Any, Any], inner: nn.Module, optimizers: Any, rank: int, is_bare: bool
) -> None:
    generator, judge = parts
    of_generator, of_judge = optimizers
    for step in range(STEPS):
        noise, real = _batch(rank, step, 4), _batch(rank, 50 + step, 8)
        inner.requires_grad_(True)
        of_judge.zero_grad()
        (judge(real).mean() - judge(generator(noise).detach()).mean()).square().backward()
        of_judge.step()
        inner.requires_grad_(False)
        of_generator.zero_grad()
        (inner if is_bare else judge)(generator(noise)).sigmoid().mean().backward()
        of_generator.step()


def frozen_judge(rank: int, world: int, *, is_bare: bool) -> float:
    """A GAN freezes its discriminator while its generator trains; the difference from DDP."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    states = []
    for is_planned in (True, False):
        networks = _networks()
        optimizers = [torch.optim.SGD(one.parameters(), 0.1) for one in networks]
        parts: list[Any] = []
        for one, optimizer, width in zip(networks, optimizers, (4, 8), strict=True):
            planned = applied(one, (torch.ones(5, width),), optimizer)
            parts.append(planned if is_planned else None)
            if not is_planned:
                planned.close()
                parts[-1] = DistributedDataParallel(one)
        _adversarial((parts[0], parts[1]), networks[1], optimizers, rank, is_bare)
        states.append([t.detach().clone() for one in networks for t in one.state_dict().values()])
        for part in parts:
            if is_planned:
                part.close()
    dist.destroy_process_group()
    return max(float((a - b).abs().max()) for a, b in zip(*states, strict=True))


def caught(rank: int, world: int) -> list[float]:
    """A sum cannot be put into .grad, the program catches that, and goes on; relative errors."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    torch.manual_seed(1)
    model = nn.Sequential(*[nn.Linear(256, 256) for _ in range(6)])
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    planned = applied(model, (torch.ones(4, 256),), optimizer)
    errors = []
    for step in range(STEPS):
        optimizer.zero_grad()
        inputs = [
            torch.randn(4, 256, generator=torch.Generator().manual_seed(10 * step + one))
            for one in range(world)
        ]
        handle = None
        if step == 1 and rank == 0:
            last: Any = model[5]
            handle = last.bias.register_post_accumulate_grad_hook(_expand)
        try:
            planned(inputs[rank]).square().sum().backward()
        except RuntimeError:
            continue
        finally:
            if handle is not None:
                handle.remove()
        got = [p.grad for p in model.parameters()]
        wanted = []
        for one in inputs:
            outputs = nn.utils.stateless.functional_call(
                model, dict(model.named_parameters()), (one,)
            )
            wanted.append(torch.autograd.grad(outputs.square().sum(), list(model.parameters())))
        for index, grad in enumerate(got):
            if step == 1 and index == len(got) - 1:
                continue  # rank 0's was replaced
            mean = sum(each[index] for each in wanted) / world
            assert grad is not None
            errors.append(float((grad - mean).abs().max() / mean.abs().max()))
    planned.close()
    dist.destroy_process_group()
    return errors


def _expand(parameter: torch.Tensor) -> None:
    parameter.grad = torch.zeros(1).expand(parameter.shape)


def written(rank: int, world: int) -> str:
    """A hook writes the gradient of another parameter whose bucket has left."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    torch.manual_seed(1)
    model = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(8)])
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    planned = applied(model, (torch.ones(4, 1024),), optimizer)
    last: Any = model[7]
    first: Any = model[0]

    def scale(_parameter: torch.Tensor) -> None:
        if last.weight.grad is not None:
            last.weight.grad.mul_(0.5)

    said = ""
    for step in range(STEPS):
        optimizer.zero_grad()
        if step == 2:
            first.bias.register_post_accumulate_grad_hook(scale)
        try:
            planned(torch.ones(4, 1024)).sum().backward()
        except RuntimeError as error:
            said = f"{type(error).__name__}: {error}"
            break
    planned.close()
    return said


def again(rank: int, world: int) -> dict[str, Any]:
    """apply() fails on one rank, and is called again while its exception is handled."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    model = nn.Linear(2048, 2048)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    example = (torch.ones(2, 2048),)
    planned = applied(model, example, optimizer)
    with_plan = _allocated()
    planned.close()
    found: dict[str, Any] = {"freed": _freed(with_plan)}
    if rank == 1:
        model.register_parameter("extra", None)
        model.weight = nn.Parameter(model.weight.detach().to(torch.float64))
    try:
        applied(model, example, optimizer, of=nn.Linear(2048, 2048))
        found["said"] = ""
    except RuntimeError as error:
        found["said"] = str(error)
        model = nn.Linear(2048, 2048)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        planned = applied(model, example, optimizer)
    planned(torch.ones(2, 2048)).sum().backward()
    planned.close()
    dist.destroy_process_group()
    return found


def _allocated() -> int:
    arena: Any = rdmatensor.default_context().describe()["arena"]
    return int(arena["allocated_bytes"])


def _freed(with_plan: int) -> int:
    """Return what a closed plan has freed, once the other rank has let it go."""
    gc.collect()
    dist.barrier()
    deadline_s = time.monotonic() + 20
    while _allocated() == with_plan and time.monotonic() < deadline_s:
        time.sleep(0.01)
    return with_plan - _allocated()


def child_of(rank: int, world: int) -> list[float]:
    """Rank 0 is in a forked child that ends after its send, without a goodbye of its own."""
    if rank == 0:
        child = multiprocessing.get_context("fork").Process(target=_send_and_end)
        child.start()
        child.join()
        return [float(child.exitcode or 0)]
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    dist.barrier()
    time.sleep(1.0)
    got = torch.zeros(3)
    dist.recv(got, 0)
    return [float(value) for value in got]


def _send_and_end() -> None:
    assert os.environ["RANK"] == "0"
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    dist.barrier()
    dist.send(torch.full((3,), 7.0), 1)
