"""Which plan sends the gradient of a parameter."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import torch
from torch.utils.weak import WeakIdKeyDictionary

from graph_analysis import Mask
from rdmatensor.errors import PlanMismatchError

# The plan of each parameter that has one.
_planned: Any = WeakIdKeyDictionary()


class Planned(Protocol):
    """The part of rdmatensor.plan.PlannedModel that is used here."""

    module: torch.nn.Module

    def close(self) -> None:
        """Remove the plan from its model."""

    def thin(self, masks: Mapping[str, Mask]) -> None:
        """Send the live blocks of these parameters' gradients only."""


class Owned(Protocol):
    """The part of a planned gradient that is used here."""

    name: str
    parameter: torch.nn.Parameter


def close_plan_before(model: torch.nn.Module) -> None:
    """Close the model's own plan, which another one is to replace."""
    for parameter in model.parameters():
        before = plan_of(parameter)
        if before is not None and before.module is model:
            before.close()


def plan_of(parameter: torch.Tensor) -> Planned | None:
    """Return the plan that sends a parameter's gradient; None if none does."""
    known: weakref.ref[Planned] | None = _planned.get(parameter)
    return None if known is None else known()


def claim(plan: Planned, gradients: Iterable[Owned]) -> None:
    """Register the plan as the one of these parameters.

    Raises:
        PlanMismatchError: One has a plan already, for example if two models share a layer: both
            would send it.
    """
    gradients = list(gradients)
    for gradient in gradients:
        if plan_of(gradient.parameter) is not None:
            raise PlanMismatchError(
                f"parameter {gradient.name} has the plan of another model, which shares it: "
                "close() that one first, or plan one model that has both as its parts"
            )
    for gradient in gradients:
        _planned[gradient.parameter] = weakref.ref(plan)


def unclaim(plan: Planned, gradients: Iterable[Owned]) -> None:
    """Undo claim()."""
    for gradient in gradients:
        if plan_of(gradient.parameter) is plan:
            del _planned[gradient.parameter]
