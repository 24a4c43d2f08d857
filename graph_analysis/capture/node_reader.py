"""Reads the nodes of torch's graphs into values and operations.

The alias annotations of the operators' schemas distinguish views from new memory.
"""

from __future__ import annotations

import operator
from dataclasses import replace

import torch
from torch.fx import Node

from graph_analysis.capture.collectives import collective_of, is_wait
from graph_analysis.capture.flops import constants_of, flops_of
from graph_analysis.capture.symbols import SymbolTable
from graph_analysis.ir import Omission, Op, Role, Value


def dtype_name(dtype: torch.dtype) -> str:
    """float32, not torch.float32."""
    return str(dtype).removeprefix("torch.")


class NodeReader:
    """Collects values and operations while walking over the nodes in order."""

    def __init__(self, symbols: SymbolTable) -> None:
        self.prefix = ""  # prefix of the names of operations and of their results
        self.symbols = symbols
        self.values: dict[str, Value] = {}
        self.ops: list[Op] = []
        self.omissions: list[Omission] = []
        self.of_node: dict[str, list[str | None]] = {}  # node -> its tensors, in order
        self.op_of_node: dict[str, int] = {}

    def root(self, name: str) -> str:
        """The value that owns the memory; aliases always name their root."""
        return self.values[name].alias_of or name

    def add_value(
        self,
        name: str,
        role: Role,
        tensor: torch.Tensor,
        producer: int | None = None,
        alias_of: str | None = None,
    ) -> str:
        """Record a tensor under a free name that starts with name; returns that name."""
        while name in self.values:
            name += "_"
        maker = name if producer is None else self.ops[producer].name
        shape = tuple(self.symbols.dim(size, maker) for size in tensor.shape)
        self.values[name] = Value(
            name,
            role,
            dtype_name(tensor.dtype),
            tensor.dtype.itemsize,
            shape,
            producer,
            self.root(alias_of) if alias_of is not None else None,
        )
        return name

    def _example(self, size: int | torch.SymInt, op_name: str) -> int:
        """A size of the traced example; one that depends on data counts with its bound, or 0."""
        dim = self.symbols.dim(size, op_name)
        if isinstance(dim, int):
            return dim
        return dim.example if dim.example is not None else (dim.upper or 0)

    def read_node(self, node: Node, role: Role) -> None:
        """One call: getitem picks from its parent, everything else is an operation."""
        sources = node.all_input_nodes
        if node.target is operator.getitem and len(self.of_node[sources[0].name]) > 0:
            position = node.args[1]
            assert isinstance(position, int)
            self.of_node[node.name] = [self.of_node[sources[0].name][position]]
            self.op_of_node[node.name] = self.op_of_node[sources[0].name]
            return
        if isinstance(node.target, torch._ops.HigherOrderOperator):
            what = f"inside of {self.prefix}{node.name}"
            self.omissions.append(Omission(what, "control flow of the graph"))
        index = len(self.ops)
        inputs = [name for s in sources for name in self.of_node[s.name] if name is not None]
        name = f"{self.prefix}{node.name}"
        collective = collective_of(node)
        constants = constants_of(node)
        self.ops.append(Op(name, str(node.target), tuple(inputs), (), collective, constants))
        made: list[str | None] = []
        results = node.meta.get("val")
        many = results if isinstance(results, (tuple, list)) else [results]
        for position, tensor in enumerate(many):
            if not isinstance(tensor, torch.Tensor):
                made.append(None)
                continue
            base = self._viewed(node, position if len(many) > 1 else 0)
            made_name = name if many[0] is results else f"{name}.{position}"
            made.append(self.add_value(made_name, role, tensor, index, base))
        outputs = tuple(name for name in made if name is not None)
        flops = flops_of(node, lambda size: self._example(size, name))
        self.ops[index] = replace(self.ops[index], outputs=outputs, flops=flops)
        # A lone non-tensor (a size, an assertion) has no component that a getitem could pick.
        self.of_node[node.name] = made if outputs or len(made) > 1 else []
        self.op_of_node[node.name] = index

    def _viewed(self, node: Node, position: int) -> str | None:
        """The value whose memory a result shares, by the alias annotation of the operator."""
        if not isinstance(node.target, torch._ops.OpOverload):
            return None
        if is_wait(node):  # returns what it waits for
            return self.of_node[node.all_input_nodes[0].name][0]
        schema = node.target._schema
        result = schema.returns[min(position, len(schema.returns) - 1)]
        if result.alias_info is None:
            return None
        for argument, source in zip(schema.arguments, node.args, strict=False):
            if argument.alias_info is not None and isinstance(source, Node):
                return self.of_node[source.name][0]
        return None
