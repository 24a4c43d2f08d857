"""Steps that change after they have repeated: what is replanned, and what is an error."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import roles_pipeline
import torch
import torch.distributed as dist
from roles_plan import bits_of, loss_of, make, plan_of
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import rdmatensor.distributed
import rdmatensor.plan

TIMEOUT = timedelta(seconds=30)
REPEATED = 4  # steps until everything stands
LENGTHS = (12, 12, 12, 5, 5, 9, 12, 3)
ROWS_OF_STEPS = (64, 16, 96, 16, 64, 96)  # of a micro-batch


def lengths(rank: int, world: int) -> dict[str, Any]:
    """A planned model whose batches are of another length now and then, and DDP on Gloo."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    gloo = dist.new_group(backend="gloo", timeout=TIMEOUT)
    mine, batch_of = make("gpt")
    theirs = copy.deepcopy(mine)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.01) for model in (mine, theirs)]
    planned = rdmatensor.plan.apply(mine, plan_of("gpt", world), optimizers[0])
    oracle = DistributedDataParallel(theirs, process_group=gloo, gradient_as_bucket_view=True)
    losses: list[list[float]] = []
    copied = []
    for step, length in enumerate(LENGTHS):
        batch = batch_of(step, rank)[:, :length]
        losses.append([])
        for called, optimizer in zip((planned, oracle), optimizers, strict=True):
            optimizer.zero_grad()
            loss = loss_of(called(batch))  # type: ignore[operator]
            loss.backward()
            optimizer.step()
            losses[-1].append(float(loss.detach()))
        copied.append(planned.describe()["copied"])
    found = {"losses": losses, "bits": bits_of(mine), "copied": copied}
    planned.close()
    del oracle
    gc.collect()
    dist.destroy_process_group()
    return found


def _net(width: int) -> nn.Sequential:
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(16, width), nn.Tanh(), nn.Linear(width, 4))


def _ddp_steps(
    model: nn.Module, group: Any, rank: int, after: Callable[[int], None]
) -> list[float]:
    module = DistributedDataParallel(model, process_group=group, gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    losses = []
    for step in range(REPEATED):
        generator = torch.Generator().manual_seed(10 * step + rank)
        optimizer.zero_grad()
        loss = module(torch.randn(8, 16, generator=generator)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
        after(step)
    return losses


def ddp(rank: int, _world: int) -> dict[str, Any]:
    """A script that goes on with a wider model, and then with one that has a parameter more."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    gloo = dist.new_group(backend="gloo", timeout=TIMEOUT)
    found: dict[str, Any] = {"states": [], "bytes": [], "losses": [], "gloo_losses": []}

    def look(step: int) -> None:
        said: Any = rdmatensor.distributed.describe()["plan"]
        found["states"].append((said["state"], said["changes"], said.get("bytes", 0)))
        if step == REPEATED - 1:  # while the module lives, which has the names
            plan = rdmatensor.plan.recorded()
            assert plan is not None
            found["last"] = sorted(crossing.tensor for crossing in plan.crossings)

    longer = _net(48).append(nn.Linear(4, 4))
    for model in (_net(32), _net(48), longer):
        theirs = copy.deepcopy(model)
        found["bytes"].append(sum(p.nbytes for p in model.parameters()))
        found["losses"].append(_ddp_steps(model, None, rank, look))
        found["gloo_losses"].append(_ddp_steps(theirs, gloo, rank, lambda _step: None))
    gc.collect()
    dist.destroy_process_group()
    return found


def pipeline_again(rank: int, world: int, *, name: str) -> dict[str, Any]:
    """Schedules one after the other over the same group, with micro-batches of other lengths."""
    torch.set_num_threads(1)
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    gloo = dist.new_group(backend="gloo", timeout=TIMEOUT)
    ours, theirs = [], []
    for rows in (64, 16, 96):
        for group, into in ((None, ours), (gloo, theirs)):
            schedule, module = roles_pipeline.schedule_of(name, rank, world, group)
            into += roles_pipeline.train(schedule, module, rank, world, range(REPEATED), rows)
    found = {
        "is_same": roles_pipeline.is_same(ours, theirs),
        "gradients": sum(len(step["gradients"]) for step in ours),
    }
    dist.barrier(group=gloo)
    dist.destroy_process_group()
    return found


def pipeline_by_length(rank: int, world: int) -> dict[str, Any]:
    """Lengths that vary from step to step, in each of the ways that torch has for it."""
    torch.set_num_threads(1)
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    gloo = dist.new_group(backend="gloo", timeout=TIMEOUT)
    found: dict[str, Any] = {}
    ways = {name: partial(_by_schedules, name) for name in ("GPipe", "1F1B")}
    for name, way in {**ways, "eval": _by_eval, "by hand": _by_hand}.items():
        before = rdmatensor.default_context().counters()
        ours = way(rank, world, None)
        after = rdmatensor.default_context().counters()
        found[name] = {
            "is_same": roles_pipeline.is_same(ours, way(rank, world, gloo)),
            "gradients": sum(len(step["gradients"]) for step in ours),
            "control_messages": after.control_messages - before.control_messages,
        }
        dist.barrier(group=gloo)
    dist.destroy_process_group()
    return found


def _by_schedules(name: str, rank: int, world: int, group: Any) -> list[dict[str, Any]]:
    """One schedule for each length, all over one module."""
    module = roles_pipeline.stage_net(rank)
    schedules = {
        rows: roles_pipeline.schedule_of(name, rank, world, group, module)[0]
        for rows in sorted(set(ROWS_OF_STEPS))
    }
    done = []
    for step, rows in enumerate(ROWS_OF_STEPS):
        schedule, steps = schedules[rows], range(step, step + 1)
        done += roles_pipeline.train(schedule, module, rank, world, steps, rows)
    return done


def _by_eval(rank: int, world: int, group: Any) -> list[dict[str, Any]]:
    """One schedule: after eval(), torch asks for the shapes again."""
    schedule, module = roles_pipeline.schedule_of("1F1B", rank, world, group)
    done = []
    for step, rows in enumerate(ROWS_OF_STEPS):
        x = torch.randn(roles_pipeline.MICRO_BATCHES * rows, roles_pipeline.WIDTH)
        schedule.eval(*([x] if rank == 0 else []), target=x)
        done += roles_pipeline.train(schedule, module, rank, world, range(step, step + 1), rows)
    return done


def _by_hand(rank: int, _world: int, group: Any) -> list[dict[str, Any]]:
    """Two stages and no schedule; who receives knows the length, as from what loads the data."""
    module = roles_pipeline.stage_net(rank)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    done = []
    for step, rows in enumerate(ROWS_OF_STEPS):
        generator = torch.Generator().manual_seed(step)
        x = torch.randn(rows, roles_pipeline.WIDTH, generator=generator)
        between = torch.empty(rows, roles_pipeline.WIDTH)  # activations, or their gradients
        if rank == 0:
            out = module(x)
            _exchange(
                dist.P2POp(dist.isend, out.detach(), 1, group),
                dist.P2POp(dist.irecv, between, 1, group),
            )
            out.backward(between)
            losses = []
        else:
            _exchange(dist.P2POp(dist.irecv, between, 0, group))
            loss = nn.functional.mse_loss(module(between.requires_grad_()), x.square())
            loss.backward()
            assert between.grad is not None
            _exchange(dist.P2POp(dist.isend, between.grad, 0, group))
            losses = [loss.detach()]
        gradients = [p.grad.clone() for p in module.parameters() if p.grad is not None]
        done.append({"losses": losses, "gradients": gradients})
        optimizer.step()
        optimizer.zero_grad()
    return done


def _exchange(*operations: dist.P2POp) -> None:
    for work in dist.batch_isend_irecv(list(operations)):
        work.wait()


def pipeline_changed(
    rank: int, world: int, *, name: str, rows: int, shape: tuple[int, ...] | None = None
) -> dict[str, str]:
    """One schedule whose inputs get another length, for which it has no buffers.

    shape: of what stage 0 sends from then on, of as many bytes.
    """
    torch.set_num_threads(1)
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    gloo = dist.new_group(backend="gloo", timeout=TIMEOUT)
    schedule, module = roles_pipeline.schedule_of(name, rank, world, None)
    roles_pipeline.train(schedule, module, rank, world, range(REPEATED))
    dist.barrier(group=gloo)  # or who ends the group first may end a send that still waits
    if shape is not None and rank == 0:
        module.register_forward_hook(lambda _module, _args, out: out.view(shape))
    try:
        roles_pipeline.train(schedule, module, rank, world, range(REPEATED, REPEATED + 1), rows)
    except (RuntimeError, ValueError) as error:
        return {"error": f"{type(error).__name__}: {error}"}
    return {"error": ""}
