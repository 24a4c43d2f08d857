"""Programs that a planned step must get right, or refuse, and never get silently wrong."""

from __future__ import annotations

import copy
import gc
import io
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import rdmatensor.plan
from graph_analysis import DataParallel, analyze

TIMEOUT = timedelta(seconds=40)
WIDTH = 64
ROWS = 2048
STEPS = 4


class Positions(nn.Module):
    """Adds positions by pos[None]: at batch 1 their gradient is a view that a node reads."""

    def __init__(self) -> None:
        super().__init__()
        self.proj, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.pos = nn.Parameter(torch.randn(ROWS, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.proj(x) + self.pos[None])
        return out


class Flat(nn.Module):
    """Adds two parameters, one through a view: both accumulators get one gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.randn(ROWS * WIDTH))
        self.b = nn.Parameter(torch.randn(ROWS, WIDTH))
        self.scale = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        both = (self.a + self.b.view(-1)).view(1, ROWS, WIDTH)
        out: torch.Tensor = self.scale(both * x)
        return out


class Normed(nn.Module):
    """Has buffers that a forward pass changes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(8, 8), nn.BatchNorm1d(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.norm(self.layer(x))
        return out


def applied(
    model: nn.Module, batch: torch.Tensor, lr: float = 0.0
) -> tuple[rdmatensor.plan.PlannedModel, torch.optim.Optimizer]:
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    plan = analyze(copy.deepcopy(model), (batch,), strategy=DataParallel(dist.get_world_size()))
    return rdmatensor.plan.apply(model, plan, optimizer), optimizer


def _loss(called: Any, x: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = called(x).square().mean()
    return loss


def distance(mine: nn.Module, theirs: nn.Module) -> float:
    """Return the largest difference of two models' gradients."""
    pairs: Any = zip(mine.parameters(), theirs.parameters(), strict=True)
    return max(float((a.grad - b.grad).abs().max()) for a, b in pairs)


def batch_of(rank: int, *shape: int, step: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(100 * step + rank))


def aliases(rank: int, world: int, *, name: str) -> list[float]:
    """Return the largest relative error of a gradient, by step; rank 1 comes last."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    torch.manual_seed(0)
    model = {"positions": Positions, "flat": Flat}[name]()
    oracle = copy.deepcopy(model)
    want = [torch.zeros_like(p) for p in oracle.parameters()]
    for other in range(world):
        oracle.zero_grad()
        oracle(batch_of(other, 1, ROWS, WIDTH)).square().mean().backward()
        for total, p in zip(want, oracle.parameters(), strict=True):
            assert p.grad is not None
            total += p.grad / world
    planned, optimizer = applied(model, batch_of(rank, 1, ROWS, WIDTH))
    errors = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        dist.barrier()
        time.sleep(0.1 * (rank == world - 1))  # so that sums begin while others read
        _loss(planned, batch_of(rank, 1, ROWS, WIDTH)).backward()
        errors.append(
            max(
                float((p.grad - total).norm() / total.norm())
                for p, total in zip(model.parameters(), want, strict=True)
                if p.grad is not None
            )
        )
    planned.close()
    dist.destroy_process_group()
    return errors


def late_hooks(rank: int, _world: int) -> list[float]:
    """Hooks that clip, registered after apply(): what is summed is what they leave."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8, bias=False), nn.Linear(8, 8))
    x = batch_of(7, 4, 8) * (1 if rank == 0 else 50)

    def run(call: Any) -> None:
        model.zero_grad()
        (call(x) * torch.arange(8.0)).pow(2).sum().backward()

    def clip(p: torch.Tensor) -> None:
        assert p.grad is not None
        p.grad.clamp_(-1, 1)

    run(model)
    want = []
    for p in model.parameters():
        assert p.grad is not None
        want.append(p.grad.clamp(-1, 1))
        dist.all_reduce(want[-1], op=dist.ReduceOp.AVG)
    planned, _ = applied(model, torch.ones(4, 8))
    for p in model.parameters():
        p.register_post_accumulate_grad_hook(clip)
    errors = []
    for _ in range(STEPS):
        run(planned)
        pairs = zip(model.parameters(), want, strict=True)
        errors.append(max(float((p.grad - w).abs().max()) for p, w in pairs if p.grad is not None))
    planned.close()
    dist.destroy_process_group()
    return errors


def alone(rank: int, world: int) -> dict[str, Any]:
    """One rank looks at a model with buffers between steps, in each way; the oracle is DDP."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    gloo = dist.new_group(backend="gloo", timeout=TIMEOUT)
    torch.manual_seed(1)
    model = Normed()
    theirs = copy.deepcopy(model)
    planned, optimizer = applied(model, torch.ones(4, 8), lr=0.1)
    ddp = DistributedDataParallel(theirs, process_group=gloo)
    other = torch.optim.SGD(theirs.parameters(), lr=0.1)
    is_same, outputs = [], []
    for step in range(STEPS):
        for called, opt in ((planned, optimizer), (ddp, other)):
            opt.zero_grad()
            called(batch_of(rank, 4, 8, step=step)).square().sum().backward()
            opt.step()
        is_same.append(_is_same(model, theirs))
        if rank == step % world:
            model.eval()
            model(torch.ones(4, 8))
            with torch.no_grad():
                model(torch.ones(4, 8))
            model.train()
        model.eval()
        ddp.eval()
        with torch.no_grad():  # on all ranks: rank 0's buffers, as with DDP
            mine: Any = planned(torch.ones(4, 8))
            outputs.append(torch.equal(mine, ddp(torch.ones(4, 8))))
        model.train()
        ddp.train()
    with torch.no_grad():
        if rank == 1:
            model(torch.ones(4, 8))  # in train mode: it changes its own buffers
    _loss(planned, batch_of(rank, 4, 8)).backward()
    dist.barrier()
    planned.close()
    del ddp, called  # before its group, whose threads may want Python's lock
    gc.collect()
    dist.destroy_process_group()
    return {"is_same": is_same, "outputs": outputs}


def _is_same(mine: nn.Module, theirs: nn.Module) -> bool:
    pairs = zip(mine.state_dict().values(), theirs.state_dict().values(), strict=True)
    return all(torch.allclose(a.double(), b.double(), rtol=1e-5, atol=1e-7) for a, b in pairs)


def swapped_buffers(rank: int, _world: int) -> list[float]:
    """A program puts its own buffers in for an evaluation, and back; then loads some on all."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    torch.manual_seed(1)
    model = Normed()
    planned, optimizer = applied(model, torch.ones(4, 8))

    def step(number: int) -> None:
        optimizer.zero_grad()
        _loss(planned, batch_of(rank, 4, 8, step=number)).backward()

    assert isinstance(model.norm.running_mean, torch.Tensor)
    step(0)
    mean = model.norm.running_mean
    saved = mean.clone()
    if rank == 0:
        mean.data.fill_(5.0)
        model.eval()
        model(torch.ones(4, 8))
        seen = [float(mean[0])]
        model.train()
        mean.data.copy_(saved)
    else:
        seen = [5.0]
    step(1)
    mean.data.fill_(7.0)
    model.eval()
    with torch.no_grad():
        model(torch.ones(4, 8))
    model.train()
    seen.append(float(mean[0]))
    step(2)  # what all have changed is sent again
    dist.barrier()
    planned.close()
    dist.destroy_process_group()
    return seen


def refused(rank: int, _world: int, *, on_all: bool) -> dict[str, Any]:
    """A parameter is frozen after apply(), on one rank or on all."""
    dist.init_process_group("rdmatensor", timeout=timedelta(seconds=60))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    planned, _ = applied(model, torch.ones(4, 8))
    said = []
    began = time.monotonic()
    for step in range(2):
        if step == 1 and (on_all or rank == 1):
            model[0].weight.requires_grad_(False)
        try:
            _loss(planned, batch_of(rank, 4, 8)).backward()
        except (rdmatensor.plan.PlanMismatchError, dist.DistBackendError) as error:
            said.append(f"{type(error).__name__}: {error}")
    taken_s = time.monotonic() - began
    planned.close()
    if on_all:
        planned, _ = applied(model, torch.ones(4, 8))
        _loss(planned, batch_of(rank, 4, 8)).backward()
        planned.close()
    dist.destroy_process_group()
    return {"said": said, "taken_s": taken_s}


def nested(rank: int, _world: int, *, use_reentrant: bool) -> list[float]:
    """The whole planned model in a checkpoint, whose forward pass runs again within backward."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    gloo = dist.new_group(backend="gloo", timeout=TIMEOUT)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
    theirs = copy.deepcopy(model)
    planned, _ = applied(model, torch.ones(4, 8))
    ddp = DistributedDataParallel(theirs, process_group=gloo)
    errors = []
    for step in range(STEPS):
        for called, module in ((planned, model), (ddp, theirs)):
            module.zero_grad()
            x = batch_of(rank, 4, 8, step=step).requires_grad_()
            checkpoint(called, x, use_reentrant=use_reentrant).square().sum().backward()
        errors.append(distance(model, theirs))
    planned.close()
    del ddp, called  # before its group, whose threads may want Python's lock
    gc.collect()
    dist.destroy_process_group()
    return errors


def shared_layer(rank: int, _world: int) -> dict[str, Any]:
    """apply() again on a model replaces its plan; on one that shares a layer it is refused."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    torch.manual_seed(0)
    first = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    second = nn.Sequential(first[0], nn.Linear(8, 4))
    said = ""
    applied(first, torch.ones(4, 8))
    planned, _ = applied(first, torch.ones(4, 8))
    try:
        applied(second, torch.ones(4, 8))
    except rdmatensor.plan.PlanMismatchError as error:
        said = str(error)
    _loss(planned, batch_of(rank, 4, 8)).backward()
    steps = planned.describe()["steps"]
    planned.close()
    again, _ = applied(second, torch.ones(4, 8))
    again.close()
    dist.destroy_process_group()
    return {"said": said, "steps": steps}


def copies(_rank: int, _world: int) -> dict[str, Any]:
    """Copies and files of a planned model are ordinary models."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))
    planned, _ = applied(model, torch.ones(4, 8))
    planned(torch.ones(4, 8)).sum().backward()
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    found = {
        "deepcopy": copy.deepcopy(model),
        "of planned": copy.deepcopy(planned),
        "averaged": torch.optim.swa_utils.AveragedModel(model).module,
        "loaded": torch.load(file, weights_only=False),
    }
    steps = planned.describe()["steps"]
    types = {}
    for name, one in found.items():
        types[name] = type(one).__name__
        one(torch.ones(4, 8)).sum().backward()  # on each rank alone
    assert planned.describe()["steps"] == steps
    planned.close()
    dist.destroy_process_group()
    return types


def raised(rank: int, world: int, *, to_none: bool) -> list[float]:
    """A pass raises on all ranks once buckets have left; the program goes on."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(512, 512) for _ in range(6)))
    oracle = copy.deepcopy(model)
    planned, _ = applied(model, torch.ones(4, 512))
    errors = []
    for step in range(STEPS):
        hook = model[0].weight.register_hook(_raise) if step % 2 == 1 else None
        time.sleep(0.05 * rank)
        model.zero_grad(set_to_none=to_none)
        oracle.zero_grad()
        try:
            _loss(planned, batch_of(rank, 4, 512, step=step)).backward()
            for other in range(world):
                (_loss(oracle, batch_of(other, 4, 512, step=step)) / world).backward()
        except _Lost:
            model.zero_grad(set_to_none=to_none)
        if hook is not None:
            hook.remove()
        time.sleep(0.05)  # what still arrives would lie on the zeros
        for mine, theirs in zip(model.parameters(), oracle.parameters(), strict=True):
            got = torch.zeros(1) if mine.grad is None else mine.grad
            want = torch.zeros(1) if theirs.grad is None else theirs.grad
            errors.append(float((got - want).abs().max() / (1e-9 + want.abs().max())))
    planned.close()
    dist.destroy_process_group()
    return errors


class _Lost(RuntimeError):
    """Raised by a hook of the program."""


def _raise(_grad: torch.Tensor) -> None:
    raise _Lost
