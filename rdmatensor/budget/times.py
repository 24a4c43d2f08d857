"""Times of the units, measured one at a time, so that a model that does not fit can be measured."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.utils import _pytree as pytree

from rdmatensor.budget.peak import Allocations
from rdmatensor.budget.trace import Bytes, Counting, Forward, on_fakes, replaced
from rdmatensor.budget.units import tensors_of

_REPEATS = 2
_BATCH_NORMS = (nn.modules.batchnorm._BatchNorm,)


@dataclass(slots=True)
class Measured:
    """Processor time of a unit in one step, of the calling thread.

    Attributes:
        forward_ns: Of its forward passes.
        backward_ns: Of its backward passes.
        calls: How often a step calls it.
        hidden: What torch's allocator gives out in its first call, and fake tensors do not show.
        changes: A buffer that it writes and that is not a batch norm's, or empty.
    """

    forward_ns: int = 0
    backward_ns: int = 0
    calls: int = 0
    hidden: Bytes = field(default_factory=Bytes)
    changes: str = ""


def measure_units(
    model: nn.Module,
    inputs: Sequence[object],
    units: Mapping[str, nn.Module],
    needs_grad: Mapping[str, Sequence[bool]],
) -> dict[str, Measured]:
    """Run the model forward once, and each unit's backward pass at its place.

    Only one unit's saved tensors are in memory at a time. Parameters, their gradients, buffers and
    the random state are as before when it returns.
    """
    found = {name: Measured() for name in units}
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices=[]))
        stack.enter_context(cloned_buffers(model))
        for name, module in units.items():
            measuring = _Measuring(module, module.forward, found[name], needs_grad.get(name, ()))
            forward = measuring.run
            stack.enter_context(replaced(module, forward))
        with torch.no_grad():
            model(*inputs)
    return found


class _Measuring:
    """A unit's forward that measures both passes, and then runs."""

    def __init__(
        self,
        module: nn.Module,
        forward: Forward,
        measured: Measured,
        needs_grad: Sequence[bool],
    ) -> None:
        self._module, self._forward = module, forward
        self._measured, self._needs_grad = measured, needs_grad

    def run(self, *args: object, **kwargs: object) -> object:
        """Measure, and return what forward returns."""
        measured = self._measured
        times = [self._times(args, kwargs) for _ in range(_REPEATS)]
        if not measured.calls:
            measured.hidden = self._hidden(args, kwargs)
        measured.calls += 1
        measured.forward_ns += min(one for one, _ in times)
        measured.backward_ns += min(two for _, two in times)
        before = {name: (one, one._version) for name, one in self._module.named_buffers()}
        output = self._forward(*args, **kwargs)
        for name, one in self._module.named_buffers():
            owner = self._module.get_submodule(name.rpartition(".")[0])
            kept, version = before[name]
            if not isinstance(owner, _BATCH_NORMS) and (one is not kept or one._version != version):
                measured.changes = name
        return output

    def _times(self, args: tuple[object, ...], kwargs: dict[str, object]) -> tuple[int, int]:
        with self._apart(args, kwargs) as (forward, backward):
            start_ns = time.thread_time_ns()
            output = forward()
            middle_ns = time.thread_time_ns()
            run = backward(output)
            begin_ns = time.thread_time_ns()
            run()
            return middle_ns - start_ns, time.thread_time_ns() - begin_ns

    def _hidden(self, args: tuple[object, ...], kwargs: dict[str, object]) -> Bytes:
        """Return by how much the real passes exceed the same passes on fake tensors."""
        real = self._bytes(args, kwargs, Allocations)
        with on_fakes(self._module, (args, kwargs)) as ((values, names), recorder):
            shown = self._bytes(values, names, recorder.counting)
        return Bytes(
            max(0, real.forward - shown.forward),
            max(0, real.held - shown.held),
            max(0, real.backward - shown.backward),
        )

    def _bytes(
        self, args: tuple[object, ...], kwargs: dict[str, object], counting: Callable[[], Counting]
    ) -> Bytes:
        with self._apart(args, kwargs) as (forward, backward):
            with counting() as first:
                output = forward()
            run = backward(output)
            del output
            with counting() as second:
                run()
            return Bytes(first.peak_bytes, first.live_bytes, second.peak_bytes)

    @contextlib.contextmanager
    def _apart(
        self, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> Iterator[tuple[Callable[[], object], Callable[[object], Callable[[], object]]]]:
        """Yield the forward pass alone, and what makes the backward pass from its result."""
        needs = iter(self._needs_grad)

        def leaf(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.detach().requires_grad_(next(needs, False) and _has_grad(tensor))

        with cloned_buffers(self._module), torch.random.fork_rng(devices=[]), torch.enable_grad():
            values, names = pytree.tree_map_only(torch.Tensor, leaf, (args, kwargs))
            leaves = [one for one in tensors_of((values, names)) if one.requires_grad]
            leaves += [one for one in self._module.parameters() if one.requires_grad]

            def backward(output: object) -> Callable[[], object]:
                ends = [one for one in tensors_of(output) if one.requires_grad]
                if not ends or not leaves:
                    return lambda: None
                given = [torch.ones_like(one) for one in ends]
                return lambda: torch.autograd.grad(ends, leaves, given, allow_unused=True)

            yield lambda: self._forward(*values, **names), backward


def _has_grad(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


@contextlib.contextmanager
def cloned_buffers(module: nn.Module) -> Iterator[None]:
    """Let a module write into copies of its buffers for a while."""
    kept = [
        (part, name, buffer)
        for part in module.modules()
        for name, buffer in part._buffers.items()
        if buffer is not None
    ]
    for part, name, buffer in kept:
        part._buffers[name] = buffer.clone()
    try:
        yield
    finally:
        for part, name, buffer in kept:
            part._buffers[name] = buffer
