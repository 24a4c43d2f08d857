"""Pieces of random models that are made of torch's layers: see pieces.py."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.fuzz_training.moments import slow
from tests.fuzz_training.pieces import TOKENS, OfTokens, Piece, parameter


class Applied(Piece):
    """A module of torch, between two residual ends."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.tanh(self.module(x))


class Embedded(OfTokens):
    def __init__(self, width: int, **options: Any) -> None:
        super().__init__()
        self.table = nn.Embedding(TOKENS, width, **options)

    def forward(self, x: Tensor, ids: Tensor) -> Tensor:
        return slow(x * 1.0) + self.table(ids)


class Bag(OfTokens):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.table = nn.EmbeddingBag(TOKENS, width, mode="sum")

    def forward(self, x: Tensor, ids: Tensor) -> Tensor:
        return slow(x * 1.0) + self.table(ids)[:, None]


class TiedEmbedding(OfTokens):
    """A table that is looked up and multiplied with."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.table = nn.Embedding(TOKENS, width)

    def forward(self, x: Tensor, ids: Tensor) -> Tensor:
        scores = functional.linear(x + self.table(ids), self.table.weight)
        return torch.softmax(scores, -1) @ self.table.weight


class Convolved(Piece):
    def __init__(self, width: int, layout: torch.memory_format) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, padding=1).to(memory_format=layout)
        self.layout = layout

    def forward(self, x: Tensor) -> Tensor:
        image = x.transpose(1, 2)[..., None].expand(-1, -1, -1, 3)
        out = self.conv(image.contiguous(memory_format=self.layout))
        return x + torch.tanh(out.mean(-1).transpose(1, 2))


class Convolved1d(Piece):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv1d(width, width, 3, padding=1, groups=2)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.tanh(self.conv(x.transpose(1, 2)).transpose(1, 2))


class Recurrent(Piece):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)[0]


class Attending(Piece):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(width, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(x, x, x, need_weights=False)[0]


class Heads(Piece):
    """Attention by hand, out of one projection."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.all, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.all(self.norm(x)).view(batch, length, 3, 2, width // 2)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(seen.transpose(1, 2).reshape(batch, length, width))


class Normed(Piece):
    """Buffers that a forward pass changes in place."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(width)

    def forward(self, x: Tensor) -> Tensor:
        flat = torch.cat([x.flatten(0, 1), -x.flatten(0, 1)])  # more than one sample of each
        return self.norm(flat)[: x.shape[0] * x.shape[1]].view_as(x)


class Averaged(Piece):
    """Buffers that a forward pass replaces, and counts in integers."""

    mean: Tensor
    calls: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = parameter(width)
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("flags", torch.zeros(3, dtype=torch.bool), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            with torch.no_grad():
                self.mean = 0.9 * self.mean + 0.1 * x.detach().mean((0, 1))
                self.calls += 1
        return (x - self.mean) * self.scale


class Typed(Piece):
    """A part in another type."""

    def __init__(self, width: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.inner = nn.Linear(width, width).to(dtype)
        self.scale = parameter(width, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        if torch.is_autocast_enabled("cpu"):
            return x * self.scale.to(x.dtype)
        return x + torch.tanh(self.inner(x.to(self.scale.dtype)) * self.scale).to(x.dtype)


class Large(Piece):
    """Enough bytes that a sum takes its time."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 24576 // width * 4), nn.Linear(98304 // width, width)
        self.at = parameter(1, 1, 98304 // width)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.tanh(self.down(torch.relu_(slow(self.up(x)) + self.at)))
