"""The arithmetic of the lossy wires in numpy, bit by bit, on whole tensors of all ranks."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
MOST = np.float32(127)
LARGEST_SCALE = np.float32(65504)


def scale_of(values: Floats) -> np.float32:
    """Return a block's scale: the largest magnitude / 127, rounded up to a half."""
    exact = np.float32(np.max(np.abs(values)) / MOST)
    with warnings.catch_warnings():  # beyond the largest half
        warnings.simplefilter("ignore")
        half = np.float16(exact)
    if np.float32(half) < exact:
        half = np.nextafter(half, np.float16(np.inf))
    return np.float32(min(np.float32(half), LARGEST_SCALE))


def pass_q8(values: Floats) -> Floats:
    """Return what decoding gives of an encoded block."""
    if not np.isfinite(values).all():
        return np.full_like(values, np.nan)
    scale = scale_of(values)
    inverse = np.float32(1) / scale if scale > 0 else np.float32(0)
    codes = np.clip(np.rint(values * inverse), -MOST, MOST) + np.float32(0)  # no -0
    return (codes * scale).astype(np.float32)


def pass_bf16(values: Floats) -> Floats:
    """Return the values, rounded to nearest even at 16 bits."""
    bits = values.view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    found = rounded.astype(np.uint32).view(np.float32)
    return np.where(np.isnan(values), np.float32(np.nan), found).astype(np.float32)


@dataclass
class Oracle:
    """All ranks of one collective that is called again and again.

    residuals: of each rank, or None where the ranks keep none.
    """

    wire: str
    block: int
    is_average: bool
    residuals: list[Floats] | None

    def encoded(self, values: Floats, rank: int, at: slice) -> Floats:
        """Return what others decode of a rank's block; its residual changes."""
        total = values.copy()
        if self.residuals is not None:
            total = total + self.residuals[rank][at]
        got = pass_q8(total) if self.wire == "q8" else pass_bf16(total)
        if self.residuals is not None:
            with np.errstate(invalid="ignore"):
                lost = total - got
            self.residuals[rank][at] = np.where(np.isfinite(got), lost, np.float32(0))
        return got

    def summed(self, sent: Sequence[Floats], at: slice, owner: int) -> Floats:
        """Return the sum of a block, in rank order, as its owner has it."""
        total: Floats | None = None
        for rank, values in enumerate(sent):
            part = values[at] if rank == owner else self.encoded(values[at], rank, at)
            total = part.copy() if total is None else (total + part).astype(np.float32)
        assert total is not None
        return (total / np.float32(len(sent))).astype(np.float32) if self.is_average else total

    def all_reduce(self, sent: Sequence[Floats]) -> Floats:
        """Return what every rank gets."""
        count, world = len(sent[0]), len(sent)
        blocks = -(-count // self.block)
        owners = [
            rank for rank in range(world) for _ in range(blocks // world + (rank < blocks % world))
        ]
        found = np.empty(count, np.float32)
        for number, owner in enumerate(owners):
            at = slice(number * self.block, min((number + 1) * self.block, count))
            found[at] = self.encoded(self.summed(sent, at, owner), owner, at)
        return found

    def reduce_scatter(self, sent: Sequence[Floats]) -> list[Floats]:
        """Return what each rank gets."""
        count = len(sent[0]) // len(sent)
        found = []
        for owner in range(len(sent)):
            part = np.empty(count, np.float32)
            for first in range(0, count, self.block):
                last = min(first + self.block, count)
                at = slice(owner * count + first, owner * count + last)
                part[first:last] = self.summed(sent, at, owner)
            found.append(part)
        return found

    def all_gather(self, sent: Sequence[Floats]) -> Floats:
        """Return what every rank gets."""
        found = []
        for rank, values in enumerate(sent):
            for first in range(0, len(values), self.block):
                at = slice(first, min(first + self.block, len(values)))
                found.append(self.encoded(values[at], rank, at))
        return np.concatenate(found) if found else np.empty(0, np.float32)
