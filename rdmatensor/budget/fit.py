"""Choosing by the budget: traces, times, the solver, and a trace of what it chose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

import torch
import torch.distributed as dist
from torch import nn

from graph_analysis.keep import Chain, Way, WayName, least_peak, simulate, solve
from rdmatensor._lend.ranks import Ranks
from rdmatensor._lend.sizes import bytes_of, shown
from rdmatensor._native.arguments import invalid
from rdmatensor.budget import facts
from rdmatensor.budget.choice import UnitPlan, shapes_of
from rdmatensor.budget.plan import Budget
from rdmatensor.budget.recompute import Recomputed, recomputing
from rdmatensor.budget.times import Measured, measure_units
from rdmatensor.budget.trace import Bytes, Forward, LossFn, Trace, Wrap, trace_step
from rdmatensor.budget.units import find_units

TIERS = ("recompute",)
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
        tiers: "recompute": run units again in the backward pass.
        units: Patterns (fnmatch) of module names; None: the blocks that repeat, and the modules
            outside them.
        group: The ranks; None: the default group, or this process alone.

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
    ranks, error = Ranks(group), None
    fitting: _Fitting | None = None
    try:
        size = bytes_of(budget, "fit", "budget")
        _check(inputs, tiers)
        found = find_units(model, units)
        fitting = _Fitting(model, tuple(inputs), loss_fn, optimizer, found)
        fitting.measure(cast("tuple[WayName, ...]", tuple(tiers)))
    except Exception as raised:  # noqa: BLE001 - raised below, when the other ranks know
        error = raised
    ranks.check_errors(error)
    assert fitting is not None
    ranks.check_same("the budget", (size, tuple(tiers)))
    ranks.check_same("the model or its units", fitting.key())
    return _choose(fitting, size, tuple(tiers), ranks)


def _check(inputs: Sequence[object], tiers: Sequence[str]) -> None:
    if not isinstance(inputs, tuple | list):
        raise invalid(
            "fit", f"inputs is a {type(inputs).__name__}, not a tuple of model.forward's arguments"
        )
    if isinstance(tiers, str):
        raise invalid("fit", f"tiers={tiers!r} is a text: give a tuple of names")
    for tier in tiers:
        if tier not in TIERS:
            raise invalid("fit", f"tier {tier!r} is unknown: expected some of {TIERS}")


@dataclass
class _Fitting:
    """What one rank knows of its step."""

    model: nn.Module
    inputs: tuple[object, ...]
    loss_fn: LossFn | None
    optimizer: torch.optim.Optimizer | None
    units: dict[str, nn.Module]
    _hidden: dict[str, Bytes] = field(default_factory=dict)

    def measure(self, tiers: Sequence[WayName]) -> None:
        """Trace the step with all kept and with all in each tier, and time the units."""
        shown = self.trace({})
        # Those that change what they are given have no other way, and cannot run on a copy of it.
        safe = {name: one for name, one in self.units.items() if name not in shown.changed}
        measured = measure_units(self.model, self.inputs, safe, shown.needs_grad)
        self.measured = {name: measured.get(name, Measured()) for name in self.units}
        self._hidden = {name: one.hidden for name, one in self.measured.items()}
        self.kept_trace = self.trace({})
        saves = facts.saved_bytes(self.kept_trace)
        self.reasons = facts.must_keep(self.kept_trace, self.measured, saves)
        free = [name for name in saves if name not in self.reasons]
        traces = {tier: self.trace(dict.fromkeys(free, tier)) for tier in tiers if free}
        costs: dict[tuple[str, WayName], facts.LinkTimes] = {
            (name, "recompute"): facts.LinkTimes(added_ns=self.measured[name].forward_ns)
            for name in free
        }
        self.chain = facts.make_chain(self.kept_trace, traces, self.measured, self.reasons, costs)

    def trace(self, choice: Mapping[str, WayName]) -> Trace:
        """Trace the step with a way for each unit; those without one keep."""
        wraps = {name: _WRAPS[way] for name, way in choice.items() if way != "keep"}
        return trace_step(
            self.model,
            self.inputs,
            self.loss_fn,
            self.optimizer,
            self.units,
            wraps,
            self._hidden,
        )

    def key(self) -> tuple[object, ...]:
        """Return what must be the same on all ranks."""
        names = [(unit.name, [way.name for way in unit.ways]) for unit in self.chain.units]
        return (shapes_of(self.model), names)


def _recompute(module: nn.Module, forward: Forward) -> Forward:
    return recomputing(module, forward, Recomputed())


_WRAPS: dict[WayName, Wrap] = {"recompute": _recompute}


def _choose(fitting: _Fitting, size: int, tiers: tuple[str, ...], ranks: Ranks) -> Budget:
    """Return the cheapest choice whose traced peak is within the budget on all ranks."""
    chain = _largest(fitting.chain, ranks)
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
    if chain_least := ranks.first(least_peak(chain)[1]):
        peak, trace = traced(chain_least)
        least = min(least, (peak, chain_least, trace), key=lambda one: one[0])
    limit = size
    for _ in range(_ROUNDS):
        if best[0] <= size:
            break
        choice = ranks.first(solve(chain, limit))
        if choice is None:
            break
        peak, trace = traced(choice)
        best = (peak, choice, trace)
        limit -= max(1, peak - size)
    if best[0] > size:
        best = least
    if best[0] > size:
        raise invalid("fit", _too_small(size, best[0], fitting))
    return _budget(fitting, chain, size, tiers, best, (kept_peak, least[0]))


def _too_small(size: int, least: int, fitting: _Fitting) -> str:
    parameters = sum(one.numel() * one.element_size() for one in fitting.model.parameters())
    return (
        f"a budget of {shown(size)} ({size} B) is too small: a step takes {shown(least)} "
        f"({least} B) at least, of which {shown(parameters)} are parameters, as much gradients and "
        f"{shown(fitting.kept_trace.state_bytes)} the optimizer's state. A smaller batch or "
        "smaller units (units=) need less"
    )


def _largest(chain: Chain, ranks: Ranks) -> Chain:
    """Return the chain with the largest number of all ranks in each place."""
    numbers = [chain.base_bytes, chain.tail_bytes, chain.end_bytes]
    for unit in chain.units:
        numbers += [unit.forward_ns, unit.backward_ns]
        for way in unit.ways:
            numbers += [way.held_bytes, way.forward_bytes, way.backward_bytes]
            numbers += [way.added_ns, way.write_ns, way.read_ns]
    most = iter(ranks.most(numbers))
    base, tail, end = next(most), next(most), next(most)
    units = []
    for unit in chain.units:
        forward_ns, backward_ns = next(most), next(most)
        ways = tuple(Way(way.name, *(next(most) for _ in range(6))) for way in unit.ways)
        units.append(replace(unit, forward_ns=forward_ns, backward_ns=backward_ns, ways=ways))
    return Chain(base, tail, end, tuple(units))


def _budget(
    fitting: _Fitting,
    chain: Chain,
    size: int,
    tiers: tuple[str, ...],
    best: tuple[int, tuple[str, ...], Trace],
    peaks: tuple[int, int],
) -> Budget:
    peak, choice, trace = best
    outcome = simulate(chain, choice)
    plans = []
    for unit, name in zip(chain.units, choice, strict=True):
        way = next(one for one in unit.ways if one.name == name)
        plans.append(
            UnitPlan(
                unit.name,
                way.name,
                fitting.reasons.get(unit.name, ""),
                unit.ways[0].held_bytes,
                way.held_bytes,
                way.added_ns,
                unit.forward_ns,
            )
        )
    return Budget(
        budget_bytes=size,
        tiers=tiers,
        units=tuple(plans),
        peak_bytes=peak,
        kept_peak_bytes=peaks[0],
        least_bytes=peaks[1],
        state_bytes=fitting.kept_trace.state_bytes,
        step_ns=sum(unit.forward_ns + unit.backward_ns for unit in chain.units),
        added_ns=outcome.added_ns,
        exposed_ns=outcome.exposed_ns,
        shapes=shapes_of(fitting.model),
        timelines={"kept": fitting.kept_trace.live, "chosen": trace.live},
    )
