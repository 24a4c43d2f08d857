"""Times of a step's operations, by running its joint graph one operation after the other.

The clock is the processor time of the calling thread: load by other processes then counts less.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from time import thread_time_ns
from typing import Any

import torch
from torch import fx, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.utils import _pytree as pytree

from graph_analysis.capture.step import LossFn, capture_program
from graph_analysis.errors import CaptureError
from graph_analysis.ir import Graph
from graph_analysis.times import OpTimes, tabulate


def measure_ops(
    model: nn.Module,
    example_inputs: Sequence[object],
    *,
    loss_fn: LossFn | None = None,
    repeats: int = 5,
    before_each: Callable[[], object] | None = None,
) -> tuple[Graph, OpTimes]:
    """The graph of a step, and the median time of each of its operations.

    The model is not changed. before_each is called before every repetition, for example a barrier,
    so that all ranks load their machine at once.
    Raises: ArgumentError; CaptureError, if torch cannot capture the step whole.
    """
    captured = capture_program(model, example_inputs, loss_fn=loss_fn)
    if captured.program is None:
        why = captured.graph.omissions[0]
        raise CaptureError(
            f"the step cannot be captured whole: {why.reason}; DistributedDataParallel trains it"
        )
    inputs = [x for x in pytree.tree_leaves(tuple(example_inputs)) if isinstance(x, torch.Tensor)]
    op_ns = _time_program(captured.program, inputs, repeats, before_each or (lambda: None))
    graph = captured.graph
    by_op = [op_ns.get(op.name, 0) for op in graph.ops]
    step_ns = _time_step(model, example_inputs, loss_fn, repeats)
    factor = step_ns * 1000 // max(1, sum(by_op))
    least, most = _FACTORS
    return graph, tabulate(graph, by_op, "thread", max(least, min(factor, most)))


# Of an eager step, which has fused attention, over the sum of its operations; beyond it the
# repetitions were disturbed.
_FACTORS = (250, 2000)


class _Timer(fx.Interpreter):
    """Runs a graph, and notes the time of each call by the node's name."""

    def __init__(self, module: fx.GraphModule, found: dict[str, list[int]]) -> None:
        super().__init__(module)
        self._found = found

    def run_node(self, n: fx.Node) -> Any:  # noqa: ANN401 - as its base
        """Run one node."""
        if n.op != "call_function":
            return super().run_node(n)
        began_ns = thread_time_ns()
        made = super().run_node(n)
        self._found.setdefault(n.name, []).append(thread_time_ns() - began_ns)
        return made


def _time_program(
    program: ExportedProgram,
    inputs: Sequence[torch.Tensor],
    repeats: int,
    before_each: Callable[[], object],
) -> dict[str, int]:
    """The median time of each operation, after one repetition that is not counted."""
    held = {**program.state_dict, **program.constants}
    given = iter(inputs)
    arguments: list[object] = []
    for spec in program.graph_signature.input_specs:
        if spec.kind is InputKind.USER_INPUT:
            arguments.append(next(given).detach())
        else:
            tensor = held[str(spec.target)]
            arguments.append(tensor.detach() if isinstance(tensor, torch.Tensor) else tensor)
    found: dict[str, list[int]] = {}
    with torch.no_grad():
        for repeat in range(repeats + 1):
            before_each()
            if repeat == 1:
                found.clear()
            _Timer(program.graph_module, found).run(*arguments)
    return {name: _median(times) for name, times in found.items()}


def _time_step(
    model: nn.Module, inputs: Sequence[object], loss_fn: LossFn | None, repeats: int
) -> int:
    """The median time of a whole eager step of a copy."""
    running = copy.deepcopy(model)
    times: list[int] = []
    with torch.random.fork_rng(devices=[]):
        for _ in range(repeats + 1):
            running.zero_grad()
            began_ns = thread_time_ns()
            output = running(*inputs)
            loss = loss_fn(output, *inputs) if loss_fn is not None else _sum(output)
            torch.autograd.backward(loss)
            times.append(thread_time_ns() - began_ns)
    return _median(times[1:])


def _sum(output: object) -> torch.Tensor:
    leaves = pytree.tree_leaves(output)
    return torch.stack(
        [x.float().sum() for x in leaves if isinstance(x, torch.Tensor) and x.is_floating_point()]
    ).sum()


def _median(times: list[int]) -> int:
    return sorted(times)[len(times) // 2]
