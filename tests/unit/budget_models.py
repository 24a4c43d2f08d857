"""Models with saved tensors of known kinds, for test_budget.py."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn


class Mlp(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(self, x: torch.Tensor) -> Any:
        return self.second(nn.functional.gelu(self.first(x)))


class Block(nn.Module):
    """A transformer's block, with dropout."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp, self.drop = Mlp(width, 4 * width), nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> Any:
        batch, length, width = x.shape
        parts = [
            part.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for part in self.qkv(self.before(x)).chunk(3, -1)
        ]
        mixed = nn.functional.scaled_dot_product_attention(*parts, is_causal=True)
        x = x + self.drop(self.out(mixed.transpose(1, 2).reshape(batch, length, width)))
        return x + self.drop(self.mlp(self.after(x)))


class Gpt(nn.Module):
    """Tied embedding and head."""

    def __init__(self, width: int = 64, blocks: int = 4) -> None:
        super().__init__()
        self.embed = nn.Embedding(256, width)
        self.blocks = nn.ModuleList(Block(width, 4) for _ in range(blocks))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 256, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> Any:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.convs = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1),
            nn.BatchNorm2d(channels),
            nn.ReLU(inplace=True),
            nn.Conv2d(channels, channels, 3, padding=1),
            nn.BatchNorm2d(channels),
        )

    def forward(self, x: torch.Tensor) -> Any:
        return torch.relu(x + self.convs(x))


class Resnet(nn.Module):
    def __init__(self, channels: int = 16) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, channels, 3, padding=1), nn.ReLU(inplace=True))
        self.blocks = nn.Sequential(*(Residual(channels) for _ in range(4)))
        self.head = nn.Linear(channels, 10)

    def forward(self, x: torch.Tensor) -> Any:
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(64, 32)
        self.layers = nn.ModuleList(nn.LSTM(32, 32, batch_first=True) for _ in range(3))
        self.head = nn.Linear(32, 64)

    def forward(self, tokens: torch.Tensor) -> Any:
        x = self.embed(tokens)
        for layer in self.layers:
            x, _ = layer(x)
        return self.head(x)


@dataclass
class Case:
    model: Any
    inputs: tuple[torch.Tensor, ...]
    loss_fn: Callable[..., torch.Tensor]


def next_token(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def squares(output: torch.Tensor, *_: object) -> torch.Tensor:
    return output.square().mean()


def make(kind: str) -> Case:
    torch.manual_seed(0)
    if kind == "gpt":
        return Case(Gpt(), (torch.randint(0, 256, (16, 64)),), next_token)
    if kind == "resnet":
        return Case(Resnet(), (torch.randn(8, 3, 32, 32),), squares)
    if kind == "lstm":
        return Case(Recurrent(), (torch.randint(0, 64, (16, 32)),), next_token)
    blocks = [
        nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU()) for _ in range(6)
    ]
    return Case(nn.Sequential(*blocks), (torch.randn(2048, 64),), squares)


KINDS = ("mlp", "gpt", "resnet", "lstm")
