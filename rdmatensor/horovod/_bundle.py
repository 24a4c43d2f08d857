"""Tensors that travel as one, in memory of their own."""

from __future__ import annotations

from collections.abc import Sequence

import torch

import rdmatensor.torch as arena

MOST_BYTES = 64 << 10  # of a small tensor; copying a larger one costs more than a call of its own
_ALIGNMENT_BYTES = 64


def layout(counts: Sequence[int], item_bytes: int) -> tuple[list[int], int]:
    """Return where tensors of so many elements begin in one, and its length; in elements."""
    step = _ALIGNMENT_BYTES // item_bytes
    firsts, end = [], 0
    for count in counts:
        firsts.append(end)
        end += -(-count // step) * step
    return firsts, end


def is_small(tensor: torch.Tensor) -> bool:
    """Return whether a tensor travels in a bundle with others."""
    return tensor.numel() * tensor.element_size() <= MOST_BYTES


class Bundle:
    """A flat tensor for others; kept for an allreduce that is repeated."""

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        first = tensors[0]
        counts = [tensor.numel() for tensor in tensors]
        firsts, length = layout(counts, first.element_size())
        try:
            self.flat = arena.zeros(length, dtype=first.dtype)
        except torch.OutOfMemoryError:  # the data path copies it once more
            self.flat = torch.zeros(length, dtype=first.dtype)
        self._views = [
            self.flat[first : first + count].view(tensor.shape)
            for first, count, tensor in zip(firsts, counts, tensors, strict=True)
        ]
        self._tensors: list[torch.Tensor] = []

    def pack(self, tensors: list[torch.Tensor]) -> None:
        """Copy the tensors into the bundle."""
        self._tensors = tensors
        torch._foreach_copy_(self._views, tensors)

    def unpack(self) -> None:
        """Copy the bundle into the tensors."""
        torch._foreach_copy_(self._tensors, self._views)
        self._tensors = []
