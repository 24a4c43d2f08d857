"""Reads torch's joint forward and backward graph into the intermediate representation.

The program's signature identifies gradients, buffers and the loss.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx import Node

from graph_analysis.capture.node_reader import NodeReader
from graph_analysis.capture.symbols import InputLeaf, SymbolTable
from graph_analysis.ir import Graph, Loss, Omission, Op, Role, SymbolicDim, Value


@dataclass(frozen=True, slots=True)
class StepNames:
    """The names of the exported step's tensors in the user's model."""

    tensors: Mapping[str, str]
    parameters: frozenset[str]
    inputs: tuple[InputLeaf, ...]


class _JointReader(NodeReader):
    """A reader that uses the program's signature."""

    def __init__(self, program: ExportedProgram, names: StepNames) -> None:
        super().__init__(SymbolTable(program.range_constraints))
        self.program = program
        self.names = names

    def read_placeholders(self) -> None:
        """Parameters, buffers and constants under their own names, then the inputs."""
        nodes = {n.name: n for n in self.program.graph.nodes if n.op == "placeholder"}
        inputs = iter(self.names.inputs)
        late: list[tuple[Node, InputLeaf]] = []
        for spec in self.program.graph_signature.input_specs:
            node = nodes[spec.arg.name]
            tensor = node.meta.get("val")
            if not isinstance(tensor, torch.Tensor):
                self.of_node[node.name] = []
            elif spec.kind is InputKind.USER_INPUT:
                late.append((node, next(inputs)))
            else:
                name = self.names.tensors.get(str(spec.target), str(spec.target))
                role: Role = "parameter" if name in self.names.parameters else "buffer"
                if spec.kind is InputKind.CONSTANT_TENSOR:
                    role = "constant"
                self.of_node[node.name] = [self.add_value(name, role, tensor)]
        for node, leaf in late:
            tensor = node.meta["val"]
            for dim, size in enumerate(tensor.shape):
                self.symbols.add_input(size, leaf, dim)
            self.of_node[node.name] = [self.add_value(leaf.name, "input", tensor)]

    def claim_buffers(self) -> None:
        """New values of buffers are written over the old ones: they own no memory."""
        written: dict[str, str] = {}
        for node_name, key in self.program.graph_signature.buffers_to_mutate.items():
            name = self.of_node[node_name][0]
            buffer = self.names.tensors[key]
            if name is None or self.values[name].role not in ("activation", "backward"):
                continue
            root = self.root(name)
            if self.values[root].producer is not None:
                written.setdefault(root, buffer)
        for name, value in list(self.values.items()):
            if self.root(name) in written:
                self.values[name] = replace(value, alias_of=written[self.root(name)])

    def claim_gradients(self, gradients: Mapping[str, str]) -> dict[str, str]:
        """Turn the memory of each gradient into the gradient; returns new names of values.

        If that memory is not the gradient's alone (it is larger, or existed before), the gradient
        is a tensor of its own, made by the same operation.
        """
        renamed: dict[str, str] = {}
        nodes = {node.name: node for node in self.program.graph.nodes}
        for node_name, key in gradients.items():
            name = self.of_node[node_name][0]
            parameter = self.values[self.names.tensors[key]]
            if name is None or nodes[node_name].meta["val"].layout is not torch.strided:
                why = "it is sparse: its size depends on the data"
                self.omissions.append(Omission(f"gradient of {parameter.name}", why))
                continue
            root = self.values[self.root(name)]
            ready = self.op_of_node[node_name]
            gradient = replace(
                parameter,
                name=f"{parameter.name}.grad",
                role="gradient",
                producer=ready,
                ready=ready,
                of=parameter.name,
            )
            is_own = root.role == "backward" and root.dtype == gradient.dtype
            if is_own and _items(root) == _items(gradient):
                renamed[root.name] = gradient.name
                self.values[root.name] = replace(gradient, producer=root.producer)
            else:
                self.values[gradient.name] = gradient
        return renamed


def _items(value: Value) -> int | None:
    """Number of elements, None while symbolic."""
    count = 1
    for dim in value.shape:
        if isinstance(dim, SymbolicDim):
            return None
        count *= dim
    return count


def read_joint_graph(
    program: ExportedProgram, names: StepNames, loss: Loss, omissions: tuple[Omission, ...]
) -> Graph:
    """The graph of an exported forward and backward."""
    backward = program.graph_signature.backward_signature
    assert backward is not None, "the program has no backward graph"
    reader = _JointReader(program, names)
    reader.read_placeholders()
    role: Role = "activation"
    for node in program.graph.nodes:
        if node.op == "get_attr":
            reader.of_node[node.name] = []  # the sub-graph of an operation with control flow
        elif node.op == "call_function":
            reader.read_node(node, role)
            if node.name == backward.loss_output:
                role = "backward"
    loss_name = reader.of_node[backward.loss_output][0]
    assert loss_name is not None
    loss_root = reader.root(loss_name)
    if reader.values[loss_root].role == "activation":
        reader.values[loss_root] = replace(reader.values[loss_root], role="loss")
    reader.claim_buffers()
    renamed = reader.claim_gradients(backward.gradients_to_parameters)
    return Graph(
        symbols=tuple(reader.symbols.found),
        values=tuple(_rename_value(value, renamed) for value in reader.values.values()),
        ops=tuple(_rename_op(op, renamed) for op in reader.ops),
        omissions=omissions + tuple(reader.omissions),
        source="joint_graph",
        loss=loss,
        captured_with=f"torch {torch.__version__}",
    )


def _rename_value(value: Value, renamed: Mapping[str, str]) -> Value:
    if value.alias_of is None:
        return value
    return replace(value, alias_of=renamed.get(value.alias_of, value.alias_of))


def _rename_op(op: Op, renamed: Mapping[str, str]) -> Op:
    return replace(
        op,
        inputs=tuple(renamed.get(name, name) for name in op.inputs),
        outputs=tuple(renamed.get(name, name) for name in op.outputs),
    )
