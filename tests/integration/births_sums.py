"""Scripts with other sums: hooks that keep them, or give others back; a pass for each output."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from births_cases import Case, Run, loss_of, mlp
from births_surprises import SHOWN, nodes
from torch import nn


class Twins(nn.Module):
    """Two outputs, of parameters of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = mlp(), mlp()

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.one(x), self.other(x)


def looking_at_buckets(run: Run, step: int) -> None:
    """As births_surprises.looking(), at what a communication hook has kept: buckets or futures."""
    _look_at_kept(run, step, [])


def looking_at_copies(run: Run, step: int) -> None:
    """As looking_at_buckets(), but the hook gives copies back, so that the reducer has no views.

    The program has as many instead.
    """
    views = [p.grad.view_as(p.grad) for p in run.module.parameters() if p.grad is not None]
    _look_at_kept(run, step, views)


def _look_at_kept(run: Run, step: int, views: list[torch.Tensor]) -> None:
    if step == 0:
        _kept.clear()
    run.optimizer.zero_grad()
    loss = loss_of(run.module(run.x(step)))
    found: list[float] = []
    old = [*views, *_kept]

    def look(_: object) -> None:
        for one in old:
            shown = one if isinstance(one, torch.Tensor) else one.value()
            found.append(float(shown.sum()))

    for node in nodes(loss.grad_fn):
        if node.name() == "TBackward0":
            node.register_prehook(look)
    _kept.clear()
    loss.backward()  # type: ignore[no-untyped-call]
    run.losses += [float(loss.detach()), *found]


_kept: list[Any] = []  # by the hooks below, in the pass before


def _sum(group: Any, bucket: dist.GradBucket, shown: Callable[[torch.Tensor], Any]) -> Any:
    work = dist.all_reduce(bucket.buffer(), group=group, async_op=True)
    future = work.get_future()  # type: ignore[union-attr]
    return future.then(lambda done: shown(done.value()[0]))


def keeping_hook(group: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """A communication hook that keeps what was sent."""
    _kept.append(bucket.buffer())
    return _sum(group, bucket, lambda flat: flat)  # type: ignore[no-any-return]


def copying_hook(group: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """A communication hook that keeps what was sent, and gives another tensor back."""
    _kept.append(bucket.buffer())
    return _sum(group, bucket, torch.clone)  # type: ignore[no-any-return]


def future_hook(group: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """A communication hook that keeps the future, which shows the bucket."""
    _kept.append(_sum(group, bucket, lambda flat: flat))
    return _kept[-1]  # type: ignore[no-any-return]


for _hook in (keeping_hook, copying_hook, future_hook):
    _hook.__annotations__ = {}  # which torch would want to be no words


def parting(of_steps: Callable[[int], bool]) -> Callable[[Run, int], None]:
    """Return a step with a backward pass for each output; in other steps one is for both."""

    def step(run: Run, number: int) -> None:
        run.optimizer.zero_grad()
        losses = [loss_of(output) for output in run.module(run.x(number))]
        for loss in losses if of_steps(number) else [sum(losses)]:
            loss.backward()
        run.losses += [float(loss.detach()) for loss in losses]

    return step


ELSEWHERE = "gave another tensor back"
PARTED = "brought some gradients only"
SUMS = {
    "looking at buckets": Case(
        step=looking_at_buckets, hook=keeping_hook, born_from=None, why=SHOWN, is_born=False
    ),
    "looking at copies": Case(
        step=looking_at_copies, hook=copying_hook, born_from=None, why=ELSEWHERE, is_born=False
    ),
    "looking at futures": Case(
        step=looking_at_buckets, hook=future_hook, born_from=None, why=SHOWN, is_born=False
    ),
    "parted": Case(Twins, parting(lambda _: True), born_from=None, why=PARTED, is_born=False),
    "parted at first": Case(Twins, parting(lambda step: step < 4), born_from=3),
    "parted later": Case(Twins, parting(lambda step: step > 4), born_from=None, why=PARTED),
}
