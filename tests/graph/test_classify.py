"""Classes and sizes against enumeration of every size that the symbols allow."""

import itertools
from math import prod

import pytest
from generated_graphs import SYMBOLS, dims
from hypothesis import given
from hypothesis import strategies as st

from graph_analysis.classify import classify_value, example_bytes
from graph_analysis.ir import Dim, SymbolicDim, Value

pytestmark = pytest.mark.timeout(60)

_UNBOUNDED_SAMPLE = (0, 1, 10, 1000)


def _at(dim: Dim, sizes: dict[str, int]) -> int:
    return int(eval(dim.expr, {}, sizes)) if isinstance(dim, SymbolicDim) else dim


def _all_sizes() -> list[dict[str, int]]:
    ranges = [
        range(s.lower, s.upper + 1) if s.upper is not None else _UNBOUNDED_SAMPLE for s in SYMBOLS
    ]
    return [
        dict(zip((s.name for s in SYMBOLS), sizes, strict=True))
        for sizes in itertools.product(*ranges)
    ]


@given(st.lists(dims, max_size=3))
def test_class_and_maximum_hold_for_every_assignment(shape: list[Dim]) -> None:
    value = Value("t", "activation", "float32", 4, tuple(shape))
    found = classify_value(value)
    sizes = [4 * prod(_at(dim, assignment) for dim in shape) for assignment in _all_sizes()]
    if all(isinstance(dim, int) for dim in shape):
        assert (found.kind, found.size_bytes, found.max_bytes) == ("static", sizes[0], sizes[0])
        assert found.symbols == ()
    elif any(isinstance(dim, SymbolicDim) and "rows" in dim.symbols for dim in shape):
        assert (found.kind, found.size_bytes, found.max_bytes) == ("dynamic", None, None)
    else:
        # Every expression here grows with its symbols, so that the maximum is reached.
        assert (found.kind, found.size_bytes, found.max_bytes) == ("bounded", None, max(sizes))
    named = {name for dim in shape if isinstance(dim, SymbolicDim) for name in dim.symbols}
    assert set(found.symbols) == named


def test_scalar_is_one_item() -> None:
    assert classify_value(Value("t", "loss", "float64", 8, ())).size_bytes == 8


def test_example_bytes_uses_the_traced_size_then_the_maximum() -> None:
    traced = SymbolicDim("n", ("n",), 100, 3)
    data = SymbolicDim("u", ("u",), 7, None)
    unknown = SymbolicDim("v", ("v",), None, None)
    sizes = [example_bytes(Value("t", "input", "int8", 1, (2, d))) for d in (traced, data, unknown)]
    assert sizes == [6, 14, 0]
