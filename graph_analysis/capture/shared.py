"""The joint graph of a model that holds parts of parameters (DTensor), without running a step.

torch.export refuses such parameters. torch's compiler captures the step whole, and its descriptors
name the inputs and outputs of the joint graph. The graph has the local parts.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from graph_analysis.capture.node_reader import NodeReader
from graph_analysis.capture.symbols import SymbolTable
from graph_analysis.ir import Graph, Loss, Omission, Role, Value


class _Step(nn.Module):
    """The model and its loss."""

    def __init__(self, model: nn.Module, loss_of: Callable[[object], torch.Tensor]) -> None:
        super().__init__()
        self.model = model
        self._loss_of = loss_of

    def forward(self, *inputs: object) -> torch.Tensor:
        return self._loss_of(self.model(*inputs))


def capture_shared(
    model: nn.Module,
    inputs: tuple[object, ...],
    loss_of: Callable[[object], torch.Tensor],
    loss: Loss,
) -> Graph:
    """The joint graph of one step. Raises what torch raises."""
    # Private to torch, hence imported where every failure has a reason.
    from torch._dynamo.functional_export import dynamo_graph_capture_for_export
    from torch._functorch.aot_autograd import aot_export_joint_with_descriptors
    from torch._guards import TracingContext, tracing

    torch._dynamo.reset()
    try:
        with ExitStack() as stack:
            stack.enter_context(warnings.catch_warnings())
            warnings.simplefilter("ignore")
            captured = dynamo_graph_capture_for_export(_Step(model, loss_of))(*inputs)
            fake = captured.meta["fake_mode"]
            stack.enter_context(tracing(TracingContext(fake)))
            static = pytree.tree_map_only(
                torch.Tensor, lambda x: fake.from_tensor(x, static_shapes=True), inputs
            )
            joint = aot_export_joint_with_descriptors(stack, captured, static)
            tensors = {**_named(captured.named_parameters), **_named(captured.named_buffers)}
            return _Reader(model, tensors).read(joint.graph_module, loss)
    finally:
        torch._dynamo.reset()


def _named(named: Callable[..., Any]) -> dict[str, torch.Tensor]:
    return dict(named(remove_duplicate=False))


class _Reader(NodeReader):
    """Reads a joint graph whose placeholders and outputs have descriptors."""

    def __init__(self, model: nn.Module, tensors: dict[str, torch.Tensor]) -> None:
        super().__init__(SymbolTable({}))
        self._names = {id(p): name for name, p in model.named_parameters()}
        self._names |= {id(b): name for name, b in model.named_buffers()}
        self._tensors = tensors

    def read(self, module: fx.GraphModule, loss: Loss) -> Graph:
        """The graph; operations after the loss are the backward's."""
        nodes = list(module.graph.nodes)
        made = next(node for node in nodes if node.op == "output")
        outputs = list(zip(made.args[0], made.meta["desc"], strict=True))
        loss_node = next(node for node, what in outputs if _kind(what) == "PlainAOTOutput")
        role: Role = "activation"
        for node in nodes:
            if node.op == "placeholder":
                self._read_placeholder(node)
            elif node.op == "get_attr":
                self.of_node[node.name] = []
            elif node.op == "call_function":
                self.read_node(node, role)
                if node is loss_node:
                    role = "backward"
        for node, what in outputs:
            # Of a shared tensor there are other outputs, too, such as its mesh.
            if _kind(what) == "GradAOTOutput" and node is not None and self.of_node[node.name]:
                self._claim(node, _base(what))
        self._claim_loss(loss_node)
        return Graph(
            symbols=tuple(self.symbols.found),
            values=tuple(self.values.values()),
            ops=tuple(self.ops),
            omissions=(
                Omission("whole parameters", "ranks share them, the sizes are the local parts'"),
                *self.omissions,
            ),
            source="joint_graph",
            loss=loss,
            captured_with=f"torch {torch.__version__}",
        )

    def _read_placeholder(self, node: fx.Node) -> None:
        tensor = node.meta.get("val")
        if not isinstance(tensor, torch.Tensor):
            self.of_node[node.name] = []
            return
        what = _base(node.meta["desc"])
        name, role = f"input {what.idx}" if _kind(what) == "PlainAOTInput" else node.name, "input"
        target = getattr(what, "target", None)
        if target is not None:
            name = self._names.get(id(self._tensors[target]), target)
            role = "parameter" if what.is_param() else "buffer"
        elif what.is_tangent():
            role = "constant"  # the gradient of the loss itself
        self.of_node[node.name] = [self.add_value(name, role, tensor)]  # type: ignore[arg-type]

    def _claim(self, node: fx.Node, what: Any) -> None:  # noqa: ANN401 - torch's descriptor
        """Make a tensor the gradient of its parameter."""
        target = getattr(_base(what.grad_of), "target", None)
        name = self.of_node[node.name][0]
        if target is None or name is None:
            return
        of = self._names.get(id(self._tensors[target]), target)
        value = self.values[self.root(name)]
        ready = self.op_of_node[node.name]
        gradient = Value(
            name=f"{of}.grad",
            role="gradient",
            dtype=value.dtype,
            item_bytes=value.item_bytes,
            shape=self.values[of].shape,
            producer=ready,
            ready=ready,
            of=of,
        )
        self.values[gradient.name] = gradient

    def _claim_loss(self, node: fx.Node) -> None:
        name = self.of_node[node.name][0]
        if name is not None and self.values[self.root(name)].role == "activation":
            root = self.root(name)
            self.values[root] = replace(self.values[root], role="loss")


def _kind(what: object) -> str:
    """The class of the tensor that a descriptor belongs to, by name."""
    return type(_base(what)).__name__


def _base(what: Any) -> Any:  # noqa: ANN401 - torch's descriptors
    """What a part of a shared tensor is a part of; anything else is its own base."""
    while hasattr(what, "base"):
        what = what.base
    return what
