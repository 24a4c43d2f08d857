"""The graphs between the graph breaks of a step, as torch.compile captures them.

For models with collectives in their graph that torch.export refuses, such as those whose parameters
are DTensors. torch.compile has to run what it compiles, so a copy of the model runs one step; if
the process group is a real one, all ranks must do so together.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import torch
from torch import fx, nn
from torch._dynamo.backends.common import aot_autograd
from torch._functorch._aot_autograd.utils import make_boxed_func

from graph_analysis.capture.node_reader import NodeReader
from graph_analysis.capture.symbols import SymbolTable
from graph_analysis.ir import Graph, Loss, Omission, Role, Value

_Piece = tuple[str, fx.GraphModule]


def capture_pieces(
    model: nn.Module,
    step: Callable[[Callable[..., object]], torch.Tensor],
    known: Sequence[Value],
    loss: Loss,
    omissions: tuple[Omission, ...],
) -> Graph:
    """The graphs of one step, known values first. step(model) must return the loss.

    Raises what the step raises.
    """
    forward: list[_Piece] = []
    backward: list[_Piece] = []

    def keep(pieces: list[_Piece], name: str) -> Callable[..., object]:
        def compiler(graph_module: fx.GraphModule, _: Sequence[object]) -> object:
            pieces.append((f"{name}{len(pieces)}.", graph_module))
            return make_boxed_func(graph_module.forward)

        return compiler

    backend = aot_autograd(
        fw_compiler=keep(forward, "forward"), bw_compiler=keep(backward, "backward")
    )
    torch._dynamo.reset()
    try:
        running = copy.deepcopy(model)
        with torch.random.fork_rng(devices=[]):
            loss_value = step(torch.compile(running, backend=backend, dynamic=False))
            torch.autograd.backward(loss_value)
    finally:
        torch._dynamo.reset()
    reader = NodeReader(SymbolTable({}))
    reader.values.update({value.name: value for value in known})
    for prefix, graph_module in forward:
        _read(reader, prefix, graph_module, "activation")
    for prefix, graph_module in backward:
        _read(reader, prefix, graph_module, "backward")
    count = len(forward) + len(backward)
    seen = Omission("links between the graphs", f"the step was captured in {count} graphs")
    gradients = Omission("order of gradients", "autograd makes them outside of the graphs")
    return Graph(
        symbols=tuple(reader.symbols.found),
        values=tuple(reader.values.values()),
        ops=tuple(reader.ops),
        omissions=(*omissions, seen, gradients, *reader.omissions),
        source="pieces",
        loss=loss,
        captured_with=f"torch {torch.__version__}",
    )


def _read(reader: NodeReader, prefix: str, graph_module: fx.GraphModule, role: Role) -> None:
    reader.prefix = prefix
    reader.of_node = {}
    for node in graph_module.graph.nodes:
        if node.op == "placeholder":
            tensor = node.meta.get("val")
            name = None
            if isinstance(tensor, torch.Tensor):
                name = reader.add_value(f"{prefix}{node.name}", "input", tensor)
            reader.of_node[node.name] = [name]
        elif node.op == "get_attr":
            reader.of_node[node.name] = []
        elif node.op == "call_function":
            reader.read_node(node, role)
