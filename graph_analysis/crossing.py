"""Pass: the crossings of a spread step in the one order that all later passes use."""

from graph_analysis.ir import Crossing, Graph, Phase
from graph_analysis.strategies.base import Spread

_PHASE_ORDER: tuple[Phase, ...] = ("setup", "forward", "backward")


def order_crossings(graph: Graph, spread: Spread) -> tuple[Crossing, ...]:
    """By phase, then as they become ready, then by position in the graph, then by group."""
    position = {value.name: index for index, value in enumerate(graph.values)}
    ready = {value.name: value.ready_op for value in graph.values}
    return tuple(
        sorted(
            spread.crossings,
            key=lambda c: (
                _PHASE_ORDER.index(c.phase),
                ready[c.tensor],
                position[c.tensor],
                c.group,
                c.operation,
                c.result or "",
            ),
        )
    )
