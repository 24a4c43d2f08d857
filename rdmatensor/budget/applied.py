"""A budget in force on a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TypedDict

from torch import nn

from rdmatensor._native.arguments import invalid
from rdmatensor.budget.choice import UnitPlan, units_of
from rdmatensor.budget.recompute import Recomputed, recomputing
from rdmatensor.budget.trace import Forward

_MARK = "_rdmatensor_budget"


class BudgetState(TypedDict):
    """What describe() of an applied budget returns.

    Attributes:
        predicted_peak_bytes: The peak of fit().
        predicted_added_ns: Time of recomputation in one step, by fit().
        recomputed_units: Units that were computed again since apply().
        recomputed_ns: Processor time of that.
    """

    predicted_peak_bytes: int
    predicted_added_ns: int
    recomputed_units: int
    recomputed_ns: int


@dataclass(frozen=True, slots=True)
class Predicted:
    """What fit() expects of a step."""

    peak_bytes: int
    added_ns: int
    exposed_ns: int


class Applied:
    """A budget in force; made by Budget.apply(). A context manager, or close() it.

    Copies of the model (copy.deepcopy()) are to be made before it is applied.
    """

    def __init__(
        self, plans: Sequence[UnitPlan], units: dict[str, nn.Module], predicted: Predicted
    ) -> None:
        self._predicted = predicted
        self._recomputed = Recomputed()
        self._units: list[nn.Module] = []
        for one in plans:
            module = units[one.name]
            if one.way == "recompute":
                self._replace(module, recomputing(module, module.forward, self._recomputed))

    def _replace(self, module: nn.Module, forward: Forward) -> None:
        module.__dict__[_MARK] = module.__dict__.get("forward")
        module.__dict__["forward"] = forward
        self._units.append(module)

    def describe(self) -> BudgetState:
        """Return the predictions, and what was measured since apply().

        Returns:
            The state; times are processor time in ns.

        Example:
            >>> applied.describe()["predicted_peak_bytes"] > 0
            True
        """
        return {
            "predicted_peak_bytes": self._predicted.peak_bytes,
            "predicted_added_ns": self._predicted.added_ns,
            "recomputed_units": self._recomputed.units,
            "recomputed_ns": self._recomputed.time_ns,
        }

    def close(self) -> None:
        """Let the model keep all that its units save, as before. Idempotent.

        Example:
            >>> applied.close()
        """
        for module in self._units:
            before = module.__dict__.pop(_MARK)
            if before is None:
                del module.__dict__["forward"]
            else:
                module.__dict__["forward"] = before
        self._units.clear()

    def __enter__(self) -> Applied:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def apply(
    model: nn.Module, plans: Sequence[UnitPlan], shapes: Sequence[str], predicted: Predicted
) -> Applied:
    """Put a budget in force; see Budget.apply()."""
    units = units_of(model, plans, shapes)
    if any(_MARK in module.__dict__ for module in model.modules()):
        raise invalid("apply", "a budget is in force on this model: close() it first")
    return Applied(plans, units, predicted)
