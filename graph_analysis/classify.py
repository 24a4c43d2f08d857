"""Pass: is a tensor's size known, bounded or unknown before the step runs?

static   every dimension is an integer: the slot has exactly that size
bounded  some dimension is symbolic, but all have a maximum: the slot takes the maximum
dynamic  some dimension has no maximum: no slot can be planned

A bounded tensor that crosses ranks counts as dynamic where its slot would take too much of the
arena: over_share() finds those, and their maximum is kept to say why.

The maximum is the product of each dimension's maximum. It is exact while the dimensions grow
with their symbols, and otherwise still an upper bound, because no dimension is negative.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from graph_analysis.errors import ArgumentError
from graph_analysis.ir import Graph, SlotPolicy, SymbolicDim, TensorClass, Value


@dataclass(frozen=True, slots=True)
class SizeClass:
    """size_bytes is None unless static; max_bytes is None where nothing bounds the size."""

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


def over_share(
    classes: Mapping[str, SizeClass], places: Iterable[tuple[str, str]], policy: SlotPolicy
) -> frozenset[str]:
    """Bounded tensors whose slots would take more than the policy's share of an arena.

    places are pairs of an arena's name and a tensor in it, once for each place.
    """
    if policy.arena_bytes < 1 or not 0 <= policy.bounded_share_percent <= 100:
        raise ArgumentError(f"{policy}: arena below 1 byte or a share outside 0 to 100 %")
    fixed: dict[str, int] = {}
    bounded: list[tuple[str, str]] = []
    for arena, name in places:
        size = classes[name]
        if size.kind == "static":
            fixed[arena] = fixed.get(arena, 0) + (size.size_bytes or 0)
        elif size.kind == "bounded":
            bounded.append((arena, name))
    return frozenset(
        name
        for arena, name in bounded
        if (classes[name].max_bytes or 0) * 100
        > policy.bounded_share_percent * max(policy.arena_bytes, fixed.get(arena, 0))
    )


def as_dynamic(classes: Mapping[str, SizeClass], names: frozenset[str]) -> dict[str, SizeClass]:
    """The classes with these tensors dynamic; their maximum stays known."""
    return {
        name: replace(size, kind="dynamic") if name in names else size
        for name, size in classes.items()
    }


def example_bytes(value: Value) -> int:
    """Bytes in the traced example; a size that depends on data counts with its maximum, or 0.

    Used only for estimates of time, never for a slot.
    """
    total = value.item_bytes
    for dim in value.shape:
        if isinstance(dim, SymbolicDim):
            total *= dim.example if dim.example is not None else (dim.upper or 0)
        else:
            total *= dim
    return total
