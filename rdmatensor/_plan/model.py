"""The model of a plan: hooks that copies of it do not have, and whether it still fits the plan."""

from __future__ import annotations

import contextlib
import dataclasses
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from rdmatensor._plan.memory import Gradient
from rdmatensor.errors import PlanMismatchError

_AGAIN = "analyze the model and apply the plan again"


class ModuleHook:
    """A hook of a module; in a copy of the module, or a file of it, a function without effect.

    That function is in Python's library, so that such a file can be read without this package.
    """

    def __init__(self, call: Callable[..., None]) -> None:
        self._call = call

    def __call__(self, *given: object) -> None:
        self._call(*given)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[object, ...]]:
        return getattr, (contextlib.nullcontext(), "__exit__")


def held_weakly(method: Callable[[Any], None]) -> Callable[[Any], None]:
    """Return a hook for a parameter that does not keep the method's object alive.

    torch keeps such hooks where Python's collector does not see them: a hook that refers back to
    its parameter, for example through the model, would keep both alive forever.
    """
    known = weakref.WeakMethod(method)

    def hook(given: object) -> None:
        bound = known()
        if bound is not None:
            bound(given)

    return hook


def tensors_in(output: object) -> list[torch.Tensor]:
    """Return the tensors of a model's output: of containers known to torch, and of dataclasses."""
    found: list[torch.Tensor] = []
    waiting = tree_leaves(output)
    while waiting:
        part = waiting.pop()
        if isinstance(part, torch.Tensor):
            found.append(part)
        elif dataclasses.is_dataclass(part) and not isinstance(part, type):
            fields = dataclasses.fields(part)
            waiting += tree_leaves([getattr(part, field.name, None) for field in fields])
    return found


def check_not_sparse(model: torch.nn.Module) -> None:
    """Raise PlanMismatchError for a layer that declares its gradient sparse."""
    for name, module in model.named_modules():
        if getattr(module, "sparse", False) is not True:
            continue
        weight = getattr(module, "weight", None)
        if isinstance(weight, torch.Tensor) and weight.requires_grad:
            raise PlanMismatchError(
                f"{name or 'the model'} is made with sparse=True: sparse gradients are not "
                "planned. Make it with sparse=False, or train with DistributedDataParallel"
            )


class ModelCheck:
    """Watches a model's trainable parameters: an unsent gradient makes ranks diverge."""

    def __init__(
        self,
        model: torch.nn.Module,
        planned: Mapping[torch.nn.Parameter, Gradient],
        refuse: Callable[[torch.Tensor], None],
    ) -> None:
        """Watch from now on.

        refuse: called with a trained parameter that has a gradient and no place in the plan.
        """
        self._model = model
        self._names = {p: gradient.name for p, gradient in planned.items()}
        self._planned = {p: (p.shape, p.dtype) for p in planned}
        self._trained = {p for p in model.parameters() if p.requires_grad}
        self.hooks = [
            p.register_post_accumulate_grad_hook(refuse)  # type: ignore[no-untyped-call]
            for p in self._trained
            if p not in self._planned
        ]

    def check(self, *, is_sending: bool) -> None:
        """Raise PlanMismatchError if a parameter is trained but not planned.

        In a pass that sends gradients, also if one is planned but not trained.
        """
        present = set()
        for parameter in self._model.parameters():
            present.add(parameter)
            if parameter.requires_grad and parameter not in self._trained:
                raise PlanMismatchError(
                    f"parameter {self.name_of(parameter)} is trained now; it was not there, or "
                    f"frozen, when the plan was applied: {_AGAIN}"
                )
            wanted = self._planned.get(parameter)
            if wanted is not None and wanted != (parameter.shape, parameter.dtype):
                raise PlanMismatchError(
                    f"parameter {self.name_of(parameter)} is {tuple(parameter.shape)} of "
                    f"{parameter.dtype} now; the plan has {tuple(wanted[0])} of {wanted[1]}: "
                    f"{_AGAIN}"
                )
        if is_sending:
            self._check_planned(present)

    def is_frozen(self) -> bool:
        """Whether no planned parameter is trained now: a backward pass brings no gradient."""
        return not any(parameter.requires_grad for parameter in self._names)

    def unplanned(self, parameter: torch.Tensor) -> PlanMismatchError:
        """Return the error of a parameter whose gradient is in no plan."""
        return PlanMismatchError(
            f"parameter {self.name_of(parameter)} has a gradient, and none in the plan, whose "
            f"graph did not use it: {_AGAIN}, with inputs for which it is used"
        )

    def _check_planned(self, present: set[torch.nn.Parameter]) -> None:
        """Refuse planned parameters without a gradient: optimizers would act on zeros."""
        for parameter, name in self._names.items():
            if parameter not in present:
                raise PlanMismatchError(
                    f"parameter {name} of the plan is not in the model any more: {_AGAIN}"
                )
            if not parameter.requires_grad:
                raise PlanMismatchError(
                    f"parameter {name} is frozen now; it was trained when the plan was applied: "
                    f"{_AGAIN}"
                )

    def name_of(self, parameter: torch.Tensor) -> str:
        """Return the name that the model has for a parameter."""
        return next(name for name, one in self._model.named_parameters() if one is parameter)
