"""Scripts whose gradients are allocated in their buckets: models, and what a step of each does."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

STEPS = 8
WIDTH = 128
SMALL_BYTES = 32 * 1024  # gradients that are smaller are not allocated in their buckets


class Moves(TorchDispatchMode):
    """From where DistributedDataParallel moves each gradient into its bucket, by its own calls."""

    def __init__(self) -> None:
        super().__init__()
        self.came_from: dict[int, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.aten.mul.out:
            self._note(kwargs["out"], args[0])
        elif func is torch.ops.aten.copy_.default:  # with a communication hook
            self._note(*args[:2])
        return func(*args, **kwargs)

    def _note(self, bucket: torch.Tensor, gradient: torch.Tensor) -> None:
        if bucket.layout == gradient.layout == torch.strided and torch._C._has_storage(gradient):
            self.came_from[bucket.data_ptr()] = gradient.data_ptr()

    def born(self, parameters: Iterable[torch.Tensor]) -> list[bool]:
        """Whether autograd wrote each gradient where it is now; of those that are not small."""
        return [
            self.came_from.get(grad.data_ptr()) == grad.data_ptr()
            for grad in _dense(parameters)
            if grad.nbytes >= SMALL_BYTES
        ]

    def moved(self, parameters: Iterable[torch.Tensor]) -> int:
        """How many gradients DistributedDataParallel has moved from elsewhere."""
        places = [grad.data_ptr() for grad in _dense(parameters)]
        return sum(self.came_from.get(place, place) != place for place in places)


def _dense(parameters: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    grads = [parameter.grad for parameter in parameters]
    return [grad for grad in grads if grad is not None and grad.layout == torch.strided]


class Lstm(nn.Module):
    """Its weights are used once for each word."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTM(WIDTH, WIDTH, num_layers=2, batch_first=True)
        self.head = nn.Linear(WIDTH, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden, _ = self.cell(x.unflatten(1, (4, -1)).repeat(1, 1, 4))
        return self.head(hidden)  # type: ignore[no-any-return]


class Gpt(nn.Module):
    """One block, and an embedding whose weight is the head's too."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(100, WIDTH)
        self.block = nn.TransformerEncoderLayer(
            WIDTH, 4, 2 * WIDTH, dropout=0.0, batch_first=True, norm_first=True
        )
        self.head = nn.Linear(WIDTH, 100, bias=False)
        self.head.weight = self.words.weight

    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        hidden = self.words((x[:, :16].abs() * 30).long() % 100)
        scores = self.head(self.block(hidden)) / WIDTH
        return {"scores": [scores], "hidden": hidden}


class Checkpointed(nn.Module):
    """Its layers run again in the backward pass."""

    def __init__(self, *, is_reentrant: bool) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 8)
        self.middle = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))
        self.is_reentrant = is_reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = checkpoint(self.middle, self.first(x), use_reentrant=self.is_reentrant)
        return self.last(hidden)  # type: ignore[no-any-return]


class Tangled(nn.Module):
    """Gradients that are sums, others' too, views of a larger one, or of another layout."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = (
            nn.Parameter(torch.rand(WIDTH, WIDTH)),
            nn.Parameter(torch.rand(WIDTH, WIDTH)),
        )
        self.c, self.d = (nn.Parameter(torch.rand(WIDTH * WIDTH)) for _ in range(2))
        self.e = nn.Parameter(torch.rand(2 * WIDTH, WIDTH).t())
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        same = self.a + self.b  # one gradient for both
        viewed = self.c.view(WIDTH, -1) + self.d.view(WIDTH, -1)  # one storage for both
        one, two = (x @ same @ viewed @ self.e).chunk(2, 1)
        return (one @ self.a + two) * self.scale.expand(WIDTH) / WIDTH**3


def mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(WIDTH, 2 * WIDTH), nn.ReLU(), nn.Linear(2 * WIDTH, WIDTH), nn.Linear(WIDTH, 8)
    )


def cnn() -> nn.Module:
    body = nn.Sequential(
        nn.Unflatten(1, (1, 8, 16)),
        *(nn.Conv2d(1, 32, 3), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 32, 3)),
        *(nn.GroupNorm(4, 32), nn.Flatten(), nn.Linear(32 * 4 * 12, 8), nn.LayerNorm(8)),
    )
    return body.to(memory_format=torch.channels_last)


def loss_of(output: Any) -> torch.Tensor:
    if isinstance(output, dict):
        output = output["scores"][0] + output["hidden"].mean()
    return output.square().mean()  # type: ignore[no-any-return]


@dataclass
class Run:
    """One training run, and what it left."""

    module: DistributedDataParallel
    optimizer: torch.optim.Optimizer
    rank: int
    losses: list[float] = field(default_factory=list)
    born: list[list[bool]] = field(default_factory=list)
    kept: list[torch.Tensor] = field(default_factory=list)

    def x(self, step: int, rows: int = WIDTH) -> torch.Tensor:
        generator = torch.Generator().manual_seed(100 * step + self.rank)
        return torch.randn(rows, WIDTH, generator=generator)

    def backward(self, step: int, rows: int = WIDTH) -> None:
        loss = loss_of(self.module(self.x(step, rows)))
        loss.backward()  # type: ignore[no-untyped-call]
        self.losses.append(float(loss.detach()))

    def run(self, step: Step, number: int, *, is_witnessed: bool = True) -> None:
        """Run one step; of each other one the witness sees what is moved."""
        moves = Moves()
        is_witnessed = is_witnessed and number % 2 == 1
        with moves if is_witnessed else contextlib.nullcontext():
            step(self, number)
        if is_witnessed:
            self.born.append(moves.born(self.module.parameters()))
        self.optimizer.step()

    def digest(self) -> str:
        found = hashlib.sha256()
        for tensor in [*self.module.parameters(), *self.kept]:
            assert tensor.isfinite().all()
            found.update(tensor.detach().contiguous().numpy().tobytes())
        return found.hexdigest()


Step = Callable[["Run", int], None]


def plain(run: Run, step: int) -> None:
    run.optimizer.zero_grad()
    run.backward(step)


def late(run: Run, step: int) -> None:
    """Gradients are dropped between the forward pass and the backward pass."""
    loss = loss_of(run.module(run.x(step)))
    run.optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    run.losses.append(float(loss.detach()))


def clipped(run: Run, step: int) -> None:
    plain(run, step)
    run.losses.append(float(nn.utils.clip_grad_norm_(run.module.parameters(), 0.01)))


def accumulated(run: Run, step: int) -> None:
    run.optimizer.zero_grad()
    with run.module.no_sync():
        run.backward(step)
        run.backward(step + 50)
    run.backward(step + 70)


def other_batches(run: Run, step: int) -> None:
    run.optimizer.zero_grad()
    run.backward(step, rows=(WIDTH, 17, WIDTH, 1)[step % 4])


def two_forwards(run: Run, step: int) -> None:
    run.optimizer.zero_grad()
    loss = loss_of(run.module(run.x(step))) + loss_of(run.module(run.x(step + 50, 5)))
    loss.backward(retain_graph=True)  # type: ignore[no-untyped-call]
    run.losses.append(float(loss.detach()))


def penalized(run: Run, step: int) -> None:
    """Its loss has the gradients of another backward pass in it."""
    run.optimizer.zero_grad()
    x = run.x(step).requires_grad_()
    output = run.module(x)
    (of_x,) = torch.autograd.grad(output.sum(), x, create_graph=True)
    loss = loss_of(output) + of_x.square().mean()
    loss.backward()  # type: ignore[no-untyped-call]
    run.losses.append(float(loss.detach()))


def asked_before(run: Run, step: int) -> None:
    """Gradients that the program asks for, and keeps, are its own."""
    run.optimizer.zero_grad()
    loss = loss_of(run.module(run.x(step)))
    run.kept = list(torch.autograd.grad(loss, list(run.module.parameters()), retain_graph=True))
    loss.backward()  # type: ignore[no-untyped-call]
    run.losses.append(float(sum(kept.sum() for kept in run.kept)))


@dataclass(frozen=True)
class Case:
    """One script.

    born_from: the witness's look from which on all gradients that are not small are born; None: not
    all are. why: a part of what describe() says at the end. is_born: some are. is_witnessed: the
    witness may look: while it does, autograd adds gradients up in other memory.
    """

    model: Callable[[], nn.Module] = mlp
    step: Step = plain
    modes: dict[str, bool] = field(default_factory=dict)
    hook: Any = None
    born_from: int | None = 1
    why: str = ""
    is_born: bool = True
    is_witnessed: bool = True


STATIC = {"static_graph": True}
CASES = {
    "mlp": Case(),
    "cnn": Case(cnn),
    "lstm": Case(Lstm),
    "gpt": Case(Gpt),
    "tangled": Case(Tangled, born_from=None),
    "static graph": Case(modes=STATIC, born_from=2),
    "fp16": Case(hook=default_hooks.fp16_compress_hook),
    "dropped late": Case(step=late),
    "clipped": Case(step=clipped),
    "no_sync": Case(step=accumulated, born_from=None, is_born=False),
    "other batches": Case(step=other_batches),
    "two forwards": Case(step=two_forwards),
    "penalty": Case(step=penalized, born_from=None, is_witnessed=False),
    "checkpoint": Case(lambda: Checkpointed(is_reentrant=False)),
    "reentrant checkpoint": Case(lambda: Checkpointed(is_reentrant=True), born_from=None),
    "static reentrant": Case(lambda: Checkpointed(is_reentrant=True), modes=STATIC, born_from=None),
    "asked before": Case(step=asked_before),
}
