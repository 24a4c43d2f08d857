"""Training by a plan, with DistributedDataParallel on Gloo as the oracle."""

from __future__ import annotations

import contextlib
import copy
import functools
import gc
import hashlib
import io
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import rdmatensor.plan
from graph_analysis import DataParallel, TransferPlan, analyze

TIMEOUT = timedelta(seconds=60)
STEPS = 5


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(32, 16)
        self.lstm = nn.LSTM(16, 24, batch_first=True)
        self.head = nn.Linear(24, 32)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        out, _ = self.lstm(self.embedding(tokens))
        head: torch.Tensor = self.head(out)
        return head


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm(x)).chunk(3, dim=-1)
        x = x + self.out(nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True))
        mlp: torch.Tensor = self.mlp(x)
        return x + mlp


class Tied(nn.Module):
    """A decoder whose head is its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(48, 32)
        self.blocks = nn.Sequential(Block(32), Block(32))
        self.head = nn.Linear(32, 48, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        head: torch.Tensor = self.head(self.blocks(self.embedding(tokens)))
        return head


def _cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16 * 7 * 7, 10),
    )


def _mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 64), nn.Linear(64, 4))


def _floats(*shape: int) -> Callable[[torch.Generator], torch.Tensor]:
    return lambda generator: torch.randn(*shape, generator=generator)


def _tokens(high: int, length: int) -> Callable[[torch.Generator], torch.Tensor]:
    return lambda generator: torch.randint(0, high, (4, length), generator=generator)


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[torch.Generator], torch.Tensor]]] = {
    "mlp": (_mlp, _floats(8, 16)),
    "cnn": (_cnn, _floats(4, 3, 16, 16)),
    "lstm": (Recurrent, _tokens(32, 3)),  # half a second each: its cell is captured for each token
    "gpt": (Tied, _tokens(48, 12)),
}


def make(name: str) -> tuple[nn.Module, Callable[[int, int], torch.Tensor]]:
    """Return the model, the same on every rank, and its batches by step and rank."""
    torch.manual_seed(11)
    build, batch = MODELS[name]
    model = build()

    def batch_of(step: int, rank: int) -> torch.Tensor:
        return batch(torch.Generator().manual_seed(1000 * step + rank))

    return model, batch_of


@functools.cache
def plan_of(name: str, world: int) -> TransferPlan:
    """Return the plan of a model and its first batch, which is the same at each call."""
    model, batch_of = make(name)
    return analyze(model, (batch_of(0, 0),), strategy=DataParallel(world))


def loss_of(out: torch.Tensor) -> torch.Tensor:
    return out.float().square().mean()


def bits_of(model: nn.Module) -> str:
    whole = hashlib.sha256()
    for parameter in model.parameters():
        whole.update(parameter.detach().contiguous().numpy().tobytes())
    return whole.hexdigest()


def train(
    model: Any,
    batch_of: Callable[[int, int], torch.Tensor],
    rank: int,
    *,
    optimizer: torch.optim.Optimizer,
    clip: bool = False,
    autocast: bool = False,
    accumulate: int = 1,
    keep_grads: bool = False,
    before: Callable[[int], None] = lambda _step: None,
    each: Callable[[], None] = lambda: None,
) -> list[float]:
    losses = []
    for step in range(STEPS):
        before(step)
        optimizer.zero_grad(set_to_none=not keep_grads)
        for part in range(accumulate):
            is_last = part == accumulate - 1
            with contextlib.nullcontext() if is_last else model.no_sync():
                with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                    loss = loss_of(model(batch_of(step * 10 + part, rank)))
                loss.backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        each()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def _offsets(model: nn.Module, memory: torch.Tensor) -> dict[str, int]:
    """Return where in memory each parameter's gradient lies."""
    grads = {name: p.grad for name, p in model.named_parameters()}
    return {n: g.data_ptr() - memory.data_ptr() for n, g in grads.items() if g is not None}


def _planned_offsets(plan: TransferPlan) -> dict[str | None, int]:
    places = {one.tensor: one.offset for one in plan.arenas[0].placements}
    return {t.parameter: places[t.name] for t in plan.tensors if t.role == "gradient"}


def against_gloo(rank: int, world: int, model: str, **modes: bool | int) -> dict[str, Any]:
    """Train by a plan here, by DDP on Gloo there."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    gloo = dist.new_group(backend="gloo", timeout=TIMEOUT)
    theirs, batch_of = make(model)
    mine = copy.deepcopy(theirs)
    if rank > 0:  # rank 0's are everybody's
        with torch.no_grad():
            next(mine.parameters()).add_(1.0)
    optimizer = torch.optim.SGD(mine.parameters(), lr=0.1, momentum=0.9)
    plan = plan_of(model, world)
    planned = rdmatensor.plan.apply(mine, plan, optimizer)
    offsets: list[dict[str, int]] = []
    seen: list[rdmatensor.plan.Described] = []

    def look() -> None:
        offsets.append(_offsets(mine, planned._memory.memory))
        seen.append(planned.describe())

    options: dict[str, Any] = modes
    losses = train(planned, batch_of, rank, optimizer=optimizer, each=look, **options)
    gloo_losses = train(  # DDP has to go before the group: roles_adopt.buckets()
        DistributedDataParallel(theirs, process_group=gloo, gradient_as_bucket_view=True),
        batch_of,
        rank,
        optimizer=torch.optim.SGD(theirs.parameters(), lr=0.1, momentum=0.9),
        **options,
    )
    planned.close()
    torch.save(mine.state_dict(), file := io.BytesIO())
    found = {
        "losses": losses,
        "gloo_losses": gloo_losses,
        "is_same": all(
            torch.allclose(a, b, rtol=1e-5, atol=1e-6)
            for a, b in zip(mine.parameters(), theirs.parameters(), strict=True)
        ),
        "bits": bits_of(mine),
        "keys": list(planned.state_dict()) == list(theirs.state_dict()),
        "checkpoint_bytes": len(file.getvalue()),
        "offsets": offsets,
        "planned_offsets": _planned_offsets(plan),
        "seen": seen,
    }
    gc.collect()
    dist.destroy_process_group()
    return found


class Choosy(nn.Module):
    """Uses one of two branches."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, which: int = 0) -> torch.Tensor:
        branch: torch.Tensor = (self.first, self.second)[which % 2](x)
        return branch + (0 if which < 2 else self.second(x))


def unused(rank: int, world: int) -> dict[str, Any]:
    """Each rank uses another half of the model."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    torch.manual_seed(1)
    model = Choosy()
    weights = copy.deepcopy(model.state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    both = analyze(model, (torch.ones(2, 8), 2), strategy=DataParallel(world))
    planned = rdmatensor.plan.apply(model, both, optimizer)
    planned(torch.ones(2, 8), rank).sum().backward()
    optimizer.step()
    steps = {name: (weights[name] - p).mean().item() for name, p in model.state_dict().items()}
    dist.destroy_process_group()
    return {"steps": steps, "described": planned.describe()}


class Touching(nn.Module):
    """Choosy, whose branches all have a gradient, of zero where they are not used."""

    def __init__(self, inner: Choosy) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor, which: int) -> torch.Tensor:
        out: torch.Tensor = self.inner(x, which)
        return out + 0.0 * sum(p.sum() for p in self.inner.parameters())


# What each rank uses in each step: both of both branches; one that nobody uses; each its own.
USED = ((2, 2), (0, 0), (0, 1), (0, 0), (1, 1), (1, 1), (2, 2))


def unused_against_ddp(rank: int, world: int, *, is_found: bool) -> dict[str, Any]:
    """Branches that nobody uses for some steps, with momentum and weight decay, here and on Gloo.

    is_found: both look for them. Else DistributedDataParallel, which fails then, has zeros.
    """
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    gloo = dist.new_group(backend="gloo", timeout=TIMEOUT)
    torch.manual_seed(1)
    mine = Choosy()
    theirs = copy.deepcopy(mine)
    settings = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}
    optimizers = [torch.optim.SGD(model.parameters(), **settings) for model in (mine, theirs)]
    plan = analyze(mine, (torch.ones(2, 8), 2), strategy=DataParallel(world))
    planned = rdmatensor.plan.apply(mine, plan, optimizers[0], find_unused_parameters=is_found)
    oracle: Any = DistributedDataParallel(
        theirs if is_found else Touching(theirs),
        process_group=gloo,
        find_unused_parameters=is_found,
        gradient_as_bucket_view=True,
    )
    found: dict[str, list[Any]] = {"losses": [], "absent": [], "differences": []}
    for step, used in enumerate(USED):
        batch = torch.randn(2, 8, generator=torch.Generator().manual_seed(10 * step + rank))
        losses, absent = [], []
        for called, model, optimizer in zip(
            (planned, oracle), (mine, theirs), optimizers, strict=True
        ):
            optimizer.zero_grad()
            loss = loss_of(called(batch, used[rank]))
            loss.backward()
            absent.append([name for name, p in model.named_parameters() if p.grad is None])
            optimizer.step()
            losses.append(float(loss.detach()))
        found["losses"].append(losses)
        found["absent"].append(absent)
        pairs = zip(mine.parameters(), theirs.parameters(), strict=True)
        found["differences"].append(max(float((a - b).detach().abs().max()) for a, b in pairs))
    bits = bits_of(mine)
    planned.close()
    del oracle
    gc.collect()
    dist.destroy_process_group()
    return {**found, "bits": bits}


def refused(rank: int, world: int) -> dict[str, str]:
    """What does not fit is an error that names it, on every rank."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    said = {}

    def attempt(what: str, call: Callable[[], object]) -> None:
        try:
            call()
        except (rdmatensor.plan.PlanMismatchError, rdmatensor.InvalidArgumentError) as error:
            said[what] = str(error)

    def with_plan(plan: TransferPlan, model: nn.Module) -> rdmatensor.plan.PlannedModel:
        return rdmatensor.plan.apply(model, plan, torch.optim.SGD(model.parameters(), lr=0.1))

    mlp = plan_of("mlp", world)
    attempt("world", lambda: with_plan(plan_of("mlp", world + 1), make("mlp")[0]))
    attempt("ranks", lambda: with_plan(mlp if rank == 0 else plan_of("cnn", world), make("mlp")[0]))
    attempt("model", lambda: with_plan(mlp, make("cnn")[0]))
    frozen = make("mlp")[0]
    next(frozen.parameters()).requires_grad_(False)
    attempt("frozen", lambda: with_plan(mlp, frozen))
    changed = make("mlp")[0]
    planned = with_plan(mlp, changed)
    changed[3] = nn.Linear(64, 6)  # type: ignore[index]  # a Sequential
    weight = changed[2].weight  # type: ignore[index]
    weight.data = torch.zeros(64, 128)
    head = changed[3]  # type: ignore[index]

    def step() -> None:
        head(torch.nn.functional.linear(torch.ones(1, 128), weight)).sum().backward()

    attempt("changed", step)
    planned.close()
    dist.destroy_process_group()
    return said


def changed(rank: int, world: int, *, way: str) -> dict[str, str]:
    """A model that is changed after a step by its plan: the next backward pass says how."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    if way == "used":  # which was not, when the plan was made
        model: Any = Choosy()
        batches: tuple[Any, ...] = (torch.ones(2, 8), 0)
    else:
        model, batch_of = make("mlp")
        batches = (batch_of(0, rank),)
    if way == "unfrozen":
        model[0].weight.requires_grad_(False)
    plan = analyze(model, batches, strategy=DataParallel(world))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    planned = rdmatensor.plan.apply(model, plan, optimizer)
    loss_of(planned(*batches)).backward()
    optimizer.step()
    optimizer.zero_grad()
    said, more = "", torch.zeros(1)
    if way == "added":
        model.register_parameter("extra", nn.Parameter(more))
        more = model.extra
    elif way == "replaced":
        model[3] = nn.Linear(model[3].in_features, model[3].out_features)
    elif way == "removed":
        model[3] = nn.Identity()
    elif way in ("unfrozen", "frozen", "frozen for a while"):
        model[0].weight.requires_grad_(way == "unfrozen")
    elif way == "turned":
        model[3].weight.data = model[3].weight.data.t().contiguous()
        more = model[3].weight
    else:
        batches = (batches[0], 1)
    if way == "frozen for a while":  # as to differentiate by inputs alone
        with planned.no_sync():
            loss_of(planned(*batches)).backward()
        model[0].weight.requires_grad_(True)
    try:
        (more.sum() + (0 if way == "turned" else loss_of(planned(*batches)))).backward()
    except rdmatensor.plan.PlanMismatchError as error:
        said = str(error)
    planned.close()
    dist.destroy_process_group()
    return {"said": said}
