"""Live blocks into a bucket and back, against a mask of single weights."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from graph_analysis.plan import LiveBlocks
from rdmatensor._plan.live import LivePart

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.complex64, torch.complex128)


def mask_of(shape: tuple[int, ...], block: tuple[int, int], live: set[int]) -> torch.Tensor:
    rows = shape[0] if shape else 1
    columns = math.prod(shape[1:])
    mask = torch.zeros(rows, columns, dtype=torch.bool)
    wide = -(-columns // block[1])
    for row, column in itertools.product(range(rows), range(columns)):
        mask[row, column] = row // block[0] * wide + column // block[1] in live
    return mask.view(shape)


def strides_in(order: list[int], shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides of a dense tensor whose dimensions lie in this order, the last inmost."""
    strides, step = [0] * len(shape), 1
    for dim in reversed(order):
        strides[dim] = step
        step *= shape[dim]
    return tuple(strides)


@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_live_blocks_go_out_in_the_order_of_memory_and_come_back(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 12), max_size=4)))
    strides = strides_in(data.draw(st.permutations(range(len(shape)))), shape)
    dtype = data.draw(st.sampled_from(DTYPES))
    block = data.draw(st.sampled_from([(1, 1), (1, 4), (2, 2), (3, 5), (1, 16), (16, 16)]))
    rows, columns = (shape[0] if shape else 1), math.prod(shape[1:])
    count = -(-rows // block[0]) * -(-columns // block[1])
    live = data.draw(st.sets(st.integers(0, count - 1)))
    alignment = data.draw(st.sampled_from([1, 8, 64]))
    like = torch.empty(shape, dtype=dtype)
    part = LivePart(like, strides, LiveBlocks("g", block, tuple(sorted(live))), alignment)
    mask = mask_of(shape, block, live)
    assert part.count == int(mask.sum())

    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 9)))
    values = torch.randn(shape, dtype=dtype, generator=generator)
    grad = laid_out(values, strides, data.draw(st.sampled_from(["planned", "offset", "other"])))
    sent = torch.full((part.count,), 7.0, dtype=dtype)
    part.gather(grad, sent)
    in_memory = [range(size) for size in shape]
    places = sorted(
        itertools.product(*in_memory),
        key=lambda at: sum(i * step for i, step in zip(at, strides, strict=True)),
    )
    wanted: list[Any] = [values[at] for at in places if mask[at]]
    assert torch.equal(sent, torch.stack(wanted) if wanted else sent[:0])

    sent.mul_(2)
    grad.fill_(float("nan"))
    part.scatter(sent, grad)
    assert torch.equal(grad, torch.where(mask, 2 * values, torch.zeros_like(values)))


def laid_out(values: torch.Tensor, strides: tuple[int, ...], how: str) -> torch.Tensor:
    """Return the values as planned, not at the start of their storage, or in another order."""
    if how == "other":
        return values.clone().contiguous()
    whole = torch.zeros(values.numel() + 1, dtype=values.dtype)
    grad = whole.as_strided(values.shape, strides, 1 if how == "offset" else 0)
    return grad.copy_(values)


@pytest.mark.parametrize(
    ("block", "columns", "pieces"), [((1, 16), 64, 4 * 3), ((1, 2), 64, 3), ((1, 1), 63, 3)]
)
def test_runs_of_live_weights_move_in_wide_pieces(
    block: tuple[int, int], columns: int, pieces: int
) -> None:
    """Blocks 0, 2 and 7 of float32: four, two or one at a time."""
    like = torch.empty(4, columns)
    part = LivePart(like, tuple(like.stride()), LiveBlocks("g", block, (0, 2, 7)), 64)
    assert part.count == 3 * block[0] * block[1]
    assert len(part._index) == pieces
