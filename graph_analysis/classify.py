"""Pass: is a tensor's size known, bounded or unknown before the step runs?

static   every dimension is an integer: the slot has exactly that size
bounded  some dimension is symbolic, but all have a maximum: the slot takes the maximum
dynamic  some dimension has no maximum: no slot can be planned

The maximum is the product of each dimension's maximum. It is exact while the dimensions grow
with their symbols, and otherwise still an upper bound, because no dimension is negative.
"""

from dataclasses import dataclass

from graph_analysis.ir import Graph, SymbolicDim, TensorClass, Value


@dataclass(frozen=True, slots=True)
class SizeClass:
    """size_bytes is None unless static; max_bytes is None when dynamic."""

    kind: TensorClass
    size_bytes: int | None
    max_bytes: int | None
    symbols: tuple[str, ...]


def classify_value(value: Value) -> SizeClass:
    """Class and bytes of one tensor; symbols in the order in which its shape names them."""
    upper: int | None = value.item_bytes
    symbols: dict[str, None] = {}
    symbolic = False
    for dim in value.shape:
        if isinstance(dim, SymbolicDim):
            symbolic = True
            symbols.update(dict.fromkeys(dim.symbols))
        dim_upper = dim.upper if isinstance(dim, SymbolicDim) else dim
        upper = None if upper is None or dim_upper is None else upper * dim_upper
    if not symbolic:
        return SizeClass("static", upper, upper, ())
    kind: TensorClass = "dynamic" if upper is None else "bounded"
    return SizeClass(kind, None, upper, tuple(symbols))


def classify(graph: Graph) -> dict[str, SizeClass]:
    """Class of every value, by name."""
    return {value.name: classify_value(value) for value in graph.values}


def example_bytes(value: Value) -> int:
    """Bytes in the traced example; a size that only data decides counts with its maximum, or 0.

    Used for estimates of time alone, never for a slot.
    """
    total = value.item_bytes
    for dim in value.shape:
        if isinstance(dim, SymbolicDim):
            total *= dim.example if dim.example is not None else (dim.upper or 0)
        else:
            total *= dim
    return total
