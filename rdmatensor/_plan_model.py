"""Whether a model still is the one that its plan was made of."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping

import torch

from rdmatensor._plan_memory import Gradient, PlanMismatch

_AGAIN = "analyze the model and apply the plan again"


def held_weakly(method: Callable[[torch.Tensor], None]) -> Callable[[torch.Tensor], None]:
    """Return a hook for a parameter that does not keep the method's object alive.

    torch has such hooks where Python's collector does not look: one that leads back to its
    parameter, as by the model, would keep both for ever.
    """
    known = weakref.WeakMethod(method)

    def hook(parameter: torch.Tensor) -> None:
        bound = known()
        if bound is not None:
            bound(parameter)

    return hook


class ModelCheck:
    """Watches a model's trainable parameters; a gradient that nobody sends would part the ranks."""

    def __init__(
        self,
        model: torch.nn.Module,
        planned: Mapping[torch.nn.Parameter, Gradient],
        *,
        is_alone: bool,
    ) -> None:
        """is_alone: the group has one rank, to which a plan sends nothing."""
        self._model = model
        self._names = {p: gradient.name for p, gradient in planned.items()}
        self._planned = {p: (p.shape, p.dtype) for p in planned}
        self._trained = {p for p in model.parameters() if p.requires_grad}
        refuse = held_weakly(self._refuse)
        self.hooks = [
            p.register_post_accumulate_grad_hook(refuse)  # type: ignore[no-untyped-call]
            for p in self._trained
            if p not in self._planned and not is_alone
        ]

    def check(self, *, is_sending: bool) -> None:
        """Raise PlanMismatch if a parameter is trained but not planned.

        In a pass that sends gradients also the reverse.
        """
        present = set()
        for parameter in self._model.parameters():
            present.add(parameter)
            if parameter.requires_grad and parameter not in self._trained:
                raise PlanMismatch(
                    f"parameter {self._name_of(parameter)} is trained now; it was not there, or "
                    f"frozen, when the plan was applied: {_AGAIN}"
                )
            wanted = self._planned.get(parameter)
            if wanted is not None and wanted != (parameter.shape, parameter.dtype):
                raise PlanMismatch(
                    f"parameter {self._name_of(parameter)} is {tuple(parameter.shape)} of "
                    f"{parameter.dtype} now; the plan has {tuple(wanted[0])} of {wanted[1]}: "
                    f"{_AGAIN}"
                )
        if is_sending:
            self._check_planned(present)

    def _check_planned(self, present: set[torch.nn.Parameter]) -> None:
        """Those of which no gradient will come: the optimizer would act on zeros in its place."""
        for parameter, name in self._names.items():
            if parameter not in present:
                raise PlanMismatch(
                    f"parameter {name} of the plan is not in the model any more: {_AGAIN}"
                )
            if not parameter.requires_grad:
                raise PlanMismatch(
                    f"parameter {name} is frozen now; it was trained when the plan was applied: "
                    f"{_AGAIN}"
                )

    def _refuse(self, parameter: torch.Tensor) -> None:
        raise PlanMismatch(
            f"parameter {self._name_of(parameter)} has a gradient, and none in the plan, whose "
            f"graph did not use it: {_AGAIN}, with inputs for which it is used"
        )

    def _name_of(self, parameter: torch.Tensor) -> str:
        return next(name for name, one in self._model.named_parameters() if one is parameter)
