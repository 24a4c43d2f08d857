"""Pass: when each tensor's memory is first and last used.

A view keeps the memory of its base alive. Parameters, buffers and constants live through the whole
step; gradients and the loss from their operation to the optimizer step at time len(ops); inputs
from the start to their last reader.
"""

from collections.abc import Sequence

from graph_analysis.ir import Block, Graph, Lifetime

_WHOLE_STEP = ("parameter", "buffer", "constant")
_TO_OPTIMIZER = ("gradient", "loss")


def storage_roots(graph: Graph) -> dict[str, str]:
    """For every value the one that owns its memory. A base precedes its views."""
    roots: dict[str, str] = {}
    for value in graph.values:
        roots[value.name] = value.name if value.alias_of is None else roots[value.alias_of]
    return roots


def lifetimes(graph: Graph) -> dict[str, Lifetime]:
    """Lifetime of each value that owns memory; views are folded into their base."""
    roots = storage_roots(graph)
    optimizer = len(graph.ops)
    first = {v.name: v.producer or 0 for v in graph.values if v.alias_of is None}
    last = dict(first)
    for index, op in enumerate(graph.ops):
        for name in (*op.inputs, *op.outputs):
            root = roots[name]
            last[root] = max(last[root], index)
    for value in graph.values:
        if value.role in _WHOLE_STEP and value.alias_of is None:
            last[value.name] = optimizer
        elif value.role in _TO_OPTIMIZER:
            last[roots[value.name]] = optimizer
    return {name: Lifetime(first[name], last[name]) for name in first}


def largest_live_set_bytes(blocks: Sequence[Block]) -> int:
    """Most bytes that are alive at one moment: no layout can have a smaller peak."""
    change: dict[int, int] = {}
    for block in blocks:
        start, end = block.lifetime.first_use, block.lifetime.last_use + 1
        change[start] = change.get(start, 0) + block.size_bytes
        change[end] = change.get(end, 0) - block.size_bytes
    live = peak = 0
    for moment in sorted(change):
        live += change[moment]
        peak = max(peak, live)
    return peak
