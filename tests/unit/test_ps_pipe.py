"""Values between a driver and its workers: they come back as they were, or are refused."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rdmatensor import errors
from rdmatensor.ps.driving.pipe import PIECE_BYTES, Packed, Pipe, _pieces


class Slot:
    """Gives messages as a slot does; the memory is reused for the next one."""

    def __init__(self, messages: list[bytes]) -> None:
        self._messages = messages
        self._memory = np.empty(max([1, *map(len, messages)]), np.uint8)

    @contextlib.contextmanager
    def get(self, _timeout_s: float) -> Iterator[np.ndarray[Any, Any]]:
        if not self._messages:
            raise errors.PeerError("RDT_EPEER", "get", "the peer is gone")
        message = self._messages.pop(0)
        self._memory[: len(message)] = np.frombuffer(message, np.uint8)
        yield self._memory[: len(message)]
        self._memory.fill(255)


def receive(messages: list[bytes]) -> Any:
    pipe = Pipe.__new__(Pipe)
    pipe._in = Slot(messages)  # type: ignore[assignment]
    return pipe.receive()


def messages_of(value: object) -> list[bytes]:
    packed = Packed(value, "schedule")
    pieces = [piece.numpy().tobytes() for one in packed.tensors for piece in _pieces(one)]
    return [packed.head, *pieces]


DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64, torch.uint8)
SHAPES = st.lists(st.integers(0, 4), max_size=3)
TENSORS = st.builds(
    lambda shape, dtype, seed: torch.randint(
        0, 2, shape, generator=torch.Generator().manual_seed(seed)
    ).to(dtype),
    SHAPES,
    st.sampled_from(DTYPES),
    st.integers(0, 9),
)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
VALUES = st.recursive(
    SCALARS | TENSORS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=8,
)


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        is_like = type(one) is type(other) and len(one) == len(other)
        return is_like and all(map(same, one, other))
    return type(one) is type(other) and bool(one == other)


@settings(deadline=None)
@given(VALUES)
def test_values_come_back_as_they_were(value: object) -> None:
    assert same(value, receive(messages_of(value)))


@pytest.mark.parametrize("length", [0, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1])
def test_large_tensors_come_in_pieces(length: int) -> None:
    value = torch.arange(length) % 251
    messages = messages_of(value.to(torch.uint8))
    assert len(messages) == 1 + -(-length // PIECE_BYTES)
    assert torch.equal(receive(messages), value.to(torch.uint8))


HEADS = st.recursive(
    SCALARS | st.sampled_from(["float32", "tensor", "tuple", "dict"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["tensor", "tuple", "dict", "x"]), inner, max_size=2)
    ),
    max_leaves=8,
)


@settings(deadline=None, max_examples=400)
@given(st.binary(max_size=30) | HEADS.map(lambda one: json.dumps(one).encode()))
@example(b"[" * 100_000)
@example(b'[{"tensor": 0}, [["float32", [-1]]]]')
@example(b'[{"tensor": 0}, [["float32", [1180591620717411303424]]]]')
@example(b'[{"tensor": 0}, [["nn", [1]]]]')
@example(b'[{"tensor": 1}, [["float32", [0]]]]')
def test_any_head_is_read_or_refused(head: bytes) -> None:
    with contextlib.suppress(errors.ProtocolError, errors.PeerError):
        receive([head])


def test_a_piece_of_another_size_is_refused() -> None:
    head, piece = messages_of(torch.zeros(3))
    with pytest.raises(errors.ProtocolError, match="12 B were to come"):
        receive([head, piece[1:]])
