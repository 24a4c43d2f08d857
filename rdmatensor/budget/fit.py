"""Choosing by the budget: traces, times, the solver, and a trace of what it chose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast

import torch
import torch.distributed as dist
from torch import nn

from graph_analysis.keep import Chain, WayName, least_peak, simulate, solve
from rdmatensor._lend.lent import Lent
from rdmatensor._lend.ranks import Ranks
from rdmatensor._lend.sizes import bytes_of, shown
from rdmatensor._native.arguments import invalid
from rdmatensor.budget import peer
from rdmatensor.budget.applied import check_free
from rdmatensor.budget.choice import UnitPlan, shapes_of
from rdmatensor.budget.fitting import Fitting, largest
from rdmatensor.budget.lender import place_bytes, within
from rdmatensor.budget.plan import Budget
from rdmatensor.budget.swap import LEAST_BYTES
from rdmatensor.budget.trace import LossFn, Trace
from rdmatensor.budget.units import find_units

TIERS = ("recompute", "peer")
_ROUNDS = 6  # of solving under a tighter limit, where units together take more than apart


def fit(
    model: nn.Module,
    inputs: Sequence[object],
    budget: int | str,
    *,
    loss_fn: LossFn | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    tiers: Sequence[str] = ("recompute",),
    units: Sequence[str] | None = None,
    lent: Lent | None = None,
    group: dist.ProcessGroup | None = None,
) -> Budget:
    """Choose what to do with the tensors that each module saves, so that a step fits the budget.

    The budget is for the peak of a step: parameters, buffers, gradients, the optimizer's state,
    inputs, saved and temporary tensors of torch. A step is traced on fake tensors, so that a model
    that does not fit can be measured; then the model runs forward once without autograd, and each
    unit's passes are timed. Parameters, gradients, buffers and the random state stay as they are.

    All ranks of the group call it. The largest number of all ranks counts, rank 0 solves, and all
    get the same choice.

    Args:
        model: The module, before it is wrapped.
        inputs: The positional arguments of model.forward, with the sizes of a training step.
        budget: Bytes, or a text such as "2GiB".
        loss_fn: loss_fn(output, *inputs) returns a scalar; None: the sum of the floating outputs.
        optimizer: Its state and its temporary tensors are counted; None: none of them.
        tiers: "recompute": run units again in the backward pass. "peer": move what they save to
            the memory of another rank, by one-sided writes, and back. With both, each unit gets
            what costs less, by the measured times of units and link.
        units: Patterns (fnmatch) of module names; None: the blocks that repeat, and the modules
            outside them.
        lent: What lend() returned, for the tier "peer".
        group: The ranks; None: lent.group, the default group, or this process alone.

    Returns:
        The choice.

    Raises:
        InvalidArgumentError: The step does not fit (the message has the least budget), an argument
            is wrong, the model has no units, or its control flow depends on data.
        PlanMismatchError: Ranks have other models or arguments, or another rank raised.

    Example:
        >>> model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(4)))
        >>> budget = fit(model, (torch.ones(512, 64),), "8MiB")
        >>> budget.units[0].way
        'keep'
    """
    if lent is not None and lent.group is None:
        raise invalid("fit", "this rank only lends: let it call serve() of what lend() returned")
    ranks, error = Ranks(lent.group if group is None and lent is not None else group), None
    fitting: Fitting | None = None
    key: tuple[object, ...] = ()
    try:
        size = bytes_of(budget, "fit", "budget")
        _check(inputs, tiers, lent)
        found = find_units(model, units)
        check_free(model, "fit")
        fitting = Fitting(model, tuple(inputs), loss_fn, optimizer, found)
        fitting.measure(cast("tuple[WayName, ...]", tuple(tiers)))
        key = fitting.key()
        if lent is not None and "peer" in tiers:
            lent._check_free(2 * LEAST_BYTES, "fit")
    except Exception as raised:  # noqa: BLE001 - raised below, when the other ranks know
        error = raised
    ranks.check_errors(error)
    assert fitting is not None
    ranks.check_same("the budget", (size, tuple(tiers)))
    ranks.check_same("the model or its units", key)
    room, notes = 0, cast("tuple[str, ...]", ())
    if lent is not None and "peer" in tiers:
        room = min(ranks.all(lent.free_bytes))
        fitting.price_link(lent, ranks)
        notes = ranks.first(peer.notes(lent))
    chain = largest(fitting.chain(), ranks)
    needs = tuple(place_bytes(fitting.lendable[unit.name]) for unit in chain.units)
    return _choose(fitting, _Terms(chain, size, tuple(tiers), room, needs, notes), ranks)


def _check(inputs: Sequence[object], tiers: Sequence[str], lent: Lent | None) -> None:
    if not isinstance(inputs, tuple | list):
        raise invalid(
            "fit", f"inputs is a {type(inputs).__name__}, not a tuple of model.forward's arguments"
        )
    if isinstance(tiers, str):
        raise invalid("fit", f"tiers={tiers!r} is a text: give a tuple of names")
    for tier in tiers:
        if tier not in TIERS:
            raise invalid("fit", f"tier {tier!r} is unknown: expected some of {TIERS}")
    if "peer" in tiers and lent is None:
        raise invalid("fit", "the tier 'peer' needs lent=, which lend() returns")


@dataclass(frozen=True)
class _Terms:
    """What all ranks solve. room: bytes that a lender has for one rank; needs: of each unit."""

    chain: Chain
    size: int
    tiers: tuple[str, ...]
    room: int
    needs: tuple[int, ...]
    notes: tuple[str, ...]


def _choose(fitting: Fitting, terms: _Terms, ranks: Ranks) -> Budget:
    """Return the cheapest choice whose traced peak is within the budget on all ranks."""
    chain, size, bounded = terms.chain, terms.size, partial(within, terms.needs, terms.room)
    names = [unit.name for unit in chain.units]

    def traced(choice: Sequence[str]) -> tuple[int, Trace]:
        ways = cast("dict[str, WayName]", dict(zip(names, choice, strict=True)))
        error: Exception | None = None
        trace = Trace()
        try:
            trace = fitting.trace(ways)
        except Exception as raised:  # noqa: BLE001 - raised by the next line, on all ranks
            error = raised
        ranks.check_errors(error)
        return max(ranks.all(trace.peak_bytes)), trace

    kept = tuple("keep" for _ in names)
    kept_peak = max(ranks.all(fitting.kept_trace.peak_bytes))
    best = (kept_peak, kept, fitting.kept_trace)
    least = best
    chain_least = ranks.first(bounded(chain, lambda one: least_peak(one)[1]))
    if chain_least is not None:
        peak, trace = traced(chain_least)
        least = min(least, (peak, chain_least, trace), key=lambda one: one[0])
    limit = size
    for _ in range(_ROUNDS):
        if best[0] <= size:
            break
        choice = ranks.first(bounded(chain, partial(solve, budget_bytes=limit)))
        if choice is None:
            break
        peak, trace = traced(choice)
        best = (peak, choice, trace)
        limit -= max(1, peak - size)
    if best[0] > size:
        best = least
    if best[0] > size:
        raise invalid("fit", _too_small(terms, best[0], fitting))
    state_bytes = max(ranks.all(fitting.kept_trace.state_bytes))
    peaks = _Peaks(kept_peak, least[0], state_bytes)
    return _budget(fitting, terms, best, peaks, ranks.first(fitting.reasons))


def _too_small(terms: _Terms, least: int, fitting: Fitting) -> str:
    size, needed, lender = terms.size, sum(terms.needs), ""
    if "peer" in terms.tiers and needed > terms.room:
        lender = (
            f". The lender has {shown(terms.room)} for a rank, and all saved tensors take "
            f"{shown(needed)}: lend more"
        )
    parameters = sum(one.numel() * one.element_size() for one in fitting.model.parameters())
    return (
        f"a budget of {shown(size)} ({size} B) is too small: a step takes {shown(least)} "
        f"({least} B) at least, of which {shown(parameters)} are parameters, as much gradients and "
        f"{shown(fitting.kept_trace.state_bytes)} the optimizer's state. A smaller batch or "
        f"smaller units (units=) need less{lender}"
    )


@dataclass(frozen=True, slots=True)
class _Peaks:
    """Bytes of all ranks' largest step: with all kept, the least possible, and of the optimizer."""

    kept: int
    least: int
    state: int


def _budget(
    fitting: Fitting,
    terms: _Terms,
    best: tuple[int, tuple[str, ...], Trace],
    peaks: _Peaks,
    reasons: dict[str, str],
) -> Budget:
    peak, choice, trace = best
    chain = terms.chain
    outcome = simulate(chain, choice)
    plans = []
    for unit, name in zip(chain.units, choice, strict=True):
        way = next(one for one in unit.ways if one.name == name)
        plans.append(
            UnitPlan(
                unit.name,
                way.name,
                reasons.get(unit.name, ""),
                unit.ways[0].held_bytes,
                way.held_bytes,
                way.added_ns,
                unit.forward_ns,
                fitting.lendable[unit.name] if way.name == "peer" else (),
            )
        )
    return Budget(
        budget_bytes=terms.size,
        tiers=terms.tiers,
        units=tuple(plans),
        peak_bytes=peak,
        kept_peak_bytes=peaks.kept,
        least_bytes=peaks.least,
        state_bytes=peaks.state,
        step_ns=sum(unit.forward_ns + unit.backward_ns for unit in chain.units),
        added_ns=outcome.added_ns,
        exposed_ns=outcome.exposed_ns,
        shapes=shapes_of(fitting.model),
        notes=terms.notes,
        timelines={"kept": fitting.kept_trace.live, "chosen": trace.live},
    )
