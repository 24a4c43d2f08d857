"""A training step as torch.export sees it.

The model is called through a step module that holds each distinct parameter and buffer once under
its own name (so tied weights are one tensor), runs the model functionally and reduces to a scalar
loss. torch.export gives the forward graph with symbolic sizes, and torch's private
_export_forward_backward the joint graph with every gradient; joint_graph reads the result. If torch
refuses, there is still a graph of the module's own tensors, and the reason.
"""

import inspect
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.export import ExportedProgram
from torch.func import functional_call
from torch.utils import _pytree as pytree

from graph_analysis.capture.joint_graph import StepNames, read_joint_graph
from graph_analysis.capture.node_reader import dtype_name
from graph_analysis.capture.symbols import InputLeaf
from graph_analysis.errors import ArgumentError, CaptureError
from graph_analysis.ir import Graph, Loss, Omission, Op, Role, Value
from graph_analysis.work import with_work

LossFn = Callable[..., torch.Tensor]
_CONSTANT_TYPES = (bool, int, float, str, type(None))
_MAX_REASON = 300  # characters: enough for torch's first line, which names the cause


@dataclass(frozen=True, slots=True)
class _Argument:
    """One positional argument of the model: traced with its sizes, or a constant."""

    name: str
    value: object
    spec: object

    @property
    def is_constant(self) -> bool:
        return isinstance(self.value, _CONSTANT_TYPES)


class _Step(nn.Module):
    """Model and loss as a function of the tensors that capture must see as inputs.

    Parameters in idle get no gradient and are held like buffers.
    """

    def __init__(
        self,
        model: nn.Module,
        arguments: Sequence[_Argument],
        loss_fn: LossFn | None,
        idle: frozenset[str],
    ) -> None:
        super().__init__()
        self._held = (model,)  # in a tuple, so that torch registers no submodule
        self._arguments = tuple(arguments)
        self._loss_fn = loss_fn
        self.names: dict[str, str] = {}  # name in the step -> name in the model
        keys: dict[int, str] = {}
        for name, parameter in model.named_parameters():
            key = f"t{len(self.names)}"
            self.names[key] = name
            keys[id(parameter)] = key
            if name in idle:
                self.register_buffer(key, parameter.detach())
            else:
                self.register_parameter(key, parameter)
        for name, buffer in model.named_buffers():
            key = f"t{len(self.names)}"
            self.names[key] = name
            keys.setdefault(id(buffer), key)  # a tensor that is also a parameter has a gradient
            self.register_buffer(key, buffer)
        self._places = {
            place: keys[id(tensor)] for place, tensor in _places_of(model) if id(tensor) in keys
        }

    def forward(self, *traced: object) -> torch.Tensor:
        rest = iter(traced)
        arguments = [a.value if a.is_constant else next(rest) for a in self._arguments]
        state = {place: getattr(self, key) for place, key in self._places.items()}
        # Each place once: tie_weights swaps a tensor under every name of a module and does not
        # restore all.
        output = functional_call(self._held[0], state, tuple(arguments), tie_weights=False)
        return _loss(output, tuple(arguments), self._loss_fn)


def _places_of(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield each place of a module that holds a parameter or buffer, and what is there.

    A tensor has as many as modules hold it; a module that has several names has places once.
    """
    for name, module in model.named_modules():
        for held in (module._parameters, module._buffers):
            for key, tensor in held.items():
                if tensor is not None:
                    yield (f"{name}.{key}" if name else key), tensor


@dataclass(frozen=True, slots=True)
class Captured:
    """A step's graph, and the program that it was read from; None if torch.export refused."""

    graph: Graph
    program: ExportedProgram | None


def capture(
    model: nn.Module,
    example_inputs: Sequence[object],
    *,
    loss_fn: LossFn | None = None,
    dynamic_shapes: Sequence[object] | Mapping[str, object] | None = None,
    may_run: bool = False,
) -> Graph:
    """The joint graph of one training step, or what is certain without one.

    With may_run, a model that neither torch.export nor torch's compiler captures whole is compiled
    in pieces, for which a copy of it runs one step: that shows the collectives of its graphs.
    """
    return capture_program(
        model,
        example_inputs,
        loss_fn=loss_fn,
        dynamic_shapes=dynamic_shapes,
        may_run=may_run,
    ).graph


def capture_program(
    model: nn.Module,
    example_inputs: Sequence[object],
    *,
    loss_fn: LossFn | None = None,
    dynamic_shapes: Sequence[object] | Mapping[str, object] | None = None,
    may_run: bool = False,
) -> Captured:
    """As capture(), with the program, which can be run operation by operation."""
    if not isinstance(model, nn.Module):
        raise ArgumentError(f"model is a {type(model).__name__}, not a torch.nn.Module")
    arguments = _arguments(model, example_inputs, dynamic_shapes)
    loss: Loss = "output_sum" if loss_fn is None else "loss_fn"
    try:
        with warnings.catch_warnings():
            # torch 2.13 copies its own deprecated LeafSpec; its users can do nothing about it.
            warnings.filterwarnings("ignore", message=".*LeafSpec", category=FutureWarning)
            step, program, idle = _export(model, arguments, loss_fn)
            program = _with_backward(program)
    except Exception as error:  # noqa: BLE001  torch raises anything; the reason is in the plan
        reason = _reason(error)
        graph = _without_export(model, arguments, loss_fn, reason, may_run=may_run)
        return Captured(with_work(graph), None)
    omissions = [
        Omission(f"gradient of {name}", "the loss does not depend on it in this step")
        for name in sorted(idle)
    ]
    if not model.training:
        omissions.append(Omission("training mode", "the model is in eval mode, captured as it is"))
    names = StepNames(
        tensors=step.names,
        parameters=frozenset(name for name, _ in model.named_parameters()),
        inputs=tuple(leaf for a in arguments if not a.is_constant for leaf in _leaves(a)),
    )
    graph = read_joint_graph(program, names, loss, tuple(omissions))
    return Captured(with_work(graph), program)


def _arguments(
    model: nn.Module,
    example_inputs: Sequence[object],
    dynamic_shapes: Sequence[object] | Mapping[str, object] | None,
) -> list[_Argument]:
    """Pair each example input with the name of its argument and its dynamic shape."""
    if not isinstance(example_inputs, (tuple, list)):
        kind = type(example_inputs).__name__
        raise ArgumentError(f"example_inputs is a {kind}, not a tuple of model.forward's inputs")
    names: list[str] = []
    for parameter in inspect.signature(model.forward).parameters.values():
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            missing = len(example_inputs) - len(names)
            names += [f"{parameter.name}_{index}" for index in range(missing)]
        elif parameter.kind is not inspect.Parameter.VAR_KEYWORD:
            names.append(parameter.name)
    if len(example_inputs) > len(names):
        raise ArgumentError(f"{len(example_inputs)} inputs, but model.forward takes {names}")
    names = names[: len(example_inputs)]
    if dynamic_shapes is None:
        specs: list[object] = [None] * len(names)
    elif isinstance(dynamic_shapes, Mapping):
        unknown = sorted(set(dynamic_shapes) - set(names))
        if unknown:
            raise ArgumentError(f"dynamic_shapes names {unknown}, the inputs are {names}")
        specs = [dynamic_shapes.get(name) for name in names]
    else:
        specs = list(dynamic_shapes)
        if len(specs) != len(names):
            raise ArgumentError(f"dynamic_shapes has {len(specs)} entries for inputs {names}")
    triples = zip(names, example_inputs, specs, strict=True)
    return [_Argument(name, value, spec) for name, value, spec in triples]


def _leaves(argument: _Argument) -> list[InputLeaf]:
    """The tensors in one argument, in the order in which export lists them."""
    if isinstance(argument.value, torch.Tensor):
        sizes = tuple(argument.value.shape)
        return [InputLeaf(argument.name, sizes, _dim_names(argument.spec, len(sizes)))]
    paths, _ = pytree.tree_flatten_with_path(argument.value)
    return [
        InputLeaf(argument.name + pytree.keystr(path), tuple(leaf.shape), {})
        for path, leaf in paths
        if isinstance(leaf, torch.Tensor)
    ]


def _dim_names(spec: object, ndim: int) -> dict[int, str]:
    """Names of the Dims that the user gave for one tensor; hints like Dim.AUTO have none."""
    items = spec if isinstance(spec, Mapping) else dict(enumerate(_sequence(spec)))
    return {
        index % ndim: dim.__name__
        for index, dim in items.items()
        if isinstance(dim, torch.export.Dim)
    }


def _sequence(spec: object) -> Sequence[object]:
    return spec if isinstance(spec, (tuple, list)) else ()


def _export(
    model: nn.Module, arguments: Sequence[_Argument], loss_fn: LossFn | None
) -> tuple[_Step, ExportedProgram, frozenset[str]]:
    """Step, its forward graph, and the trainable parameters that the loss does not depend on.

    torch refuses the backward of a step with such a parameter, so it is exported again with
    them held like buffers.
    """
    traced = [a for a in arguments if not a.is_constant]
    tensors = tuple(a.value for a in traced)
    specs = (tuple(a.spec for a in traced),) if any(a.spec is not None for a in traced) else None
    step = _Step(model, arguments, loss_fn, frozenset())
    program = torch.export.export(step, tensors, dynamic_shapes=specs, strict=False)
    idle = _idle_parameters(step, program)
    if idle:
        step = _Step(model, arguments, loss_fn, idle)
        program = torch.export.export(step, tensors, dynamic_shapes=specs, strict=False)
    return step, program, idle


def _idle_parameters(step: _Step, program: ExportedProgram) -> frozenset[str]:
    """Trainable parameters without a path to the loss or to an in-place change."""
    reached: set[torch.fx.Node] = set()
    waiting = [node for node in program.graph.nodes if node.op == "output" or _is_in_place(node)]
    while waiting:
        node = waiting.pop()
        if node not in reached:
            reached.add(node)
            waiting.extend(node.all_input_nodes)
    reached_names = {node.name for node in reached}
    return frozenset(
        step.names[key]
        for placeholder, key in program.graph_signature.inputs_to_parameters.items()
        if placeholder not in reached_names and step.get_parameter(key).requires_grad
    )


def _is_in_place(node: torch.fx.Node) -> bool:
    target = node.target
    return isinstance(target, torch._ops.OpOverload) and target._schema.is_mutable


def _with_backward(program: ExportedProgram) -> ExportedProgram:
    """The joint graph. The name is private to torch, hence the import inside capture's try."""
    from torch.export.experimental import _export_forward_backward

    return _export_forward_backward(program)


def _reason(error: Exception) -> str:
    """Type and first line of an error, without addresses, which differ from run to run."""
    lines = str(error).strip().splitlines() or ["no message"]
    text = f"{type(error).__name__}: {lines[0]}"
    return re.sub(r"0x[0-9a-f]+", "0x...", text)[:_MAX_REASON]


def _without_export(
    model: nn.Module,
    arguments: Sequence[_Argument],
    loss_fn: LossFn | None,
    reason: str,
    *,
    may_run: bool,
) -> Graph:
    """What remains when torch.export refuses."""
    loss: Loss = "output_sum" if loss_fn is None else "loss_fn"
    inputs = tuple(argument.value for argument in arguments)
    if has_shared_parameters(model):
        from graph_analysis.capture.shared import capture_shared  # loads torch's compiler

        try:
            return capture_shared(model, inputs, lambda out: _loss(out, inputs, loss_fn), loss)
        except Exception as error:  # noqa: BLE001  torch raises anything; the reason is in the plan
            reason = f"{reason}; whole: {_reason(error)}"[:_MAX_REASON]
    if not may_run:
        return _module_graph(model, loss, reason)
    from graph_analysis.capture.pieces import capture_pieces  # loads torch's compiler

    omissions = [Omission("whole graph of the step", reason)]
    if any(argument.spec is not None for argument in arguments):
        why = "compiled with the sizes of the example alone"
        omissions.append(Omission("dynamic_shapes", why))
    # The graphs see the local part of a tensor that several ranks share.
    local = {name: getattr(p, "_local_tensor", p) for name, p in model.named_parameters()}
    known = [_value(name, "parameter", p) for name, p in local.items()]
    known += [_value(name, "buffer", b) for name, b in model.named_buffers()]
    try:
        return capture_pieces(
            model,
            lambda compiled: _loss(compiled(*inputs), inputs, loss_fn),
            known,
            loss,
            tuple(omissions),
        )
    except Exception as error:  # noqa: BLE001  the user's model and torch raise anything
        return _module_graph(model, loss, f"{reason}; compiled: {_reason(error)}")


def _loss(output: object, inputs: tuple[object, ...], loss_fn: LossFn | None) -> torch.Tensor:
    """The scalar in which the step ends: that of loss_fn, else the sum of the floating outputs."""
    if loss_fn is not None:
        return loss_fn(output, *inputs)
    leaves = pytree.tree_leaves(output)
    floating = [x for x in leaves if isinstance(x, torch.Tensor) and x.is_floating_point()]
    if not floating:
        raise ArgumentError("the model has no floating output to sum up, give a loss_fn")
    return torch.stack([x.float().sum() for x in floating]).sum()


def has_shared_parameters(model: nn.Module) -> bool:
    """Whether ranks share a parameter, each with a part of it (DTensor)."""
    return any(hasattr(parameter, "_local_tensor") for parameter in model.parameters())


def _module_graph(model: nn.Module, loss: Loss, reason: str) -> Graph:
    """Parameters, buffers and gradients, which need no capture; gradients in assumed order."""
    parameters = list(model.named_parameters())
    values = [_value(name, "parameter", p) for name, p in parameters]
    values += [_value(name, "buffer", b) for name, b in model.named_buffers()]
    ops: list[Op] = []
    for name, parameter in reversed(parameters):
        if parameter.requires_grad:
            gradient = Value(
                name=f"{name}.grad",
                role="gradient",
                dtype=dtype_name(parameter.dtype),
                item_bytes=parameter.element_size(),
                shape=tuple(parameter.shape),
                producer=len(ops),
                ready=len(ops),
                of=name,
            )
            ops.append(Op(f"backward of {name}", "assumed", (name,), (gradient.name,)))
            values.append(gradient)
    omissions = (
        Omission("inputs, activations and graph of the step", reason),
        Omission("order of gradients", "assumed to be the reverse order of registration"),
        Omission("use of parameters", "each that requires a gradient is assumed to get one"),
    )
    version = f"torch {torch.__version__}"
    return Graph((), tuple(values), tuple(ops), omissions, "module", loss, version)


def _value(name: str, role: Role, tensor: torch.Tensor) -> Value:
    return Value(name, role, dtype_name(tensor.dtype), tensor.element_size(), tuple(tensor.shape))


def check_factory(
    made: tuple[object, ...],
) -> tuple[nn.Module, tuple[object, ...], LossFn | None]:
    """The result of a factory of the command line, with its types checked."""
    model, inputs, loss_fn = (*made, None)[:3]
    if not isinstance(model, nn.Module):
        raise CaptureError(f"the factory's model is a {type(model).__name__}, not a Module")
    if isinstance(inputs, torch.Tensor):
        inputs = (inputs,)
    if not isinstance(inputs, (tuple, list)):
        raise CaptureError(f"the factory's inputs are a {type(inputs).__name__}, not a tuple")
    if loss_fn is not None and not callable(loss_fn):
        raise CaptureError(f"the factory's loss_fn is a {type(loss_fn).__name__}")
    return model, tuple(inputs), loss_fn


def resize_batch(inputs: tuple[object, ...], batch: int) -> tuple[object, ...]:
    """The inputs with dimension 0 of every tensor made batch long, rows repeated or dropped."""
    if batch < 1:
        raise ArgumentError(f"batch of {batch}")

    def resized(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.ndim == 0 or tensor.shape[0] == 0:
            raise ArgumentError(f"an input of shape {tuple(tensor.shape)} has no rows to repeat")
        return tensor[torch.arange(batch) % tensor.shape[0]]

    return tuple(pytree.tree_map_only(torch.Tensor, resized, value) for value in inputs)
