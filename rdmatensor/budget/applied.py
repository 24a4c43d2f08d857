"""A budget in force on a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TypedDict

from torch import nn

from rdmatensor._lend.lent import Lent
from rdmatensor._native.arguments import invalid
from rdmatensor.budget.choice import UnitPlan, units_of
from rdmatensor.budget.peer import PeerMover
from rdmatensor.budget.recompute import Recomputed, recomputing
from rdmatensor.budget.swap import NoMover, Swapper, make_places
from rdmatensor.budget.trace import Forward

_MARK = "_rdmatensor_budget"


class BudgetState(TypedDict):
    """What describe() of an applied budget returns.

    Attributes:
        predicted_peak_bytes: The peak of fit().
        predicted_added_ns: Time of recomputation in one step, by fit().
        recomputed_units: Units that were computed again since apply().
        recomputed_ns: Processor time of that.
        predicted_exposed_ns: Time of one step that waits for the link, by fit().
        written_bytes: Moved to the lender since apply().
        read_bytes: Moved back.
        waited_ns: Wall time that the passes waited for transfers.
        unplanned: Tensors that stayed here because they had no place at the lender: another size
            or order than in fit(), or a second forward pass before the backward pass.
        lender: Rank of the lender, or None.
    """

    predicted_peak_bytes: int
    predicted_added_ns: int
    recomputed_units: int
    recomputed_ns: int
    predicted_exposed_ns: int
    written_bytes: int
    read_bytes: int
    waited_ns: int
    unplanned: int
    lender: int | None


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
        self,
        plans: Sequence[UnitPlan],
        units: dict[str, nn.Module],
        predicted: Predicted,
        lent: Lent | None,
    ) -> None:
        self._predicted, self._lent = predicted, lent
        places, size = make_places({one.name: one.lent_bytes for one in plans})
        self._place = None if lent is None or not size else lent._take(size, "apply")
        mover = NoMover() if self._place is None else PeerMover(self._place)
        self._swapper = Swapper(mover, places)
        self._recomputed = Recomputed()
        self._units: list[nn.Module] = []
        for one in plans:
            module = units[one.name]
            if one.way == "recompute":
                self._replace(module, recomputing(module, module.forward, self._recomputed))
            elif one.way == "peer":
                self._replace(module, self._swapper.swapping(one.name, module, module.forward))

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
            "predicted_exposed_ns": self._predicted.exposed_ns,
            "written_bytes": self._swapper.counts.written_bytes,
            "read_bytes": self._swapper.counts.read_bytes,
            "waited_ns": self._swapper.counts.waited_ns,
            "unplanned": self._swapper.counts.unplanned,
            "lender": None if self._place is None else self._place.lender,
        }

    def close(self) -> None:
        """Let the model keep all that its units save, as before. Idempotent.

        Backward passes of steps that have begun must be over.

        Raises:
            PeerError: The lender died while tensors were on their way.

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
        if self._place is not None and self._lent is not None:
            place, self._place = self._place, None
            try:
                self._swapper.drain()
            finally:
                if self._swapper.is_idle:
                    self._lent._give_back(place)

    def __enter__(self) -> Applied:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def check_free(model: nn.Module, call: str) -> None:
    """Raise InvalidArgumentError if a budget is in force on a model."""
    if any(_MARK in module.__dict__ for module in model.modules()):
        raise invalid(call, "a budget is in force on this model: close() it first")


def apply(
    model: nn.Module,
    plans: Sequence[UnitPlan],
    shapes: Sequence[str],
    predicted: Predicted,
    lent: Lent | None,
) -> Applied:
    """Put a budget in force; see Budget.apply()."""
    units = units_of(model, plans, shapes)
    check_free(model, "apply")
    if lent is None and any(one.lent_bytes for one in plans):
        raise invalid("apply", "the budget lends saved tensors: give lent=, which lend() returned")
    return Applied(plans, units, predicted, lent)
