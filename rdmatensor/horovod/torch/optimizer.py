"""DistributedOptimizer: an optimizer that steps with the gradients of all ranks."""

from __future__ import annotations

import functools
import itertools
import os
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from rdmatensor.horovod import _runtime, basics
from rdmatensor.horovod._entry import Entry
from rdmatensor.horovod.basics import Adasum, Average
from rdmatensor.horovod.process_sets import ProcessSet, global_process_set
from rdmatensor.horovod.torch import _submit
from rdmatensor.horovod.torch.compression import Compression
from rdmatensor.horovod.torch.functions import broadcast_object
from rdmatensor.horovod.torch.handles import synchronize
from rdmatensor.horovod.torch.reductions import (
    CompressorLike,
    allreduce_async_,
    grouped_allreduce_async_,
    sparse_allreduce_async,
)

Named = list[tuple[str, torch.Tensor]]
Group = tuple[torch.Tensor, ...]
Waiter = Callable[[], object]


class _Part:
    """Gradients that are reduced together; one, unless there are groups.

    left: backward passes of each until they are sent; entry: the operation, which is used again in
    each step; wait: while they are sent.
    """

    __slots__ = ("entry", "left", "name", "parameters", "wait")

    def __init__(self, parameters: Group, name: str, passes: int) -> None:
        self.parameters, self.name = parameters, name
        self.left = [passes] * len(parameters)
        self.entry: Entry | None = None
        self.wait: Waiter | None = None


class _Reducer:
    """The reduction of an optimizer's gradients, from the hooks of backward() to step()."""

    def __init__(
        self,
        named: Named,
        groups: list[Group],
        compression: CompressorLike,
        passes: int,
        op: int,
        predivide: float,
        sparse_as_dense: bool,
        process_set: ProcessSet,
    ) -> None:
        self.names = {parameter: name for name, parameter in named}
        self.passes = passes
        self.compression, self.op, self.process_set = compression, op, process_set
        # An average divides by the number of ranks after the sum.
        self.factors: dict[str, Any] = {
            "prescale_factor": 1.0 / predivide,
            "postscale_factor": predivide,
        }
        self.sparse_as_dense = sparse_as_dense
        self.parts = [_Part(group, self.names[group[0]], passes) for group in groups]
        self.is_sending = False

    def listen(self) -> None:
        """Have backward() call ready()."""
        method = weakref.WeakMethod(self.ready)  # parameters outlive the optimizer

        def hook_of(part: _Part, index: int) -> Callable[[torch.Tensor], None]:
            def hook(_: torch.Tensor) -> None:
                ready = method()
                if ready is not None:
                    ready(part, index)

            return hook

        for part in self.parts:
            for index, parameter in enumerate(part.parameters):
                parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                    hook_of(part, index)
                )

    def reset(self) -> None:
        """Forget the gradients of an unfinished step."""
        self.is_sending = False
        for part in self.parts:
            part.wait = None
            part.left = [self.passes] * len(part.left)

    def ready(self, part: _Part, index: int) -> None:
        """Take note that a backward pass has added to a gradient."""
        if part.left[index] <= 0:
            raise AssertionError(
                f"the gradient of {self.names[part.parameters[index]]} was computed more than "
                f"backward_passes_per_step={self.passes} times before step(): give "
                "DistributedOptimizer() the number of passes"
            )
        part.left[index] -= 1
        if not any(part.left):
            self._send(part)

    def synchronize(self) -> None:
        """Send what was not sent, as it is or as zeros; wait for all sums."""
        for part in self.parts:
            if part.wait is None:
                self._send(part)
        try:
            for part in self.parts:
                assert part.wait is not None
                part.wait()
        finally:
            self.reset()

    def _send(self, part: _Part) -> None:
        self.is_sending = True
        for one in part.parameters:
            if one.grad is None:  # another rank may have one
                one.grad = torch.zeros_like(one, memory_format=torch.contiguous_format)
        if not self._send_again(part):
            part.wait = self._waiter(part)

    def _send_again(self, part: _Part) -> bool:
        """Send by the operation of the last step, if the gradients are as they were."""
        entry = part.entry
        if entry is None:
            return False
        grads = [one.grad for one in part.parameters]
        if not entry.can_take(grads):
            return False
        entry.renew(grads)
        controller = _runtime.controller()
        controller.submit(entry)
        part.wait = functools.partial(controller.wait, entry)
        return True

    def _waiter(self, part: _Part) -> Waiter:
        group = part.parameters
        arguments: dict[str, Any] = {"op": self.op, "process_set": self.process_set}
        if len(group) == 1 and _gradient(group[0]).is_sparse:
            return self._send_sparse(group[0], part.name)
        pairs = [self.compression.compress(_dense(_gradient(one))) for one in group]
        sent = [_contiguous(tensor) for tensor, _ in pairs]
        arguments |= self.factors
        if len(group) == 1:
            handle = allreduce_async_(sent[0], name=part.name, **arguments)
        else:
            handle = grouped_allreduce_async_(sent, name=part.name, **arguments)
        if all(tensor is one.grad for tensor, one in zip(sent, group, strict=True)):
            part.entry = _submit.entry_of(handle)  # nothing is to be done but the reduction

        def wait() -> None:
            found = synchronize(handle)
            results = [found] if len(group) == 1 else found
            for one, result, (_, ctx) in zip(group, results, pairs, strict=True):
                self._put(one, self.compression.decompress(result, ctx))

        return wait

    def _send_sparse(self, parameter: torch.Tensor, name: str) -> Waiter:
        gradient = _gradient(parameter)
        if not self.sparse_as_dense:
            result = sparse_allreduce_async(gradient, name, self.op, self.process_set)
            return lambda: self._put(parameter, result())
        compressed, ctx = self.compression.compress(gradient.to_dense())
        handle = allreduce_async_(
            compressed, name=name, op=self.op, process_set=self.process_set, **self.factors
        )

        def wait() -> None:
            dense = self.compression.decompress(synchronize(handle), ctx)
            self._put(parameter, dense.to_sparse())

        return wait

    @staticmethod
    def _put(parameter: torch.Tensor, reduced: torch.Tensor) -> None:
        gradient = _gradient(parameter)
        if gradient.is_sparse:
            parameter.grad = reduced.to(gradient.dtype)
        elif gradient.data_ptr() != reduced.data_ptr():
            gradient.copy_(reduced)


def _gradient(parameter: torch.Tensor) -> torch.Tensor:
    assert parameter.grad is not None
    return parameter.grad


def _dense(gradient: torch.Tensor) -> torch.Tensor:
    return gradient.to_dense() if gradient.is_sparse else gradient


def _contiguous(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.is_contiguous() else tensor.contiguous()


class _Distributed:
    """What DistributedOptimizer() adds to the class of an optimizer."""

    _reducer: _Reducer
    _is_active: bool
    _is_synchronized = False
    _should_synchronize = True
    param_groups: list[dict[str, Any]]

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Set how many backward passes come before each step."""
        self._reducer.passes = passes
        self._reducer.reset()

    @property
    def backward_passes_per_step(self) -> int:
        """Backward passes before each step."""
        return self._reducer.passes

    @property
    def _parameter_names(self) -> dict[torch.Tensor, str]:
        return self._reducer.names  # scripts read it

    def synchronize(self) -> None:
        """Wait until the gradients are those of all ranks."""
        if self._is_active:
            self._reducer.synchronize()
        self._is_synchronized = True

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Have step() not wait inside, as synchronize() was called."""
        self._should_synchronize = False
        try:
            yield
        finally:
            self._should_synchronize = True

    def step(self, closure: Callable[[], float] | None = None) -> Any:  # noqa: ANN401 - torch's
        """Wait until the gradients are those of all ranks; then step."""
        if self._should_synchronize:
            if self._is_synchronized:
                warnings.warn(
                    "optimizer.step() called without optimizer.skip_synchronize() after "
                    "optimizer.synchronize(): it reduces the gradients again",
                    stacklevel=2,
                )
            self.synchronize()
        self._is_synchronized = False
        return self._local_step(closure)

    def _local_step(self, closure: Callable[[], float] | None = None) -> Any:  # noqa: ANN401
        return super().step(closure)  # type: ignore[misc]

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - torch's
        """Clear the gradients; AssertionError while they are reduced."""
        if self._reducer.is_sending:
            raise AssertionError(
                "zero_grad() was called between backward() and step() or synchronize(), while the "
                "gradients are reduced"
            )
        super().zero_grad(*args, **kwargs)  # type: ignore[misc]

    def load_state_dict(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - torch's
        """Load a state; an unfinished step is forgotten."""
        self._reducer.reset()
        self._is_synchronized, self._should_synchronize = False, True
        super().load_state_dict(*args, **kwargs)  # type: ignore[misc]


def DistributedOptimizer(  # noqa: N802 - Horovod's name
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
    compression: CompressorLike = Compression.none,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[torch.Tensor]] | None = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:  # noqa: ANN401 - of the optimizer's own class, with more methods
    """Return an optimizer of the same class that steps with the gradients of all ranks.

    backward() starts the reduction of each gradient as soon as it is computed; step() waits for
    all. A gradient that this rank did not compute counts as zeros.

    Args:
        optimizer: Any torch optimizer; the result shares its param_groups and its state.
        named_parameters: Names on which ranks agree, such as `model.named_parameters()`. None
            numbers the parameters.
        compression: What is sent in place of a gradient.
        backward_passes_per_step: Passes that add to the gradients before they are reduced.
        op: Average, Sum, Min, Max or Product.
        gradient_predivide_factor: An average divides by this before the sum, and by the rest after.
        num_groups: Deprecated: groups.
        groups: Gradients that are reduced together: a number of groups, or lists of parameters.
        sparse_as_dense: Reduce sparse gradients as dense ones.
        process_set: The ranks whose gradients count; on others the optimizer is local.

    Returns:
        The optimizer, with synchronize(), skip_synchronize() and set_backward_passes_per_step().

    Raises:
        ValueError: Names are not unique or missing, or an argument is wrong.
        NotImplementedError: op is Adasum.

    Example:
        >>> model = torch.nn.Linear(2, 1)
        >>> sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> optimizer = DistributedOptimizer(sgd, model.named_parameters())
        >>> model(torch.ones(2)).backward()
        >>> optimizer.step()
    """
    if op != Average and gradient_predivide_factor != 1.0:
        raise ValueError("gradient_predivide_factor divides an average: it needs op=hvd.Average")
    if backward_passes_per_step <= 0:
        raise ValueError(f"backward_passes_per_step={backward_passes_per_step} must be positive")
    if num_groups != 0:
        warnings.warn("num_groups was replaced by groups", DeprecationWarning, stacklevel=2)
        groups = num_groups if groups is None else groups
    if op != Adasum or basics.size() > 1:
        _submit.check_op(op)
    named = _named(optimizer, named_parameters)
    _check_groups(groups)
    size = basics.size()
    one = _wrapped(optimizer)
    one._is_active = bool(process_set.included()) and (
        size > 1 or os.environ.get("HOROVOD_ELASTIC") == "1"
    )
    formed = _formed(
        optimizer, {one: name for name, one in named}, groups, process_set, one._is_active
    )
    one._reducer = _Reducer(
        named,
        formed,
        compression,
        backward_passes_per_step,
        op,
        gradient_predivide_factor,
        sparse_as_dense,
        process_set,
    )
    if one._is_active:
        one._reducer.listen()
    return one


def _wrapped(optimizer: torch.optim.Optimizer) -> Any:  # noqa: ANN401
    """Return an optimizer of a subclass that shares all that the optimizer has."""
    base = type(optimizer)
    made = type(base.__name__, (_Distributed, base), {"__module__": base.__module__})
    one: Any = object.__new__(made)
    # A learning-rate schedule of the original has put a step() of its own there.
    one.__dict__.update({name: has for name, has in vars(optimizer).items() if name != "step"})
    return one


def _named(
    optimizer: torch.optim.Optimizer, given: Iterable[tuple[str, torch.Tensor]] | None
) -> Named:
    if given is None:
        return [
            (f"allreduce.noname.{i}.{j}", parameter)
            for i, group in enumerate(optimizer.param_groups)
            for j, parameter in enumerate(group["params"])
        ]
    named = list(given)
    if any(not isinstance(one, tuple) for one in named):
        raise ValueError(
            "named_parameters must be pairs of a name and a parameter, as model.named_parameters()"
        )
    names = [name for name, _ in named]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"names of parameters must be unique, and these are not: {twice}")
    known = {id(parameter) for _, parameter in named}
    every = [one for group in optimizer.param_groups for one in group["params"]]
    missing = [tuple(one.shape) for one in every if id(one) not in known]
    if missing:
        raise ValueError(f"named_parameters lacks parameters of the optimizer, of shapes {missing}")
    return named


def _check_groups(groups: int | Sequence[Sequence[torch.Tensor]] | None) -> None:
    if groups is None:
        return
    if isinstance(groups, int):
        if groups <= 0:
            raise ValueError(f"groups={groups} must be a positive number, or lists of parameters")
        return
    seen: set[int] = set()
    for group in groups:
        for one in group:
            if not isinstance(one, torch.Tensor):
                raise ValueError(f"groups must consist of parameters, not of {type(one).__name__}")
            if id(one) in seen:
                raise ValueError("a parameter can be in one group only")
            seen.add(id(one))


def _formed(
    optimizer: torch.optim.Optimizer,
    names: dict[torch.Tensor, str],
    groups: int | Sequence[Sequence[torch.Tensor]] | None,
    process_set: ProcessSet,
    is_active: bool,
) -> list[Group]:
    """Return the parameters that are reduced together, in the same order on all ranks."""
    parameters = [
        one for group in optimizer.param_groups for one in group["params"] if one.requires_grad
    ]
    if groups is None or not is_active:
        return [(one,) for one in parameters]
    assert process_set.ranks is not None
    own = [names[one] for one in parameters]
    order = broadcast_object(own, process_set.ranks[0], "groups", process_set)
    places = {name: place for place, name in enumerate(order)}
    parameters.sort(key=lambda one: places.get(names[one], len(places)))
    if isinstance(groups, int):
        count, more = divmod(len(parameters), groups)
        ends = [count * i + min(i, more) for i in range(groups + 1)]
        formed = [tuple(parameters[a:b]) for a, b in itertools.pairwise(ends)]
    else:
        known = {id(one) for one in parameters}
        formed = [tuple(one for one in group if id(one) in known) for group in groups]
        grouped = {id(one) for group in formed for one in group}
        formed += [(one,) for one in parameters if id(one) not in grouped]
    return [group for group in formed if group]
