"""A budget: what happens to the saved tensors of each unit, and what that comes to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from hashlib import sha256
from pathlib import Path

from torch import nn

from rdmatensor._lend.lent import Lent
from rdmatensor._lend.sizes import shown, shown_ms
from rdmatensor.budget.applied import Applied, Predicted, apply
from rdmatensor.budget.choice import UnitPlan


@dataclass(frozen=True)
class Budget:
    """A choice of fit(): the same on all ranks.

    Attributes:
        budget_bytes: What was asked for.
        tiers: The ways that were allowed.
        units: The modules, in the order of the forward pass.
        peak_bytes: The most bytes of a step with this choice: parameters, gradients, the
            optimizer's state, saved and temporary tensors.
        kept_peak_bytes: The same if all units keep what they save.
        least_bytes: The least budget that could have been asked for.
        state_bytes: Of peak_bytes, the optimizer's state.
        step_ns: Time of both passes through the units without this choice.
        added_ns: Time that recomputation adds.
        exposed_ns: Time that the link adds.
        shapes: Name and shape of each parameter.
        notes: What is to be known of the lender.
        timelines: Live bytes after each operation of a step, "kept" and "chosen".

    Example:
        >>> model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(4)))
        >>> fit(model, (torch.ones(512, 64),), "8MiB").fits
        True
    """

    budget_bytes: int
    tiers: tuple[str, ...]
    units: tuple[UnitPlan, ...]
    peak_bytes: int
    kept_peak_bytes: int
    least_bytes: int
    state_bytes: int
    step_ns: int
    added_ns: int
    exposed_ns: int
    shapes: tuple[str, ...]
    notes: tuple[str, ...]
    timelines: dict[str, Sequence[int]]

    @property
    def fits(self) -> bool:
        """Whether the predicted peak is within the budget."""
        return self.peak_bytes <= self.budget_bytes

    def fingerprint(self) -> str:
        """Return a digest of the choice, equal on all ranks.

        Returns:
            64 hexadecimal digits.

        Example:
            >>> len(budget.fingerprint())
            64
        """
        values = [getattr(self, one.name) for one in fields(self) if one.name != "timelines"]
        return sha256(repr(values).encode()).hexdigest()

    def text(self) -> str:
        """Return the choice in words: each unit, the predicted peak and the added time.

        Returns:
            Several lines.

        Example:
            >>> print(budget.text())
            peak ... of 8.0 MiB allowed...
        """
        lines = [
            f"peak {shown(self.peak_bytes)} of {shown(self.budget_bytes)} allowed "
            f"({shown(self.kept_peak_bytes)} if all is kept, {shown(self.least_bytes)} at least)",
            f"adds {shown_ms(self.added_ns)} of computing and {shown_ms(self.exposed_ns)} of "
            f"waiting for the link to a step of {shown_ms(self.step_ns)}",
        ]
        width = max(len(one.name) for one in self.units)
        for one in self.units:
            line = f"  {one.name:<{width}}  {one.way:<9}  saves {shown(one.saved_bytes)}"
            if one.way != "keep":
                line += f", leaves {shown(max(0, one.held_bytes))}"
            if one.lent_bytes:
                line += f", lends {shown(sum(one.lent_bytes))}"
            if one.added_ns:
                line += f", +{shown_ms(one.added_ns)}"
            lines.append(line + (f" ({one.reason})" if one.reason else ""))
        lines.extend(self.notes)
        return "\n".join(lines) + "\n"

    def apply(self, model: nn.Module, *, lent: Lent | None = None) -> Applied:
        """Let a model's steps follow the choice.

        Call it on the module that fit() was given, before or after it is wrapped by
        DistributedDataParallel or planned. Gradients are equal to the bit.

        Args:
            model: The module.
            lent: What lend() returned, if a unit has the way "peer".

        Returns:
            What undoes it, by close() or at the end of a `with` block.

        Raises:
            PlanMismatchError: The model lacks a unit, or has other parameters.
            InvalidArgumentError: A budget was applied to the model by now, or the lender lends too
                little.

        Example:
            >>> with budget.apply(model) as applied:
            ...     model(torch.ones(512, 64)).sum().backward()
            >>> applied.describe()["recomputed_units"] >= 0
            True
        """
        predicted = Predicted(self.peak_bytes, self.added_ns, self.exposed_ns)
        return apply(model, self.units, self.shapes, predicted, lent)

    def picture(self, path: str | Path) -> None:
        """Draw the memory over a step, with all kept and with this choice.

        Args:
            path: The file; its ending chooses the format, for example .svg.

        Raises:
            ImportError: matplotlib is not installed.
            OSError: The file cannot be written.

        Example:
            >>> budget.picture("/tmp/budget.svg")
        """
        from matplotlib.figure import Figure  # slow to import, and few need it

        figure = Figure(figsize=(7, 4), layout="constrained")
        axes = figure.subplots()
        labels = {"kept": "all kept", "chosen": "by this budget"}
        for name, live in self.timelines.items():
            places = [index / max(1, len(live) - 1) for index in range(len(live))]
            axes.plot(places, [one / 2**20 for one in live], label=labels[name], linewidth=1)
        axes.axhline(self.budget_bytes / 2**20, color="grey", linestyle="--", label="budget")
        axes.set(
            xlabel="operations of the step: forward, backward, optimizer",
            ylabel="MiB",
            ylim=(0, None),
        )
        axes.legend(fontsize="small")
        figure.savefig(path)
