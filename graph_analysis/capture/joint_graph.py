"""Reads torch's joint forward and backward graph into the intermediate representation.

Views are told from new memory by the alias annotations of the operators' schemas, gradients,
buffers and the loss by the program's signature.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx import Node
from torch.utils._sympy.value_ranges import bound_sympy

from graph_analysis.ir import (
    Dim,
    Graph,
    Loss,
    Omission,
    Op,
    Role,
    Symbol,
    SymbolicDim,
    Value,
)


@dataclass(frozen=True, slots=True)
class InputLeaf:
    """An input tensor: its name, its sizes in the example, names of its dynamic dimensions."""

    name: str
    sizes: tuple[int, ...]
    dim_names: Mapping[int, str]


@dataclass(frozen=True, slots=True)
class StepNames:
    """What the tensors of the exported step are called in the user's model."""

    tensors: Mapping[str, str]
    parameters: frozenset[str]
    inputs: tuple[InputLeaf, ...]


def dtype_name(dtype: torch.dtype) -> str:
    """float32, not torch.float32."""
    return str(dtype).removeprefix("torch.")


class _Expr(Protocol):
    """What is used of a sympy expression; sympy itself has no types."""

    @property
    def free_symbols(self) -> set[_Expr]:
        """Symbols in it."""

    @property
    def name(self) -> str:
        """Name of a symbol."""

    @property
    def func(self) -> Callable[..., _Expr]:
        """Constructor, here of a symbol."""

    def xreplace(self, rule: Mapping[_Expr, _Expr]) -> _Expr:
        """Structural replacement."""

    def subs(self, rule: Mapping[_Expr, int]) -> _Expr:
        """Replacement by numbers, evaluated."""


class _Symbols:
    """Symbols of torch under stable names: the user's, else d0, d1, ...; u0, u1, ... for data."""

    def __init__(self, program: ExportedProgram) -> None:
        self._ranges = program.range_constraints
        self._new: dict[_Expr, _Expr] = {}
        self._example: dict[_Expr, int] = {}
        self._dims: dict[_Expr, SymbolicDim] = {}
        self.found: list[Symbol] = []

    def _add(self, symbol: _Expr, name: str, source: str, dim: int | None) -> None:
        taken = {known.name for known in self.found}
        while name in taken:
            name += "_"
        bounds = self._ranges.get(symbol)
        lower = _integer(bounds.lower) if bounds is not None else None
        upper = _integer(bounds.upper) if bounds is not None else None
        self._new[symbol] = symbol.func(name, integer=True)
        self.found.append(Symbol(name, lower or 0, upper, source, dim))

    def add_input(self, size: int | torch.SymInt, leaf: InputLeaf, dim: int) -> None:
        """Name what is unknown in one dimension of an input."""
        if isinstance(size, int):
            return
        expr = size.node.expr
        if expr.is_Symbol:
            self._example.setdefault(expr, leaf.sizes[dim])
        for symbol in sorted(expr.free_symbols - self._new.keys(), key=str):
            chosen = leaf.dim_names.get(dim) if expr.is_Symbol else None
            self._add(symbol, chosen or f"d{len(self.found)}", leaf.name, dim)

    def dim(self, size: int | torch.SymInt, op_name: str) -> Dim:
        """A size; symbols not known from the inputs were computed by this operation."""
        if isinstance(size, int):
            return size
        expr = size.node.expr
        if expr.is_Integer:
            return int(expr)
        if expr in self._dims:
            return self._dims[expr]
        for symbol in sorted(expr.free_symbols - self._new.keys(), key=str):
            self._add(symbol, f"u{len(self.found)}", op_name, None)
        order = {known.name: index for index, known in enumerate(self.found)}
        renamed = expr.xreplace(self._new)
        names = sorted((s.name for s in renamed.free_symbols), key=lambda name: order[name])
        self._dims[expr] = SymbolicDim(
            expr=str(renamed),
            symbols=tuple(names),
            upper=_integer(bound_sympy(expr, self._ranges).upper),
            example=_integer(expr.subs(self._example)),
        )
        return self._dims[expr]


def _integer(number: _Expr) -> int | None:
    """A plain int, or None for infinity and for anything still symbolic."""
    text = str(number)  # int_oo says of itself that it is a finite integer
    return int(text) if text.removeprefix("-").isdecimal() else None


class _Reader:
    """Collects values and operations while walking over the nodes in order."""

    def __init__(self, program: ExportedProgram, names: StepNames) -> None:
        self.program = program
        self.names = names
        self.symbols = _Symbols(program)
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

    def read_placeholders(self) -> None:
        """Parameters, buffers and constants under their own names, inputs after them."""
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
            self.omissions.append(Omission(f"inside of {node.name}", "control flow of the graph"))
        index = len(self.ops)
        inputs = [name for s in sources for name in self.of_node[s.name] if name is not None]
        self.ops.append(Op(node.name, str(node.target), tuple(inputs), ()))
        made: list[str | None] = []
        results = node.meta.get("val")
        many = results if isinstance(results, (tuple, list)) else [results]
        for position, tensor in enumerate(many):
            if not isinstance(tensor, torch.Tensor):
                made.append(None)
                continue
            base = self._viewed(node, position if len(many) > 1 else 0)
            name = node.name if many[0] is results else f"{node.name}.{position}"
            made.append(self.add_value(name, role, tensor, index, base))
        outputs = tuple(name for name in made if name is not None)
        self.ops[index] = replace(self.ops[index], outputs=outputs)
        # A lone non-tensor (a size, an assertion) has no component that a getitem could pick.
        self.of_node[node.name] = made if outputs or len(made) > 1 else []
        self.op_of_node[node.name] = index

    def _viewed(self, node: Node, position: int) -> str | None:
        """The value whose memory a result shares, by the alias annotation of the operator."""
        if not isinstance(node.target, torch._ops.OpOverload):
            return None
        schema = node.target._schema
        result = schema.returns[min(position, len(schema.returns) - 1)]
        if result.alias_info is None:
            return None
        for argument, source in zip(schema.arguments, node.args, strict=False):
            if argument.alias_info is not None and isinstance(source, Node):
                return self.of_node[source.name][0]
        return None

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

        Where that memory is not the gradient's alone (it is larger, or existed before), the
        gradient is a tensor of its own, made by the same operation.
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
    reader = _Reader(program, names)
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
