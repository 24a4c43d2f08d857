"""Names of symbols: the same whatever order a set of them happens to have."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
import sympy  # noqa: E402  comes with torch

from graph_analysis.capture.symbols import InputLeaf, SymbolTable  # noqa: E402

# A set of as many is in their order by chance once in 40 thousand runs.
COUNT = 8
OF_TORCH = [sympy.Symbol(f"s{index}", integer=True, positive=True) for index in range(COUNT)]


def _size(expr: Any) -> Any:
    """What stands where a size is not an integer: a SymInt, as far as it is used."""
    return SimpleNamespace(node=SimpleNamespace(expr=expr))


def _symbols() -> SymbolTable:
    return SymbolTable({})


def test_symbols_of_an_input_are_numbered_by_their_names() -> None:
    symbols = _symbols()
    symbols.add_input(_size(sympy.Add(*OF_TORCH)), InputLeaf("x", (36,), {}), 0)

    assert [found.name for found in symbols.found] == [f"d{i}" for i in range(COUNT)]
    dims = [symbols.dim(_size(symbol), "op") for symbol in OF_TORCH]
    assert [dim.expr for dim in dims] == [f"d{i}" for i in range(COUNT)]


def test_symbols_of_data_are_numbered_by_their_names() -> None:
    symbols = _symbols()
    symbols.dim(_size(sympy.Add(*OF_TORCH)), "nonzero")

    assert [found.source for found in symbols.found] == ["nonzero"] * COUNT
    dims = [symbols.dim(_size(symbol), "op") for symbol in OF_TORCH]
    assert [dim.expr for dim in dims] == [f"u{i}" for i in range(COUNT)]


def test_symbols_of_a_size_are_listed_as_they_were_found() -> None:
    """Not as their names sort: the names are the user's."""
    symbols = _symbols()
    names = ["tokens", "batch", "heads", "seq", "width", "depth", "experts", "beams"]
    for symbol, name in zip(OF_TORCH, names, strict=True):
        symbols.add_input(_size(symbol), InputLeaf("x", (2,), {0: name}), 0)

    whole = symbols.dim(_size(sympy.Mul(*OF_TORCH)), "op")

    assert whole.symbols == tuple(names)
    assert whole.example == 2**COUNT
