"""Fit a training step into a budget of bytes: keep, recompute, or move away what modules save.

For example::

    budget = rdmatensor.budget.fit(model, (x,), "2GiB", loss_fn=loss_fn, optimizer=optimizer)
    print(budget.text())
    with budget.apply(model):
        for x, y in loader:
            optimizer.zero_grad()
            loss_fn(model(x), y).backward()
            optimizer.step()

Gradients are equal to the bit to those without a budget. Ranks of a group call fit() together and
get the same choice.
"""

from rdmatensor._lend.lent import Lent, lend
from rdmatensor.budget.applied import Applied, BudgetState
from rdmatensor.budget.choice import UnitPlan
from rdmatensor.budget.fit import fit
from rdmatensor.budget.peak import allocated_peak
from rdmatensor.budget.plan import Budget

__all__ = [
    "Applied",
    "Budget",
    "BudgetState",
    "Lent",
    "UnitPlan",
    "allocated_peak",
    "fit",
    "lend",
]
