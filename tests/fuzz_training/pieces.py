"""Pieces of random models: each maps activations (batch, length, width) to the same shape.

A piece stands for one way in which a gradient comes into being. Those here are made of parameters:
gradients that are views of what other nodes read, parts of a larger tensor, in another layout, or
written twice in one pass. layers.py has those that are made of torch's modules.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.fuzz_training.moments import slow

TOKENS = 11  # rows of each embedding
LONGEST = 5  # the longest input


def parameter(*shape: int, dtype: torch.dtype = torch.float32) -> nn.Parameter:
    """Return random numbers of a size that keeps activations near one."""
    return nn.Parameter(torch.randn(shape, dtype=dtype) * 0.4)


class Piece(nn.Module):
    """A part of a model. `uses`: a number that some pieces choose what they use by; -1: all."""

    uses = -1


class OfTokens(Piece):
    """A part that looks tokens up, too."""


class Positions(Piece):
    """The gradient of `at` is a view of the one that the projection's backward reads."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.project = nn.Linear(width, width)
        self.at = parameter(LONGEST, width)

    def forward(self, x: Tensor) -> Tensor:
        at = self.at if x.shape[1] == LONGEST else self.at[: x.shape[1]]
        return slow(self.project(x)) + at[None]


class WholePositions(Piece):
    """As Positions, with `at` before the projection in the order of gradients."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.project = nn.Linear(width, width)
        self.at = parameter(1, width)

    def forward(self, x: Tensor) -> Tensor:
        return slow(self.project(x)) + self.at[None]


class Pooled(Piece):
    """As Positions, of any input, with `at` before the projection in the order of gradients."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.project = nn.Linear(width, width)
        self.at = nn.ParameterList([parameter(width // 2, 2)])

    def forward(self, x: Tensor) -> Tensor:
        pooled = slow(self.project(x.mean((0, 1)))) + self.at[0].view(-1)
        return x + torch.tanh(pooled)


class LargePooled(Piece):
    """As Pooled, of so many bytes that the ranks write the sum to where the gradient lies."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = parameter(4096 * (1 + width))
        self.at = nn.ParameterList([parameter(2048 * (1 + width), 2)])

    def forward(self, x: Tensor) -> Tensor:
        pooled = slow(x.mean() * self.scale) + self.at[0].view(-1)
        return x + 8.0 * torch.tanh(pooled).mean()


class AddedViews(Piece):
    """Two parameters of one sum: the gradient of one is a view of the other's."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.a = parameter(width, width)
        self.b = parameter(width * width)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.tanh(slow(x @ (self.a + slow(self.b.view_as(self.a)))))


class Same(torch.autograd.Function):
    """The sum of two tensors, whose gradients are one tensor."""

    @staticmethod
    def forward(_ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        return a + b

    @staticmethod
    def backward(_ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        return grads[0], grads[0]


class SameGradient(Piece):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.a, self.b = parameter(width, width), parameter(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.tanh(x @ Same.apply(self.a, self.b))


class Keeps(torch.autograd.Function):
    """Backward keeps what it made, and changes it in the next pass."""

    kept: list[Tensor] = []  # noqa: RUF012

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return x * weight

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        made = (grads[0] * x).sum((0, 1))
        with torch.no_grad():
            for before in Keeps.kept:
                made = made + 0.01 * before
        Keeps.kept[:] = [made]
        return grads[0] * weight, made


class KeepsGradient(Piece):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = parameter(width)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(Keeps.apply(x, self.weight))


class Chunks(Piece):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.all = nn.Linear(width, 3 * width)

    def forward(self, x: Tensor) -> Tensor:
        a, b, c = slow(self.all(x)).chunk(3, dim=-1)
        return x + torch.sigmoid(a) * torch.tanh(b) + c


class Stacked(Piece):
    """Weights in one parameter, taken out one by one."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weights = parameter(3, width, width)

    def forward(self, x: Tensor) -> Tensor:
        first, second, third = self.weights.unbind(0)
        return torch.tanh(torch.tanh(x @ first) @ second) @ third.t()


class Joined(Piece):
    """Parameters joined to one weight."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.a, self.b = parameter(width // 2, width), parameter(width - width // 2, width)
        self.biases = nn.ParameterList([parameter(1) for _ in range(width)])

    def forward(self, x: Tensor) -> Tensor:
        bias = torch.cat(list(self.biases))
        return functional.linear(x, slow(torch.cat([self.a, self.b])), slow(bias))


class Sliced(Piece):
    """Parts of a parameter, one of them used by nobody."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.rows = parameter(2 * width + 1, width)

    def forward(self, x: Tensor) -> Tensor:
        width = x.shape[-1]
        return x @ self.rows[:width] + self.rows[2 * width]


class Tied(Piece):
    """One weight for two products, one of them transposed."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.down = nn.Linear(width, width, bias=False)
        self.up = nn.Linear(width, width)
        self.up.weight = self.down.weight

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(torch.tanh(self.up(x)), self.down.weight.t())


class Twice(Piece):
    """One module that is called twice."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(width, width), nn.Tanh())

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(self.inner(x))


class Scalars(Piece):
    """Parameters without a dimension, and one without an element."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale, self.shift = parameter(), parameter()
        self.nothing = parameter(0, width)

    def forward(self, x: Tensor) -> Tensor:
        return slow(x * self.scale) + self.shift + self.nothing.sum()


class Expanded(Piece):
    """The gradient of a sum of all elements is one number, expanded."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.a, self.b = parameter(width, 3), parameter(width)

    def forward(self, x: Tensor) -> Tensor:
        return slow(x + 0.1 * self.a.sum()) + self.b.expand(x.shape).mean(1, keepdim=True)


class Frozen(Piece):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.fixed, self.trained = nn.Linear(width, width), nn.Linear(width, width)
        self.fixed.requires_grad_(requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.trained(torch.tanh(self.fixed(x)))


class Complex(Piece):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = parameter(width, dtype=torch.complex64)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.tanh((x.float().to(torch.complex64) * self.weight).real).to(x.dtype)


class Permuted(Piece):
    """A dense parameter that is not row-major."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width, width + 2).t() * 0.4)

    def forward(self, x: Tensor) -> Tensor:
        return (x @ self.weight.t())[..., : x.shape[-1]]


class OneStorage(Piece):
    """Parameters that are parts of one allocation."""

    def __init__(self, width: int) -> None:
        super().__init__()
        flat = torch.randn(2 * width * width) * 0.4
        self.a = nn.Parameter(flat[: width * width].view(width, width))
        self.b = nn.Parameter(flat[width * width :].view(width, width))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x @ self.a) @ self.b


class Branches(Piece):
    """Uses one of two modules, or both."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.ways = nn.ModuleList([nn.Linear(width, width), nn.Linear(width, width)])

    def forward(self, x: Tensor) -> Tensor:
        if self.uses >= 0:
            return x + torch.tanh(self.ways[self.uses % 2](x))
        return x + torch.tanh(self.ways[0](x)) + torch.tanh(self.ways[1](x))
