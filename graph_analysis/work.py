"""Pass: the work of each operation, and the module that it belongs to.

torch's table of flops knows products and convolutions. The formulas here are for operators of CPUs
that it does not know: attention and recurrent layers.
"""

from collections.abc import Sequence
from dataclasses import replace

from graph_analysis.classify import example_bytes
from graph_analysis.ir import Graph, Op, Value
from graph_analysis.liveness import storage_roots
from graph_analysis.strategies.base import forward_op_count

Shape = Sequence[int]
_GATES = {0: 1, 1: 1, 2: 4, 3: 3}  # of torch's modes ReLU, tanh, LSTM, GRU


def attention_flops(query: Shape, key: Shape, *, is_causal: bool, is_backward: bool) -> int:
    """Of attention over (batch, heads, length, width): two products, five in its backward."""
    batch, heads, length, width = query
    products = 5 if is_backward else 2
    flops = products * 2 * batch * heads * length * key[2] * width
    return flops // 2 if is_causal else flops


def recurrent_flops(
    steps: int, batch: int, width: int, hidden: int, *, mode: int, is_backward: bool
) -> int:
    """Of one layer in one direction: products with the input and the state in each step."""
    flops = 2 * steps * batch * _GATES[mode] * hidden * (width + hidden)
    return 2 * flops if is_backward else flops


def with_work(graph: Graph) -> Graph:
    """The graph with moved_bytes and unit of each operation. Pure, and linear in the graph."""
    values = {value.name: value for value in graph.values}
    units = _units(graph, values)
    ops = tuple(
        replace(op, moved_bytes=_moved_bytes(op, values), unit=unit)
        for op, unit in zip(graph.ops, units, strict=True)
    )
    return replace(graph, ops=ops)


def _moved_bytes(op: Op, values: dict[str, Value]) -> int:
    """Bytes that it reads and makes; one that makes nothing, or views alone, moves nothing."""
    made = [name for name in op.outputs if values[name].alias_of is None]
    if not made:
        return 0
    return sum(example_bytes(values[name]) for name in (*op.inputs, *made))


def _units(graph: Graph, values: dict[str, Value]) -> list[str]:
    """The module of each operation.

    One that reads a parameter, or makes a gradient, belongs to the parameter's module. Any other
    one belongs with the last operation of the forward that made what it reads, or with whatever
    made that.
    """
    roots = storage_roots(graph)
    limit = forward_op_count(graph)
    units: list[str] = []
    for index, op in enumerate(graph.ops):
        names = [roots[name] for name in (*op.outputs, *op.inputs)]
        owners = [values[name].of or name for name in names if _is_owned(values[name])]
        producers = [at for name in op.inputs if (at := values[name].producer) is not None]
        of_forward = [at for at in producers if at < min(limit, index)]
        if owners:
            units.append(owners[0].rpartition(".")[0])
        elif of_forward:
            units.append(units[max(of_forward)])
        else:
            made = [at for at in producers if at < index and units[at]]
            units.append(units[max(made)] if made else "")
    return units


def _is_owned(value: Value) -> bool:
    return value.role in ("parameter", "gradient")
