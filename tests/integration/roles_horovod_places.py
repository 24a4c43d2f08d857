"""Ranks whose gradients have places in the buckets of Horovod's optimizer."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch

import rdmatensor
import rdmatensor.horovod.torch as hvd

STEPS = 12
LAST = 4  # steps in which nothing is copied any more
Step = Callable[[Any, torch.nn.Module, torch.Tensor, int], None]


class Net(torch.nn.Module):
    """Two heads over a body; each parameter has 64 KiB."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.body = torch.nn.Sequential(
            torch.nn.Linear(128, 128, bias=False), torch.nn.Tanh(),
            torch.nn.Linear(128, 128, bias=False),
        )  # fmt: skip
        self.left = torch.nn.Linear(128, 128, bias=False)
        self.right = torch.nn.Linear(128, 128, bias=False)

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        found = self.body(given)
        return self.left(found).square().mean() + self.right(found).abs().mean()


def _plain(optimizer: Any, model: torch.nn.Module, data: torch.Tensor, _step: int) -> None:
    optimizer.zero_grad()
    model(data).backward()
    optimizer.step()


def _by_model(optimizer: Any, model: torch.nn.Module, data: torch.Tensor, _step: int) -> None:
    model.zero_grad()
    model(data).backward()
    optimizer.step()


def _kept(optimizer: Any, model: torch.nn.Module, data: torch.Tensor, _step: int) -> None:
    optimizer.zero_grad(set_to_none=False)
    model(data).backward()
    optimizer.step()


def _in_between(optimizer: Any, model: torch.nn.Module, data: torch.Tensor, step: int) -> None:
    """Other work of the same sizes, a pass of torch.autograd.grad(), and an evaluation."""
    optimizer.zero_grad()
    loss = model(data)
    weight = _inner(model).left.weight
    (found,) = torch.autograd.grad(loss, [weight], retain_graph=True)
    before = found.clone()
    loss.backward()
    optimizer.step()
    assert torch.equal(found, before), "a gradient that the program has was written"
    if step % 5 == 4 and hvd.is_initialized() and not _is_ddp(model):
        hvd.allreduce(torch.tensor(float(step)), name=f"accuracy.{step}")


def _holding(optimizer: Any, model: torch.nn.Module, data: torch.Tensor, step: int) -> None:
    """The program keeps gradients of earlier steps."""
    kept = model.__dict__.setdefault("kept", [])
    _plain(optimizer, model, data, step)
    for grads, values in kept:
        assert all(torch.equal(one, two) for one, two in zip(grads, values, strict=True))
    grads = [one.grad for one in model.parameters()]
    kept.append((grads, [one.clone() for one in grads]))  # type: ignore[union-attr]
    del kept[:-2]


def _replacing(optimizer: Any, model: torch.nn.Module, data: torch.Tensor, step: int) -> None:
    """The program gives a parameter another gradient, and leaves one out."""
    optimizer.zero_grad()
    if step % 3 == 2:
        _inner(model).body[0].weight.grad = torch.ones(128, 128)
    model(data).backward()
    optimizer.step()


def _is_ddp(model: torch.nn.Module) -> bool:
    return isinstance(model, torch.nn.parallel.DistributedDataParallel)


def _inner(model: torch.nn.Module) -> Any:
    return model.module if _is_ddp(model) else model


KINDS: dict[str, tuple[Step, dict[str, Any]]] = {
    "plain": (_plain, {}),
    "by model": (_by_model, {}),
    "kept": (_kept, {}),
    "groups": (_plain, {"groups": 2}),
    "sum": (_plain, {"op": hvd.Sum, "gradient_predivide_factor": 1.0}),
    "predivided": (_plain, {"gradient_predivide_factor": 2.0}),
    "in between": (_in_between, {}),
    "holding": (_holding, {}),
    "replacing": (_replacing, {}),
}


def like_ddp(rank: int, world: int) -> dict[str, dict[str, float]]:
    """Train by both; how far the parameters are, and what the last steps copied."""
    hvd.init()
    return {name: _compared(rank, world, *kind) for name, kind in KINDS.items()}


def _compared(rank: int, world: int, step: Step, options: dict[str, Any]) -> dict[str, float]:
    model, other = Net(), torch.nn.parallel.DistributedDataParallel(Net())
    scale = 1.0 / world if options.get("op") == hvd.Sum else 1.0
    sgd = torch.optim.SGD(model.parameters(), lr=0.5 * scale)
    optimizer = hvd.DistributedOptimizer(sgd, model.named_parameters(), **options)
    theirs = torch.optim.SGD(other.parameters(), lr=0.5)
    data = torch.Generator().manual_seed(rank)
    before: dict[str, float] = {}
    for number in range(STEPS):
        if number == STEPS - LAST:
            before = _counted(optimizer)
        batch = torch.randn(4, 128, generator=data)
        step(optimizer, model, batch, number)
        step(theirs, other, batch, number)
    now = _counted(optimizer)
    far = [
        float((one - two).abs().max().detach())
        for one, two in zip(model.parameters(), other.parameters(), strict=True)
    ]
    return {"far": max(far), **{name: now[name] - before[name] for name in now}}


def _counted(optimizer: Any) -> dict[str, float]:
    counts = optimizer._reducer.counts
    return {"in_place": counts.in_place, "copied": counts.copied, "aside": counts.aside_bytes}


class _Pair:
    """A model that all ranks train, and the same model with the data of all ranks in this one."""

    def __init__(self, seed: int, name: str, passes: int, groups: int | None) -> None:
        self.model, self.alone = Net(), Net()
        for one in (self.model, self.alone):
            torch.manual_seed(seed)
            one.tail = torch.nn.Linear(128, 3)  # small, with a bias
        self.passes = passes
        named = [(f"{name}.{label}", one) for label, one in self.model.named_parameters()]
        sgd = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.optimizer = hvd.DistributedOptimizer(
            sgd, named, backward_passes_per_step=passes, groups=groups
        )
        self.local = torch.optim.SGD(self.alone.parameters(), lr=0.1)
        self.kept: list[torch.Tensor] = []

    def step(self, rng: random.Random, own: random.Random, rank: int, world: int) -> None:
        """Take a step; ranks leave out other heads, and keep gradients at random."""
        self.local.zero_grad()
        given = [_uses(rng, world) for _ in range(self.passes)]
        kind = own.randrange(3)
        if kind == 0:
            self.model.zero_grad()
        else:
            self.optimizer.zero_grad(set_to_none=kind == 1)
        for used in given:
            data, heads = used[rank]
            _loss(self.model, data, heads).backward()
            for data, heads in used:
                (_loss(self.alone, data, heads) / world).backward()
        if own.random() < 0.3:
            self.optimizer.synchronize()
            with self.optimizer.skip_synchronize():
                self.optimizer.step()
        else:
            self.optimizer.step()
        self.kept = (
            self.kept if own.random() < 0.7 else [one.grad for one in self.model.parameters()]
        )
        for one in self.alone.parameters():
            one.grad = torch.zeros_like(one) if one.grad is None else one.grad
        self.local.step()

    def far(self) -> float:
        """Return how far the models are from each other."""
        pairs = zip(self.model.parameters(), self.alone.parameters(), strict=True)
        return max(float((one - two).abs().max().detach()) for one, two in pairs)


def _uses(rng: random.Random, world: int) -> list[tuple[torch.Tensor, list[str]]]:
    """Return each rank's data, and the heads that it uses: mostly all."""
    found = []
    for _ in range(world):
        heads = ["left", "right", "tail"]
        if rng.random() < 0.1:
            heads.remove(rng.choice(heads))
        data = torch.randn(2, 128, generator=torch.Generator().manual_seed(rng.randrange(1 << 30)))
        found.append((data, heads))
    return found


def _loss(model: Any, data: torch.Tensor, heads: list[str]) -> torch.Tensor:
    body = model.body(data)
    return torch.stack([getattr(model, head)(body).square().mean() for head in heads]).sum()


def random_steps(rank: int, world: int, first: int, count: int) -> list[float]:
    """Train two models at once by random programs; how far they are from all data in one."""
    hvd.init()
    found = []
    for seed in range(first, first + count):
        rng, own = random.Random(f"all {seed}"), random.Random(f"one {seed} {rank}")
        pairs = [
            _Pair(seed, f"{seed}.{i}", rng.choice((1, 1, 2)), rng.choice((None, None, 2)))
            for i in range(2)
        ]
        for step in range(rng.randrange(6, 16)):
            for pair in pairs if rng.random() < 0.7 else pairs[:1]:
                pair.step(rng, own, rank, world)
            if rng.random() < 0.1:
                hvd.allreduce(torch.ones(1), name=f"{seed}.accuracy.{step}")
        found.append(max(pair.far() for pair in pairs))
    return found


def transport(rank: int, _world: int) -> dict[str, Any]:
    """What the transport copies in steps that repeat, and what describe() tells."""
    hvd.init()
    model = Net()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = hvd.DistributedOptimizer(sgd, model.named_parameters())
    data = torch.Generator().manual_seed(rank)
    context, copied = rdmatensor.default_context(), []
    for number in range(STEPS):
        _plain(optimizer, model, torch.randn(4, 128, generator=data), number)
        copied.append(context.counters().copied_bytes)
    (told,) = rdmatensor.distributed.describe()["gradients"]
    adopted = [one["what"] for one in rdmatensor.distributed.describe()["adopted"]]
    return {"copied": copied[-1] - copied[-LAST], "told": told, "adopted": adopted}


def written_meanwhile(rank: int, _world: int) -> str:
    """A gradient is changed between backward() and step()."""
    hvd.init()
    model = Net()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = hvd.DistributedOptimizer(sgd, model.named_parameters())
    words = ""
    for number in range(STEPS):
        optimizer.zero_grad()
        model(torch.randn(4, 128)).backward()
        if number == STEPS - 1:
            model.left.weight.grad.mul_(2)  # type: ignore[union-attr]
        try:
            optimizer.step()
        except RuntimeError as error:
            words = str(error)
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).tolist() == [float(hvd.size())]
    return words


def forgotten(rank: int, _world: int) -> dict[str, float]:
    """An optimizer forgets steps whose gradients were sent; training goes on as without them."""
    hvd.init()
    far = []
    model, other = Net(), torch.nn.parallel.DistributedDataParallel(Net())
    sgd = torch.optim.SGD(model.parameters(), lr=0.5)
    optimizer = hvd.DistributedOptimizer(sgd, model.named_parameters())
    theirs = torch.optim.SGD(other.parameters(), lr=0.5)
    data = torch.Generator().manual_seed(rank)
    for number in range(STEPS + 4):
        if number >= STEPS:
            optimizer.zero_grad()
            model(torch.randn(4, 128)).backward()
            optimizer.load_state_dict(optimizer.state_dict())
        batch = torch.randn(4, 128, generator=data)
        _plain(optimizer, model, batch, number)
        _plain(theirs, other, batch, number)
        pairs = zip(model.parameters(), other.parameters(), strict=True)
        far += [float((one - two).abs().max().detach()) for one, two in pairs]
    return {"far": max(far), **_counted(optimizer)}


def at_once(rank: int, world: int, first: int, count: int) -> int:
    """Call allreduce() in a lane, of a program that changes tensors, order and names."""
    hvd.init()
    for seed in range(first, first + count):
        common, own = random.Random(f"all {seed}"), random.Random(f"one {seed} {rank}")
        names = [f"{seed}.{i}" for i in range(common.randrange(1, 4))]
        op = common.choice((hvd.Sum, hvd.Average, hvd.Max))
        for step in range(common.randrange(4, 14)):
            odd = common.random() < 0.15
            for name in names:
                size = 5 if odd and common.random() < 0.5 else 3
                values = [float(common.randrange(9)) for _ in range(world)]
                _check_one(own, values, rank, name, op, size)
            if odd and own.random() < 0.5:  # others are in a call of the lane by then
                handle = hvd.allreduce_async(torch.ones(2), name=f"{seed}.odd.{step}", op=hvd.Sum)
                _check_extra(handle, world)
            elif odd:
                found = hvd.allreduce(torch.ones(2), name=f"{seed}.odd.{step}", op=hvd.Sum)
                assert found.tolist() == [world, world]
    return count


def _check_one(
    own: random.Random, values: list[float], rank: int, name: str, op: int, size: int
) -> None:
    given = torch.full((size,), values[rank])
    average = sum(values) / len(values)
    expected = {hvd.Sum: sum(values), hvd.Average: average, hvd.Max: max(values)}[op]
    if own.random() < 0.3:
        found = hvd.allreduce_(given, name=name, op=op)
        assert found is given
    elif own.random() < 0.3:
        found = hvd.synchronize(hvd.allreduce_async(given, name=name, op=op))
    else:
        found = hvd.allreduce(given, name=name, op=op)
        assert given.tolist() == [values[rank]] * size
    torch.testing.assert_close(found, torch.full((size,), expected))


def _check_extra(handle: int, world: int) -> None:
    assert hvd.synchronize(handle).tolist() == [world, world]


def factors(rank: int, world: int) -> int:
    """Averages with and without a factor after them, submitted together."""
    hvd.init()
    mean = sum(range(world)) / world
    for step in range(8):
        handles = [
            hvd.allreduce_async(
                torch.full((3,), float(rank)), name=str(post), postscale_factor=post
            )
            for post in (1.0, 2.0, 4.0)
        ]
        found = [hvd.synchronize(handle).tolist() for handle in handles]
        assert found == [[mean] * 3, [2 * mean] * 3, [4 * mean] * 3], step
    return 8


def sparse(rank: int, world: int, as_dense: bool) -> dict[str, float]:
    """Train an embedding with sparse gradients; how far it is from all data in one process."""
    hvd.init()
    model, alone = (_embedding() for _ in range(2))
    sgd = torch.optim.SGD(model.parameters(), lr=0.5)
    optimizer = hvd.DistributedOptimizer(sgd, model.named_parameters(), sparse_as_dense=as_dense)
    local = torch.optim.SGD(alone.parameters(), lr=0.5)
    data = [torch.Generator().manual_seed(one) for one in range(world)]
    for _ in range(8):
        rows = [torch.randint(0, 50, (6,), generator=one) for one in data]
        optimizer.zero_grad()
        model(rows[rank]).square().mean().backward()
        optimizer.step()
        local.zero_grad()
        for one in rows:
            (alone(one).square().mean() / world).backward()
        local.step()
    is_sparse = bool(model[0].weight.grad.is_sparse)  # type: ignore[union-attr]
    far = max(
        float((one - two).abs().max().detach())
        for one, two in zip(model.parameters(), alone.parameters(), strict=True)
    )
    return {"far": far, "is_sparse": is_sparse}


def _embedding() -> torch.nn.Sequential:
    torch.manual_seed(2)
    return torch.nn.Sequential(torch.nn.Embedding(50, 8, sparse=True), torch.nn.Linear(8, 3))
