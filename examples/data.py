"""The two data sets of the demo: real, and already on the machine.

Digits: the 1,797 handwritten digits that scikit-learn ships inside its package.
Source text: modules of the running Python's own standard library, character by character.
Both are split the same way on every rank, so a run is decided by its seed alone.
"""

from __future__ import annotations

import math
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch.utils.data import Dataset, TensorDataset

SPLIT_SEED = 20
HELD_OUT_SHARE = 0.2
TEXT_HELD_OUT_SHARE = 0.1
CONTEXT_CHARS = 64

# Present in every supported Python (3.10 to 3.13); together about 430,000 characters.
TEXT_MODULES = (
    "argparse",
    "ast",
    "base64",
    "bdb",
    "calendar",
    "cmd",
    "code",
    "configparser",
    "contextlib",
    "copy",
    "csv",
    "dataclasses",
    "fnmatch",
    "functools",
    "heapq",
)

Sample = tuple[torch.Tensor, ...]  # (input, target)


def digits() -> tuple[TensorDataset, TensorDataset]:
    """Return (train, held out); images (N, 1, 8, 8) float32 in 0..1, labels (N,) int64."""
    bunch = load_digits()
    images = torch.from_numpy(bunch.images).to(torch.float32).div_(16.0).unsqueeze(1)
    labels = torch.from_numpy(bunch.target).to(torch.int64)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(SPLIT_SEED))
    held_out = int(len(labels) * HELD_OUT_SHARE)
    test, train = order[:held_out], order[held_out:]
    return TensorDataset(images[train], labels[train]), TensorDataset(images[test], labels[test])


class CharWindows(Dataset[Sample]):
    """Consecutive windows of a text: inputs (T,) and the same shifted by one, both int64."""

    def __init__(self, symbols: torch.Tensor) -> None:
        self._symbols = symbols

    def __len__(self) -> int:
        return (len(self._symbols) - 1) // CONTEXT_CHARS

    def __getitem__(self, index: int) -> Sample:
        start = index * CONTEXT_CHARS
        window = self._symbols[start : start + CONTEXT_CHARS + 1].to(torch.int64)
        return window[:-1], window[1:]


@dataclass(frozen=True, slots=True)
class SourceText:
    """The text as windows, with what a model that learns nothing about order would reach."""

    train: CharWindows
    held_out: CharWindows
    vocabulary: int
    frequency_loss: float  # nats per character of the held-out part under letter frequencies


def source_text(max_train_chars: int) -> SourceText:
    """Read TEXT_MODULES in order; train on at most max_train_chars of the first nine tenths."""
    lib = Path(sysconfig.get_path("stdlib"))
    text = "".join((lib / f"{name}.py").read_text(encoding="utf-8") for name in TEXT_MODULES)
    alphabet = {char: index for index, char in enumerate(sorted(set(text)))}
    symbols = torch.tensor([alphabet[char] for char in text], dtype=torch.uint8)
    cut = int(len(symbols) * (1.0 - TEXT_HELD_OUT_SHARE))
    train, held_out = symbols[: min(cut, max_train_chars)], symbols[cut:]
    return SourceText(
        train=CharWindows(train),
        held_out=CharWindows(held_out),
        vocabulary=len(alphabet),
        frequency_loss=_cross_entropy(train, held_out, len(alphabet)),
    )


def _cross_entropy(train: torch.Tensor, held_out: torch.Tensor, vocabulary: int) -> float:
    """Nats per symbol of held_out, coded with the (add-one) frequencies of train."""
    counts: list[int] = torch.bincount(train, minlength=vocabulary).tolist()
    total = sum(counts) + vocabulary
    nats = [-math.log((count + 1) / total) for count in counts]
    return math.fsum(nats[int(symbol)] for symbol in held_out.tolist()) / len(held_out)
