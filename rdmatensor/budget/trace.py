"""The memory of one training step, byte by byte, without its memory and without computing it.

The step runs on fake tensors, which have sizes and no content. Autograd, its saved tensors and the
moment at which each is freed are real.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar, cast

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import TensorWeakRef

from rdmatensor._native.arguments import invalid
from rdmatensor.budget.units import tensors_of

LossFn = Callable[..., torch.Tensor]
Forward = Callable[..., object]
Wrap = Callable[[nn.Module, Forward], Forward]
Given = TypeVar("Given")
_ITEM = torch.ops.aten._local_scalar_dense.default


@dataclass(slots=True)
class Segment:
    """A stretch of the step: live bytes when it begins, and the most in it."""

    name: str
    start_bytes: int
    peak_bytes: int
    hidden_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Bytes:
    """Memory of one unit's passes, from the beginning of each.

    Attributes:
        forward: The most in the forward pass.
        held: What it leaves: outputs and saved tensors.
        backward: The most in the backward pass.
    """

    forward: int = 0
    held: int = 0
    backward: int = 0


@dataclass(slots=True)
class Trace:
    """Memory of one step.

    Attributes:
        forward: In order of execution; a unit's segment ends where the next unit begins.
        backward: The same for the backward pass; the first, without a name, until the last unit's.
        end: From the end of the backward pass to that of the optimizer's step.
        live: Bytes after each operation.
        forward_end: Operations of the forward pass.
        changed: Units that must be kept, by name, with the reason.
        needs_grad: Of each unit, whether gradients flow into the tensors that it is given.
        state_bytes: Of the optimizer.
    """

    forward: list[Segment] = field(default_factory=list)
    backward: list[Segment] = field(default_factory=list)
    end: Segment = field(default_factory=lambda: Segment("", 0, 0))
    live: list[int] = field(default_factory=list)
    forward_end: int = 0
    changed: dict[str, str] = field(default_factory=dict)
    needs_grad: dict[str, list[bool]] = field(default_factory=dict)
    state_bytes: int = 0

    @property
    def peak_bytes(self) -> int:
        """The most bytes at one moment."""
        return max(one.peak_bytes for one in (*self.forward, *self.backward, self.end))


class Counting(Protocol):
    """A block in which bytes are counted."""

    peak_bytes: int
    live_bytes: int

    def __enter__(self) -> Counting:
        """Begin."""

    def __exit__(self, *_: object) -> None:
        """End."""


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of living storages after each operation."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live_bytes = 0
        self.live: list[int] = []
        self.segment = Segment("", 0, 0)
        self.is_stepping = False
        self._known: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    def begin(self, name: str) -> Segment:
        """Begin a segment."""
        self.segment = Segment(name, self.live_bytes, self.live_bytes)
        return self.segment

    def add(self, tensor: torch.Tensor) -> None:
        """Count a tensor's storage until it is freed."""
        storage = tensor.untyped_storage()
        key = id(storage)
        known = self._known.get(key)
        if known is not None and known() is storage:
            return
        size = storage.nbytes()
        self._known[key] = weakref.ref(storage, lambda _: self._freed(key, size))
        self.live_bytes += size
        self.segment.peak_bytes = max(self.segment.peak_bytes, self.live_bytes)

    def counting(self) -> Counting:
        """Return a block that counts what it allocates and frees."""
        return _Block(self)

    def _freed(self, key: int, size: int) -> None:
        self._known.pop(key, None)
        self.live_bytes -= size

    def __torch_dispatch__(
        self,
        func: Callable[..., object],
        types: object,
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        if self.is_stepping and func is _ITEM:
            return 1.0  # the count of steps, which some optimizers keep in a tensor
        out = func(*args, **(kwargs or {}))
        for tensor in tensors_of(out):
            self.add(tensor)
        self.live.append(self.live_bytes)
        return out


class _Block:
    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self.peak_bytes = self.live_bytes = 0

    def __enter__(self) -> _Block:
        self._segment = self._recorder.begin("")
        return self

    def __exit__(self, *_: object) -> None:
        self.peak_bytes = self._segment.peak_bytes - self._segment.start_bytes
        self.live_bytes = self._recorder.live_bytes - self._segment.start_bytes


@contextlib.contextmanager
def on_fakes(module: nn.Module, given: Given) -> Iterator[tuple[Given, Recorder]]:
    """Yield the arguments as fake tensors, while parameters and buffers are fake, too."""
    fake, recorder = FakeTensorMode(allow_non_fake_inputs=True), Recorder()
    with fake:
        fakes = {
            id(tensor): fake.from_tensor(tensor)
            for tensor in (*module.parameters(), *module.buffers())
        }
        made = pytree.tree_map_only(torch.Tensor, fake.from_tensor, given)
    for tensor in (*fakes.values(), *tensors_of(made)):
        recorder.add(tensor)
    with _standing_in(module, fakes), fake, recorder:
        yield made, recorder


def trace_step(
    model: nn.Module,
    inputs: Sequence[object],
    loss_fn: LossFn | None,
    optimizer: torch.optim.Optimizer | None,
    units: Mapping[str, nn.Module],
    wraps: Mapping[str, Wrap],
    hidden: Mapping[str, Bytes],
) -> Trace:
    """Run one step on fake tensors.

    wraps: what replaces the forward of some units. hidden: memory of a unit that fake tensors do
        not show, such as work space inside kernels.

    Raises:
        InvalidArgumentError: The step cannot run without content: its sizes or its control flow
            depend on the data, or it fails.
    """
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    recorder, trace = Recorder(), Trace()
    with fake:
        fakes = {
            id(tensor): fake.from_tensor(tensor)
            for tensor in (*model.parameters(), *model.buffers())
        }
        given = pytree.tree_map_only(torch.Tensor, fake.from_tensor, tuple(inputs))
    for tensor in (*fakes.values(), *tensors_of(given)):
        recorder.add(tensor)
    marks = _Marks(recorder, trace, hidden, wraps)
    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.random.fork_rng(devices=[]))
            stack.enter_context(_standing_in(model, fakes))
            for name, module in units.items():
                forward: Forward = module.forward
                if name in wraps:
                    forward = wraps[name](module, forward)
                stack.enter_context(replaced(module, marks.around(name, forward)))
            stack.enter_context(fake)
            stack.enter_context(recorder)
            step = _stepper(optimizer, fakes, recorder)
            _run(model, given, loss_fn, step, marks)
    except (RuntimeError, NotImplementedError) as error:
        raise invalid(
            "fit", f"the step cannot be traced without its data: {_line(error)}"
        ) from error
    trace.live = recorder.live
    return trace


def _run(
    model: nn.Module,
    inputs: Sequence[object],
    loss_fn: LossFn | None,
    step: Callable[[], None],
    marks: _Marks,
) -> None:
    """Run a step as any but the first: the optimizer has its state, gradients are None."""
    recorder, trace = marks.recorder, marks.trace
    before = recorder.live_bytes
    step()
    for parameter in model.parameters():
        parameter.grad = None
    trace.state_bytes = recorder.live_bytes - before
    recorder.live.clear()
    trace.forward.append(recorder.begin(""))
    loss = _loss(model(*inputs), inputs, loss_fn)
    marks.check_inputs()
    trace.forward_end = len(recorder.live)
    trace.backward.append(recorder.begin(""))
    loss.backward()  # type: ignore[no-untyped-call]
    marks.end()
    del loss
    trace.end = recorder.begin("")
    step()


def _line(error: Exception) -> str:
    first = (str(error).strip().splitlines() or ["no message"])[0]
    return f"{type(error).__name__}: {first}"


def _loss(output: object, inputs: Sequence[object], loss_fn: LossFn | None) -> torch.Tensor:
    """The scalar in which the step ends, as in graph_analysis.analyze()."""
    if loss_fn is not None:
        loss = loss_fn(output, *inputs)
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            raise invalid("fit", "loss_fn(output, *inputs) does not return a scalar tensor")
        return loss
    floating = [one for one in tensors_of(output) if one.is_floating_point()]
    if not floating:
        raise invalid("fit", "the model has no floating output to sum up, give a loss_fn")
    return torch.stack([one.float().sum() for one in floating]).sum()


def _stepper(
    optimizer: torch.optim.Optimizer | None,
    fakes: Mapping[int, torch.Tensor],
    recorder: Recorder,
) -> Callable[[], None]:
    """Return a function that runs the optimizer's step on the fake parameters."""
    if optimizer is None:
        return lambda: None
    stepped = copy.copy(optimizer)
    stepped.state = defaultdict(dict)
    stepped.param_groups = [
        {**group, "params": [fakes[id(one)] for one in group["params"] if id(one) in fakes]}
        for group in optimizer.param_groups
    ]
    run = inspect.unwrap(type(stepped).step)  # without the hooks of other libraries

    def step() -> None:
        for group in stepped.param_groups:
            for one in group["params"]:
                if one.grad is None and one.requires_grad:
                    one.grad = torch.empty_like(one)
        recorder.is_stepping = True
        try:
            with torch.no_grad():
                run(stepped)
        finally:
            recorder.is_stepping = False

    return step


class _Marks:
    """Marks where units begin in both passes, while the step runs."""

    def __init__(
        self,
        recorder: Recorder,
        trace: Trace,
        hidden: Mapping[str, Bytes],
        wraps: Mapping[str, Wrap],
    ) -> None:
        self.recorder, self.trace = recorder, trace
        self._hidden, self._wraps = hidden, wraps
        self._held: dict[str, int] = {}
        # Weak: what keeps a tensor alive would change what is measured.
        self._inputs: list[tuple[str, TensorWeakRef, int]] = []

    def around(self, name: str, forward: Forward) -> Forward:
        """Return forward with its marks."""
        hidden = self._hidden.get(name, Bytes())

        def begin_backward(_: torch.Tensor) -> None:
            if self.trace.backward[-1].name == name:
                return
            self._end_backward()
            self.trace.backward.append(self.recorder.begin(name))
            if name in self._wraps:  # the forward pass happens in this segment
                self.recorder.segment.hidden_bytes = hidden.held + hidden.backward
            else:
                self.recorder.segment.hidden_bytes = hidden.backward

        def marked(*args: object, **kwargs: object) -> object:
            self.check_inputs()
            given = tensors_of((args, kwargs))
            versions = [one._version for one in given]
            self.trace.needs_grad.setdefault(name, [one.requires_grad for one in given])
            segment = self.recorder.begin(name)
            self.trace.forward.append(segment)
            output = forward(*args, **kwargs)
            segment.peak_bytes += hidden.forward
            if name not in self._wraps and torch.is_grad_enabled():
                self._held[name] = self._held.get(name, 0) + hidden.held
                self.recorder.live_bytes += hidden.held
            for one, version in zip(given, versions, strict=True):
                if one._version != version:
                    self.trace.changed.setdefault(name, "it changes its input in place")
                self._inputs.append((name, TensorWeakRef(one), version))
            for one in tensors_of(output):
                if one.requires_grad:
                    one.register_hook(begin_backward)  # type: ignore[no-untyped-call]
            return output

        return marked

    def _end_backward(self) -> None:
        """Free what the last unit held outside of tensors."""
        last = self.trace.backward[-1]
        last.peak_bytes += last.hidden_bytes
        self.recorder.live_bytes -= self._held.pop(last.name, 0)

    def end(self) -> None:
        """End the backward pass."""
        self._end_backward()
        for name in list(self._held):
            self.recorder.live_bytes -= self._held.pop(name)

    def check_inputs(self) -> None:
        """Find the units whose inputs were changed after them: they would recompute others."""
        alive = []
        for name, reference, version in self._inputs:
            tensor = reference()
            if tensor is None:
                continue
            if tensor._version != version:
                self.trace.changed.setdefault(name, "its input is changed in place later")
            alive.append((name, reference, version))
        self._inputs = alive


@contextlib.contextmanager
def _standing_in(model: nn.Module, fakes: Mapping[int, torch.Tensor]) -> Iterator[None]:
    """Put fake tensors in the places of parameters and buffers, for both passes."""
    places = [
        (table, name, tensor)
        for module in model.modules()
        for table in (module._parameters, module._buffers)
        for name, tensor in table.items()
        if tensor is not None
    ]
    try:
        for table, name, tensor in places:
            cast("dict[str, torch.Tensor]", table)[name] = fakes[id(tensor)]
        yield
    finally:
        for table, name, tensor in places:
            cast("dict[str, torch.Tensor]", table)[name] = tensor


@contextlib.contextmanager
def replaced(module: nn.Module, forward: Forward) -> Iterator[None]:
    """Give a module another forward for a while."""
    before = module.__dict__.get("forward")
    module.__dict__["forward"] = forward
    try:
        yield
    finally:
        if before is None:
            del module.__dict__["forward"]
        else:
            module.__dict__["forward"] = before
