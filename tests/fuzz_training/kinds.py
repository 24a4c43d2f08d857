"""The kinds of pieces that a random model is made of, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrizations

from tests.fuzz_training import layers, pieces
from tests.fuzz_training.layers import Applied, Convolved, Embedded, Recurrent, Typed

# Drawn less often than the others: what the plan refuses, and what takes long.
RARE = frozenset({"sparse", "branches", "complex", "large", "lstm", "gru", "rnn", "orthogonal"})


def _sequences(width: int) -> Iterator[tuple[str, Callable[[], nn.Module]]]:
    for kind in (nn.LSTM, nn.GRU, nn.RNN):
        yield (
            kind.__name__.lower(),
            lambda kind=kind: Recurrent(kind(width, width, batch_first=True)),
        )


def _applied(width: int) -> Iterator[tuple[str, Callable[[], nn.Module]]]:
    def linear(**options: Any) -> nn.Linear:
        return nn.Linear(width, width, **options)

    made: dict[str, Callable[[], nn.Module]] = {
        "linear": linear,
        "no_bias": lambda: linear(bias=False),
        "mlp": lambda: nn.Sequential(linear(), nn.ReLU(inplace=True), nn.Dropout(0.2), linear()),
        "layer_norm": lambda: nn.LayerNorm(width),
        "prelu": nn.PReLU,
        "weight_norm": lambda: parametrizations.weight_norm(linear()),
        "spectral_norm": lambda: parametrizations.spectral_norm(linear()),
        "orthogonal": lambda: parametrizations.orthogonal(linear()),
        "encoder": lambda: nn.TransformerEncoderLayer(
            width, 2, 2 * width, dropout=0.0, batch_first=True
        ),
    }
    for name, make in made.items():
        yield name, lambda make=make: Applied(make())


def kinds(width: int) -> dict[str, Callable[[], nn.Module]]:
    """Return what makes each kind of piece."""
    of_parameters = (
        "Positions WholePositions Pooled LargePooled AddedViews SameGradient KeepsGradient Chunks "
        "Stacked Joined Sliced Tied Twice Scalars Expanded Frozen Complex Permuted OneStorage "
        "Branches"
    )
    of_layers = "Embedded Bag TiedEmbedding Convolved1d Attending Heads Normed Averaged Large"
    plain = [getattr(pieces, name) for name in of_parameters.split()]
    plain += [getattr(layers, name) for name in of_layers.split()]
    made: dict[str, Callable[[], nn.Module]] = {
        kind.__name__.lower(): lambda kind=kind: kind(width) for kind in plain
    }
    made["sparse"] = lambda: Embedded(width, sparse=True)
    made["padded"] = lambda: Embedded(width, padding_idx=0, scale_grad_by_freq=True)
    made["channels_last"] = lambda: Convolved(width, torch.channels_last)
    made["conv"] = lambda: Convolved(width, torch.contiguous_format)
    made["bf16"] = lambda: Typed(width, torch.bfloat16)
    made["fp16"] = lambda: Typed(width, torch.float16)
    made["fp64"] = lambda: Typed(width, torch.float64)
    made.update(_sequences(width))
    made.update(_applied(width))
    return made
