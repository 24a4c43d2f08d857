"""A strategy is a frozen dataclass that spreads one captured step over ranks.

Everything after the strategies (buckets, layout, plan, report) works from a Spread alone and does
not know which strategy it came from.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol

from graph_analysis.errors import ArgumentError
from graph_analysis.ir import Crossing, Dim, Graph, Group, Home, Lifetime, Omission, Stay
from graph_analysis.liveness import storage_roots

Option = tuple[str, int | str]
_PRODUCT = re.compile(r"\w+(\*\w+)*")  # of names and numbers only


@dataclass(frozen=True, slots=True)
class StepFacts:
    """Facts of the earlier passes: lifetimes by name, the estimated end of each operation."""

    graph: Graph
    lives: Mapping[str, Lifetime]
    op_end_ns: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Spread:
    """One step over ranks.

    holders gives, for each tensor that a part of the ranks holds, the names of their homes; a
    tensor that is not in it is held by all. stays has an entry for every place of a value that
    crosses in each step, at both ends. together lists tensors that are known to be sent in one
    message, whatever the cost model would choose.
    """

    world_size: int
    options: tuple[Option, ...]
    groups: tuple[Group, ...]
    homes: tuple[Home, ...]
    crossings: tuple[Crossing, ...]
    stays: tuple[Stay, ...]
    holders: Mapping[str, tuple[str, ...]]
    omissions: tuple[Omission, ...] = ()
    together: tuple[tuple[str, ...], ...] = ()


class Strategy(Protocol):
    """How one model is spread over ranks."""

    kind: ClassVar[str]

    def spread(self, facts: StepFacts) -> Spread:
        """The step over ranks, crossings in any order. Pure: the same facts, the same spread."""


def require_count(strategy: str, name: str, count: int) -> None:
    """Raise ArgumentError unless count is an integer of at least 1."""
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise ArgumentError(f"{strategy}: {name} {count!r}, must be an integer of 1 or more")


def forward_op_count(graph: Graph) -> int:
    """Number of operations up to and including the loss."""
    late = (v for v in graph.values if v.role in ("backward", "gradient"))
    return min((v.producer for v in late if v.producer is not None), default=len(graph.ops))


def sendable_name(graph: Graph) -> dict[str, str]:
    """The tensor to send for a value that is needed elsewhere: the one that owns the memory.

    A view of a part of it, or one that repeats it, is sent as it is: its sender packs it.
    """
    roots = storage_roots(graph)
    shapes = {value.name: _shape_key(value.shape) for value in graph.values}
    return {
        value.name: roots[value.name]
        if shapes[value.name] == shapes[roots[value.name]]
        else value.name
        for value in graph.values
    }


def _shape_key(shape: tuple[Dim, ...]) -> tuple[int, tuple[str, ...]]:
    """Equal only for shapes of equally many elements: the integers' product and the rest."""
    fixed = 1
    rest: list[str] = []
    for dim in shape:
        if isinstance(dim, int):
            fixed *= dim
            continue
        is_product = _PRODUCT.fullmatch(dim.expr) is not None
        for factor in dim.expr.split("*") if is_product else [dim.expr]:
            if factor.isdecimal():
                fixed *= int(factor)
            else:
                rest.append(factor)
    return fixed, tuple(sorted(rest))
