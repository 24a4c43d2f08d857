"""Sizes of torch's tensors: integers, or expressions over symbols under stable names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.utils._sympy.value_ranges import bound_sympy

from graph_analysis.ir import Dim, Symbol, SymbolicDim


@dataclass(frozen=True, slots=True)
class InputLeaf:
    """An input tensor: its name, its sizes in the example, names of its dynamic dimensions."""

    name: str
    sizes: tuple[int, ...]
    dim_names: Mapping[int, str]


class _Expr(Protocol):
    """The used part of a sympy expression; sympy itself has no types."""

    @property
    def free_symbols(self) -> set[_Expr]:
        """Symbols in it."""

    @property
    def name(self) -> str:
        """Name of a symbol."""

    @property
    def func(self) -> Callable[..., _Expr]:
        """Constructor, here of a symbol."""

    def xreplace(self, rule: Mapping[_Expr, _Expr]) -> _Expr:
        """Structural replacement."""

    def subs(self, rule: Mapping[_Expr, int]) -> _Expr:
        """Replacement by numbers, evaluated."""


class SymbolTable:
    """Symbols of torch under stable names: the user's, else d0, d1, ...; u0, u1, ... for data."""

    def __init__(self, ranges: dict[Any, Any]) -> None:
        self._ranges = ranges
        self._new: dict[_Expr, _Expr] = {}
        self._example: dict[_Expr, int] = {}
        self._dims: dict[_Expr, SymbolicDim] = {}
        self.found: list[Symbol] = []

    def _add(self, symbol: _Expr, name: str, source: str, dim: int | None) -> None:
        taken = {known.name for known in self.found}
        while name in taken:
            name += "_"
        bounds = self._ranges.get(symbol)
        lower = _integer(bounds.lower) if bounds is not None else None
        upper = _integer(bounds.upper) if bounds is not None else None
        self._new[symbol] = symbol.func(name, integer=True)
        self.found.append(Symbol(name, lower or 0, upper, source, dim))

    def add_input(self, size: int | torch.SymInt, leaf: InputLeaf, dim: int) -> None:
        """Name the unknown sizes in one dimension of an input."""
        if isinstance(size, int):
            return
        expr = size.node.expr
        if expr.is_Symbol:
            self._example.setdefault(expr, leaf.sizes[dim])
        for symbol in sorted(expr.free_symbols - self._new.keys(), key=str):
            chosen = leaf.dim_names.get(dim) if expr.is_Symbol else None
            self._add(symbol, chosen or f"d{len(self.found)}", leaf.name, dim)

    def dim(self, size: int | torch.SymInt, op_name: str) -> Dim:
        """A size; symbols not known from the inputs were computed by this operation."""
        if isinstance(size, int):
            return size
        expr = size.node.expr
        if expr.is_Integer:
            return int(expr)
        if expr in self._dims:
            return self._dims[expr]
        for symbol in sorted(expr.free_symbols - self._new.keys(), key=str):
            self._add(symbol, f"u{len(self.found)}", op_name, None)
        order = {known.name: index for index, known in enumerate(self.found)}
        renamed = expr.xreplace(self._new)
        names = sorted((s.name for s in renamed.free_symbols), key=lambda name: order[name])
        self._dims[expr] = SymbolicDim(
            expr=str(renamed),
            symbols=tuple(names),
            upper=_integer(bound_sympy(expr, self._ranges).upper),
            example=_integer(expr.subs(self._example)),
        )
        return self._dims[expr]


def _integer(number: _Expr) -> int | None:
    """A plain int, or None for infinity and for anything still symbolic."""
    text = str(number)  # int_oo says of itself that it is a finite integer
    return int(text) if text.removeprefix("-").isdecimal() else None
