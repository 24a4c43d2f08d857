"""Scripts that look at, keep or move what lies where a gradient is born: nothing may change."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from births_cases import WIDTH, Case, Run, loss_of, mlp, plain
from torch import nn

import rdmatensor.torch


class Fails(torch.autograd.Function):
    """Nothing, until its backward is to raise."""

    is_failing = False

    @staticmethod
    def forward(_ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(_ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        if Fails.is_failing:
            raise ArithmeticError("as the test wants it")
        return grad


class Swapped(torch.autograd.Function):
    """x @ w, whose backward makes two gradients of one size, now in this order, now in that."""

    is_swapped = False

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, w = ctx.saved_tensors
        if Swapped.is_swapped:
            of_w = x.t() @ grad
            return grad @ w.t(), of_w
        of_x = grad @ w.t()
        return of_x, x.t() @ grad


class Keeps(torch.autograd.Function):
    """x @ w, whose backward may keep the gradient of w, or something that shows it."""

    keep: Callable[[torch.Tensor], object] | None = None

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, w = ctx.saved_tensors
        of_w = x.t() @ grad
        if Keeps.keep is not None:
            Keeps.keep(of_w)
        return grad @ w.t(), of_w


class Square(nn.Module):
    """Two layers around the one whose backward is not always the same."""

    def __init__(self, function: Any = Swapped) -> None:
        super().__init__()
        self.function = function
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 8)
        self.weight = nn.Parameter(torch.rand(WIDTH, WIDTH) / WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.first(x)
        hidden = self.function.apply(hidden, self.weight)
        return self.last(hidden)  # type: ignore[no-any-return]


class Deep(nn.Module):
    """Its output lies deeper than Python calls itself."""

    def __init__(self) -> None:
        super().__init__()
        self.body = mlp()

    def forward(self, x: torch.Tensor) -> object:
        found: object = self.body(x)
        for _ in range(20_000):
            found = [found]
        return found


def failing() -> nn.Module:
    class Last(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return Fails.apply(x)  # type: ignore[no-any-return, no-untyped-call]

    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 8), Last())


def large(run: Run) -> list[nn.Parameter]:
    return [p for p in run.module.parameters() if p.nbytes >= WIDTH * WIDTH * 4]


def nodes(root: Any) -> Iterator[Any]:
    """Walk through a graph of autograd, each node once."""
    seen, waiting = set(), [root]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        yield node
        waiting += [following for following, _ in node.next_functions]


def accumulator(parameter: torch.Tensor) -> Any:
    return parameter.expand_as(parameter).grad_fn.next_functions[0][0]  # type: ignore[union-attr]


def keeping(run: Run, step: int) -> None:
    """A hook keeps gradients of one step, or their memory, as they are before the sum."""
    hooks = []
    if step == 5:
        first, second, *_ = run.module.parameters()
        hooks = [
            first.register_hook(run.kept.append),
            second.register_hook(lambda grad: run.kept.append(grad.detach())),
        ]
    plain(run, step)
    for hook in hooks:
        hook.remove()


def keeping_local(run: Run, step: int) -> None:
    """The program keeps gradients of a pass that was not summed."""
    run.optimizer.zero_grad()
    if step == 5:
        with run.module.no_sync():
            run.backward(step)
        run.kept = [p.grad for p in run.module.parameters() if p.grad is not None]
        run.optimizer.zero_grad()
    run.backward(step)


def moved(run: Run, step: int) -> None:
    """A bucket is given other memory."""
    plain(run, step)
    if step == 4:
        grad = next(run.module.parameters()).grad
        assert grad is not None
        grad.share_memory_()


def looking_weakly(run: Run, step: int) -> None:
    """A weak reference finds the last gradient when the new one is made, but not yet there."""
    grad = run.module.module.weight.grad
    weak = weakref.ref(grad) if step > 4 and grad is not None else None
    del grad

    def look(_: torch.Tensor) -> None:
        last = weak() if weak is not None else None
        run.kept += [last.detach().clone()] if last is not None else []

    Keeps.keep = look
    plain(run, step)
    Keeps.keep = None


def sharing(run: Run, step: int) -> None:
    """A bucket is given other memory while a gradient that was just made lies in the old one.

    What it had in the arena is anybody's then.
    """

    def share(_: torch.Tensor) -> None:
        grad = run.module.module.last.bias.grad
        assert grad is not None
        grad.share_memory_()
        count = grad.untyped_storage().nbytes() // grad.element_size()
        with rdmatensor.torch.registered_memory():
            run.kept += [torch.full((count,), 3.0) for _ in range(4)]

    Keeps.keep = share if step == 6 else None
    plain(run, step)
    Keeps.keep = None


def raising(run: Run, step: int) -> None:
    run.optimizer.zero_grad()
    if step == 5:
        Fails.is_failing = True
        with contextlib.suppress(ArithmeticError):
            run.backward(step)
        Fails.is_failing = False
        run.kept = [torch.full((WIDTH, WIDTH), float(n)) for n in range(8)]  # of gradients' sizes
    run.backward(step)


def remembering(run: Run, step: int) -> None:
    """Gradients of the step before are looked at again until new ones come."""
    old = [p.grad if step > 5 else None for p in run.module.parameters()]
    hooks = [
        parameter.register_hook(lambda grad, last=last: grad + last / 8)
        for parameter, last in zip(run.module.parameters(), old, strict=True)
        if last is not None
    ]
    plain(run, step)
    for hook in hooks:
        hook.remove()


def swapping(run: Run, step: int) -> None:
    Swapped.is_swapped = step >= 6
    plain(run, step)


def keeping_in(kind: str) -> Callable[[Run, int], None]:
    """Return a step in which a backward function keeps a gradient, or what shows it."""
    shows: dict[str, Callable[[torch.Tensor], Any]] = {
        "tensor": lambda grad: grad,
        "alias": lambda grad: grad.detach()[1:],
        "numpy": lambda grad: grad.detach().numpy(),
        "dlpack": lambda grad: torch.from_dlpack(grad.detach()),
        "lazy clone": torch._lazy_clone,  # in memory of both until one is written
    }

    def step(run: Run, number: int) -> None:
        shown: list[Any] = []
        Keeps.keep = (lambda grad: shown.append(shows[kind](grad))) if number == 6 else None
        plain(run, number)
        Keeps.keep = None
        run.kept += [torch.as_tensor(one) for one in shown]

    return step


def looking(run: Run, step: int) -> None:
    """What shows the last gradients is looked at when the new ones are made, but not yet there."""
    shows: tuple[Callable[[torch.Tensor], Any], ...] = (
        lambda grad: grad.data,
        lambda grad: grad.detach().numpy(),
        lambda grad: grad[1:],
        lambda grad: torch.empty(0).set_(grad.untyped_storage()),  # of the whole bucket
    )
    grads = [p.grad for p in large(run) if p.grad is not None and step > 3]
    old = [shows[step % len(shows)](grad) for grad in grads]
    del grads
    run.optimizer.zero_grad()
    loss = loss_of(run.module(run.x(step)))
    found: list[float] = []
    for node in nodes(loss.grad_fn):
        if node.name() == "TBackward0":
            node.register_prehook(lambda _: found.extend(float(one.sum()) for one in old))
    loss.backward()  # type: ignore[no-untyped-call]
    run.losses += [float(loss.detach()), *found]


def hooked(run: Run, step: int) -> None:
    """A hook on the parameter's own node, which runs last, looks at what came there."""
    found: list[float] = []
    hooks = [
        accumulator(parameter).register_hook(
            lambda _, came: found.append(float(came[0].abs().sum()))
        )
        for parameter in large(run)
        if step > 3
    ]
    plain(run, step)
    for hook in hooks:
        hook.remove()
    run.losses += found


def hooked_after(run: Run, step: int) -> None:
    """A hook after accumulation keeps gradients of one step."""
    hooks = []
    if step == 5:
        hooks = [
            parameter.register_post_accumulate_grad_hook(
                lambda parameter: run.kept.append(parameter.grad)  # type: ignore[arg-type]
            )
            for parameter in large(run)
        ]
    plain(run, step)
    for hook in hooks:
        hook.remove()


def twice(run: Run, step: int) -> None:
    """A second backward pass of one forward pass: nothing of it is summed, and all is kept."""
    run.optimizer.zero_grad()
    loss = loss_of(run.module(run.x(step)))
    loss.backward(retain_graph=True)  # type: ignore[no-untyped-call]
    run.losses.append(float(loss.detach()))
    if step == 0:
        return
    summed = [p.grad.clone() for p in run.module.parameters() if p.grad is not None]
    run.optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    for parameter, grad in zip(run.module.parameters(), summed, strict=True):
        assert parameter.grad is not None
        run.kept.append(parameter.grad)
        parameter.grad = grad


def retaining(run: Run, step: int) -> None:
    """Gradients of what is between are kept."""
    run.optimizer.zero_grad()
    output = run.module(run.x(step))
    output.retain_grad()
    loss = loss_of(output)
    loss.backward()  # type: ignore[no-untyped-call]
    run.kept = [output.grad]
    run.losses.append(float(loss.detach()))


def nested(run: Run, step: int) -> None:
    run.optimizer.zero_grad()
    output = run.module(run.x(step))
    while isinstance(output, list):
        output = output[0]
    loss = loss_of(output)
    loss.backward()  # type: ignore[no-untyped-call]
    run.losses.append(float(loss.detach()))


OTHERWISE = "otherwise than in the passes before"
SHOWN = "or shows, gradients of the step before"
HOOKS = "hooks"
SURPRISES = {
    "keeping": Case(step=keeping, born_from=None, why=HOOKS),
    "keeping local": Case(step=keeping_local, born_from=None),
    "remembering": Case(step=remembering, born_from=None, why=HOOKS),
    "moved": Case(step=moved, born_from=None, why="other memory"),
    "looking weakly": Case(lambda: Square(Keeps), looking_weakly, born_from=None, why=SHOWN),
    "sharing": Case(lambda: Square(Keeps), sharing, born_from=None, why="other memory"),
    "raising": Case(failing, raising),
    "swapping": Case(Square, swapping, born_from=None, why=OTHERWISE),
    "looking": Case(step=looking, born_from=None, why=SHOWN),
    "hooked": Case(step=hooked, born_from=None, why=HOOKS),
    "hooked after": Case(step=hooked_after, born_from=None, why=HOOKS),
    "twice": Case(step=twice, born_from=None),
    "retaining": Case(step=retaining),
    "deep": Case(Deep, nested, born_from=None, is_born=False),
    **{
        f"keeping the {kind}": Case(
            lambda: Square(Keeps), keeping_in(kind), born_from=None, why=OTHERWISE
        )
        for kind in ("tensor", "alias", "numpy", "dlpack", "lazy clone")
    },
}
