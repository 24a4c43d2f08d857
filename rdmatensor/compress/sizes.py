"""What tensors take in memory and in a file once they are compressed."""

from __future__ import annotations

import torch

from rdmatensor.compress.policy import Item

SCALE_BYTES = 4  # float32, of a group or a cluster


def dense_bytes(model: torch.nn.Module) -> int:
    """Return the bytes of all parameters, shared ones once."""
    return sum(one.numel() * one.element_size() for one in model.parameters())


def item_bytes(item: Item, degree: float, *, is_quantized: bool) -> int:
    """Return the bytes of a tensor of which a share of blocks is zero.

    Live blocks lie one after another, with a bit for each block that shows which they are.
    """
    rows, columns = item.matrix
    weights, extra = rows * columns, 0
    if item.prune is not None and degree > 0:
        high, wide = -(-rows // item.prune.block[0]), -(-columns // item.prune.block[1])
        alive = high * wide - round(degree * high * wide)
        weights = min(weights, alive * item.prune.block[0] * item.prune.block[1])
        extra = -(-high * wide // 8)
    return extra + _values_bytes(item, weights, is_quantized=is_quantized)


def _values_bytes(item: Item, weights: int, *, is_quantized: bool) -> int:
    if item.quantize is None or not is_quantized:
        return weights * item.tensor.element_size()
    rows, columns = item.matrix
    if item.quantize.points == "clustered":
        scales = 1 << item.quantize.bits
    else:
        scales = rows * -(-columns // min(item.quantize.group or columns, columns))
    return -(-weights * item.quantize.bits // 8) + scales * SCALE_BYTES
