"""What one rank measures of its step, and what all ranks make of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import nn

from graph_analysis.keep import Chain, Way, WayName
from rdmatensor._lend.lent import Lent
from rdmatensor._lend.ranks import Ranks
from rdmatensor.budget import facts, peer
from rdmatensor.budget.choice import shapes_of
from rdmatensor.budget.recompute import Recomputed, recomputing
from rdmatensor.budget.swap import NoMover, Swapper
from rdmatensor.budget.times import Measured, measure_units
from rdmatensor.budget.trace import Bytes, Forward, LossFn, Trace, Wrap, trace_step


@dataclass
class Fitting:
    """What one rank knows of its step.

    lendable: of each unit, bytes of the tensors that move with the way "peer".
    """

    model: nn.Module
    inputs: tuple[object, ...]
    loss_fn: LossFn | None
    optimizer: torch.optim.Optimizer | None
    units: dict[str, nn.Module]
    lendable: dict[str, tuple[int, ...]] = field(default_factory=dict)
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
        self.lendable = dict.fromkeys(saves, ())
        self.traces = {tier: self.trace(dict.fromkeys(free, tier)) for tier in tiers if free}
        self.costs: dict[tuple[str, WayName], facts.LinkTimes] = {
            (name, "recompute"): facts.LinkTimes(added_ns=self.measured[name].forward_ns)
            for name in free
        }

    def price_link(self, lent: Lent, ranks: Ranks) -> None:
        """Measure the link. Tensors count with the largest size of all ranks."""
        names = list(self.lendable)
        counts = [len(self.lendable[name]) for name in names]
        ranks.check_same("the number of tensors that units save", counts)
        most = iter(ranks.most([size for name in names for size in self.lendable[name]]))
        for name, count in zip(names, counts, strict=True):
            self.lendable[name] = tuple(next(most) for _ in range(count))
        out, back = peer.measure(lent, ranks)
        for name, sizes in self.lendable.items():
            self.costs[name, "peer"] = facts.LinkTimes(
                out.link_ns(sizes), back.link_ns(sizes), out.cpu_ns(sizes) + back.cpu_ns(sizes)
            )

    def trace(self, choice: Mapping[str, WayName]) -> Trace:
        """Trace the step with a way for each unit; those without one keep."""
        swapper = Swapper(NoMover(), None)
        wraps: dict[str, Wrap] = {}
        for name, way in choice.items():
            if way == "recompute":
                wraps[name] = _recompute
            elif way == "peer":
                wraps[name] = partial(swapper.swapping, name)
        trace = trace_step(
            self.model,
            self.inputs,
            self.loss_fn,
            self.optimizer,
            self.units,
            wraps,
            self._hidden,
        )
        if "peer" in choice.values() and not any(self.lendable.values()):
            self.lendable.update((name, tuple(found)) for name, found in swapper.learned.items())
        return trace

    def chain(self) -> Chain:
        """Return the chain of this rank."""
        return facts.make_chain(
            self.kept_trace, self.traces, self.measured, self.reasons, self.costs
        )

    def key(self) -> tuple[object, ...]:
        """Return what must be the same on all ranks."""
        names = [(unit.name, [way.name for way in unit.ways]) for unit in self.chain().units]
        return (shapes_of(self.model), names)


def _recompute(module: nn.Module, forward: Forward) -> Forward:
    return recomputing(module, forward, Recomputed())


def largest(chain: Chain, ranks: Ranks) -> Chain:
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
