"""DistributedOptimizer: an optimizer that steps with the gradients of all ranks."""

from __future__ import annotations

import itertools
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from rdmatensor.horovod import basics
from rdmatensor.horovod.basics import Adasum, Average
from rdmatensor.horovod.process_sets import ProcessSet, global_process_set
from rdmatensor.horovod.torch import _submit
from rdmatensor.horovod.torch._forms import CompressorLike
from rdmatensor.horovod.torch._reducer import Group, Named, Reducer
from rdmatensor.horovod.torch.compression import Compression
from rdmatensor.horovod.torch.functions import broadcast_object


class _Distributed:
    """What DistributedOptimizer() adds to the class of an optimizer."""

    _reducer: Reducer
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
        if self._is_active:
            self._reducer.expect()

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
    one._reducer = Reducer(
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
