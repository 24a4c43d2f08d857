"""The models of the demo, without buffers: all their traffic is gradients."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


class DigitNet(nn.Module):
    """A small CNN: (N, 1, 8, 8) images to (N, 10) logits; 151,306 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 32, kernel_size=3, padding=1),
            nn.ReLU(),
            nn.Conv2d(32, 64, kernel_size=3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(64 * 4 * 4, 128),
            nn.ReLU(),
            nn.Linear(128, 10),
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.layers(images)
        return logits


class WidePerceptron(nn.Module):
    """Three layers: (N, 1, 8, 8) images to (N, 10) logits; 17.1 million parameters, 68 MB.

    Many weights for the arithmetic of a step: communication is a large part of the step.
    """

    def __init__(self) -> None:
        super().__init__()
        width = 4096
        self.layers = nn.Sequential(
            nn.Flatten(),
            nn.Linear(64, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, 10),
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.layers(images)
        return logits


class Block(nn.Module):
    """Pre-norm transformer block: causal self-attention, then a two-layer perceptron."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_attention = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm_mlp = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(self.norm_attention(x)).view(batch, length, 3, self.heads, -1)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        out: torch.Tensor = x + self.mlp(self.norm_mlp(x))
        return out


class CharTransformer(nn.Module):
    """A character-level language model: (N, T) symbols to (N, T, vocabulary) logits."""

    def __init__(self, vocabulary: int, context: int) -> None:
        super().__init__()
        width = 128
        self.symbols = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(torch.randn(context, width) * 0.02)
        self.blocks = nn.Sequential(*(Block(width, heads=4) for _ in range(2)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, symbols: torch.Tensor) -> torch.Tensor:
        x = self.symbols(symbols) + self.positions[: symbols.shape[1]]
        logits: torch.Tensor = self.head(self.norm(self.blocks(x)))
        return logits
