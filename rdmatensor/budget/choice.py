"""What was chosen for each unit, and whether a model is the one that it was chosen for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from graph_analysis.keep import WayName
from rdmatensor.errors import PlanMismatchError


@dataclass(frozen=True)
class UnitPlan:
    """What happens to the tensors that one module saves.

    Attributes:
        name: Qualified name of the module.
        way: "keep", "recompute" or "peer".
        reason: Why it has no other way than "keep", or empty.
        saved_bytes: What its forward pass leaves in memory where it is kept.
        held_bytes: What it leaves in this way.
        added_ns: Time that the way adds to a step.
        forward_ns: Time of its forward pass.
        lent_bytes: With "peer", of each tensor that moves.
    """

    name: str
    way: WayName
    reason: str
    saved_bytes: int
    held_bytes: int
    added_ns: int
    forward_ns: int
    lent_bytes: tuple[int, ...]


def shapes_of(model: nn.Module) -> tuple[str, ...]:
    """Return what identifies a model: name, shape and dtype of each parameter."""
    return tuple(f"{name} {tuple(one.shape)} {one.dtype}" for name, one in model.named_parameters())


def units_of(
    model: nn.Module, plans: Sequence[UnitPlan], shapes: Sequence[str]
) -> dict[str, nn.Module]:
    """Return the units of a model; PlanMismatchError if another one was planned."""
    modules = dict(model.named_modules())
    for one in plans:
        if one.name not in modules:
            raise PlanMismatchError(f"the budget has the unit {one.name}, the model does not")
    mine = shapes_of(model)
    for planned, here in zip(shapes, mine, strict=False):
        if planned != here:
            raise PlanMismatchError(f"the model has the parameter {here}, the budget {planned}")
    if len(mine) != len(shapes):
        raise PlanMismatchError(f"the model has {len(mine)} parameters, the budget {len(shapes)}")
    return {one.name: modules[one.name] for one in plans}
