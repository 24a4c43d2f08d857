"""Pass: an estimate of when each operation ends, without a measurement.

An operation is assumed to cost its dispatch and the traffic of the tensors that it reads and makes,
in the sizes of the traced example. Making a view costs nothing. Convolutions and matrix products of
large size cost more than that; gradients then arrive later than estimated.
"""

from graph_analysis.classify import example_bytes
from graph_analysis.ir import CostModel, Graph

_NS_PER_S = 1_000_000_000


def op_end_ns(graph: Graph, cost: CostModel) -> tuple[int, ...]:
    """Estimated end of each operation, in ns after the start of the step; never falls."""
    size = {value.name: example_bytes(value) for value in graph.values}
    views = {value.name for value in graph.values if value.alias_of is not None}
    ends = []
    now_ns = 0
    for op in graph.ops:
        made = [name for name in op.outputs if name not in views]
        if made or not op.outputs:
            traffic = sum(size[name] for name in (*op.inputs, *made))
            now_ns += cost.op_ns + traffic * _NS_PER_S // cost.memory_bytes_per_s
        ends.append(now_ns)
    return tuple(ends)
