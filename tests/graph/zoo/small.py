"""A multilayer perceptron and two recurrent classifiers."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

Made = tuple[nn.Module, tuple[Tensor, ...], Callable[..., Tensor]]


class Classifying(nn.Module):
    """Token ids (B, T) to logits (B, 10) by the last state of two recurrent layers."""

    def __init__(self, recurrent: type[nn.LSTM] | type[nn.GRU], width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(1000, width)
        self.recurrent = recurrent(width, width, num_layers=2, batch_first=True)
        self.head = nn.Linear(width, 10)

    def forward(self, tokens: Tensor, _target: Tensor) -> Tensor:
        states, _ = self.recurrent(self.embedding(tokens))
        return self.head(states[:, -1])


class Perceptron(nn.Module):
    """(B, 256) to logits (B, 10)."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.ModuleList([nn.Linear(256, 512), nn.Linear(512, 512)])
        self.head = nn.Linear(512, 10)

    def forward(self, x: Tensor, _target: Tensor) -> Tensor:
        for layer in self.hidden:
            x = layer(x).relu()
        return self.head(x)


def class_loss(logits: Tensor, _: Tensor, target: Tensor) -> Tensor:
    return cross_entropy(logits, target)


def mlp() -> Made:
    return Perceptron(), (torch.randn(8, 256), torch.randint(0, 10, (8,))), class_loss


def _recurrent(kind: type[nn.LSTM] | type[nn.GRU]) -> Made:
    tokens, target = torch.randint(0, 1000, (4, 12)), torch.randint(0, 10, (4,))
    return Classifying(kind, 128), (tokens, target), class_loss


def lstm() -> Made:
    return _recurrent(nn.LSTM)


def gru() -> Made:
    return _recurrent(nn.GRU)
