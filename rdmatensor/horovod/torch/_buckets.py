"""Buckets of an optimizer's gradients in the arena: one for each pack of a fast lane.

As with DistributedDataParallel, a large gradient is allocated where it is sent from once a backward
pass has shown which allocation it is; small ones are copied to their bucket and back.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import cast

import torch

from rdmatensor._plan.memory import Bucket as Places
from rdmatensor._plan.memory import Counts, GradientMemory
from rdmatensor._plan.spans import Slot, Span
from rdmatensor._torch import adoption
from rdmatensor._torch.ddp.gradients import LEAST_BYTES
from rdmatensor.context import default_context
from rdmatensor.errors import PlanMismatchError
from rdmatensor.horovod import _runtime
from rdmatensor.horovod._bundle import layout
from rdmatensor.horovod._entry import Entry
from rdmatensor.horovod._lane import Lane, Pack
from rdmatensor.horovod.exceptions import HorovodInternalError
from rdmatensor.state import GradientsState
from rdmatensor.torch import ArenaAllocations

_WHAT = "gradients of DistributedOptimizer"
_MOVED = "steps of one optimizer ran on several threads"


class Part:
    """Gradients that are reduced together; one, unless there are groups.

    left: backward passes of each until they are sent; is_placed: whether its memory reports each;
    entry: the operation, which is used again in each step; wait: while they are sent alone.
    """

    __slots__ = ("bucket", "entry", "is_placed", "kinds", "left", "name", "parameters", "wait")

    def __init__(self, parameters: tuple[torch.Tensor, ...], name: str, passes: int) -> None:
        self.parameters, self.name = parameters, name
        self.left = [passes] * len(parameters)
        self.is_placed = [False] * len(parameters)
        self.kinds = [(one.dtype, one.shape) for one in parameters]
        self.entry: Entry | None = None
        self.bucket: Bucket | None = None
        self.wait: Callable[[], object] | None = None


class Bucket:
    """The gradients of one pack. missing: parts that are not complete; flat: while it is sent."""

    def __init__(
        self, index: int, parts: list[Part], places: Places, memory: GradientMemory
    ) -> None:
        self.index, self.parts = index, parts
        self.missing = len(parts)
        self.is_sent = False  # in the lane, or each part alone
        self.flat: torch.Tensor | None = None
        self._places, self._memory = places, memory
        self._parameters = [one for part in parts for one in part.parameters]
        self._shapes = [one.shape for one in self._parameters]
        placed = {id(gradient.parameter) for gradient in places.gradients}
        self._small = [i for i, one in enumerate(self._parameters) if id(one) not in placed]
        self._small_bytes = sum(self._parameters[i].nbytes for i in self._small)
        self._views = self._views_of(places.flat)

    @property
    def entries(self) -> list[Entry]:
        """Return the operations of the parts."""
        return [cast("Entry", part.entry) for part in self.parts]

    def gather(self) -> torch.Tensor | None:
        """Return what is sent, with all gradients in it; None if one is not as in the lane."""
        for gradient in self._places.gradients:
            if gradient.parameter.grad is None:
                self._memory.fill(gradient)
        if not self._is_as_in_lane():
            return None
        flat = self._places.flat
        if self._places.gradients:  # which must have no reference here
            flat = self._memory.leaving(self._places)
        views = self._views if flat is self._places.flat else self._views_of(flat)
        small = [_gradient(self._parameters[i]) for i in self._small]
        self._copy([views[i] for i in self._small], small)
        counts = self._memory.counts
        counts.copied += len(small)
        counts.copied_bytes += self._small_bytes
        later = iter(views)
        for part in self.parts:
            entry = cast("Entry", part.entry)
            if not entry.is_done:  # its wait was interrupted
                entry = part.entry = replace(entry)
            entry.renew([next(later) for _ in part.parameters])
        self.flat = flat
        return flat

    def _is_as_in_lane(self) -> bool:
        return [_gradient(one).shape for one in self._parameters] == self._shapes and not any(
            _gradient(one).is_sparse for one in self._parameters
        )

    def scatter(self) -> None:
        """Bring the sums to the gradients. RuntimeError if the program wrote one meanwhile."""
        flat, self.flat = self.flat, None
        assert flat is not None
        if self._places.gradients:
            try:
                self._memory.arrived(self._places, flat)
            except PlanMismatchError as error:
                raise RuntimeError(
                    f"{error}. Between backward() and step(), call optimizer.synchronize() first, "
                    "and step() inside optimizer.skip_synchronize()"
                ) from None
        views = self._views if flat is self._places.flat else self._views_of(flat)
        for i in self._small:
            if self._parameters[i].grad is None:  # the program has dropped it meanwhile
                self._parameters[i].grad = views[i].clone()
        self._copy(
            [_gradient(self._parameters[i]) for i in self._small], [views[i] for i in self._small]
        )

    def reset(self) -> None:
        """Forget what was sent, once no rank reads or writes it any more."""
        for entry in self.entries if self.is_sent else []:
            if not entry.is_done and _runtime.is_on():
                with suppress(HorovodInternalError):
                    _runtime.controller().wait(entry)
        self.missing, self.is_sent, self.flat = len(self.parts), False, None

    @staticmethod
    def _copy(to: list[torch.Tensor], of: list[torch.Tensor]) -> None:
        if to:
            with torch.no_grad():
                torch._foreach_copy_(to, of)

    def _views_of(self, flat: torch.Tensor) -> list[torch.Tensor]:
        counts = [one.numel() for one in self._parameters]
        firsts, _ = layout(counts, flat.element_size())
        return [
            flat[first : first + count].view(shape)
            for first, count, shape in zip(firsts, counts, self._shapes, strict=True)
        ]


def _is_sparse(parameter: torch.Tensor) -> bool:
    return parameter.grad is not None and parameter.grad.is_sparse


def _gradient(parameter: torch.Tensor) -> torch.Tensor:
    """Return the gradient; zeros, which it has from now on, if there is none."""
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter, memory_format=torch.contiguous_format)
    return parameter.grad


@dataclass(slots=True)
class _Plan:
    """What of a lane is one optimizer's: packs, and where their parts lie."""

    packs: list[tuple[int, list[Part]]]
    spans: list[Span]
    size_bytes: int


class Buckets:
    """The buckets of one optimizer. The thread that runs backward uses them."""

    def __init__(self, counts: Counts, ready: Callable[[Part, int], None]) -> None:
        """Make none yet.

        counts: is added to. ready: called with a gradient that is final; not kept alive.
        """
        self.all: list[Bucket] = []
        self.lane: Lane | None = None
        self._counts, self._ready = counts, weakref.WeakMethod(ready)
        self._memory: GradientMemory | None = None
        self._packs: list[tuple[int, list[Part]]] = []
        self._placed: list[tuple[Part, int]] = []
        self._thread = 0
        self.why_off = ""
        _living.add(self)

    def follow(self, lane: Lane | None, parts: dict[str, Part]) -> None:
        """Have a bucket for each pack of the lane whose operations are all of these parts."""
        self.lane = lane
        for bucket in self.all:
            for part in bucket.parts:
                part.bucket = None
        if lane is None or self.why_off:  # gradients stay where they are
            self.all = []
            return
        plan = _planned(lane, parts)
        if self._memory is None or plan.packs != self._packs:
            self._make(plan)
        else:
            self.all = self._made(plan)
        for bucket in self.all:
            for part in bucket.parts:
                part.bucket = bucket

    def _make(self, plan: _Plan) -> None:
        self.close()
        self._packs = plan.packs
        if not plan.packs:
            return
        places = sum(len(span.slots) for span in plan.spans)
        try:
            memory = GradientMemory(
                plan.size_bytes, plan.spans, default_context(), _arrived(weakref.ref(self))
            )
        except torch.OutOfMemoryError:
            self.why_off = adoption.NO_ROOM
            missed = ArenaAllocations(missed=places, missed_bytes=plan.size_bytes)
            adoption.note(_WHAT, missed)
            return
        adoption.note(_WHAT, ArenaAllocations(count=places, size_bytes=plan.size_bytes))
        memory.counts = self._counts
        self._memory = memory
        at = {
            id(one): (part, index)
            for _, parts in plan.packs
            for part in parts
            for index, one in enumerate(part.parameters)
        }
        self._placed = [at[id(gradient.parameter)] for gradient in memory.numbered]
        for part, index in self._placed:
            part.is_placed[index] = True
        self.all = self._made(plan)

    def _made(self, plan: _Plan) -> list[Bucket]:
        assert self._memory is not None
        return [
            Bucket(index, parts, places, self._memory)
            for (index, parts), places in zip(plan.packs, self._memory.buckets, strict=True)
        ]

    def arrived(self, number: int) -> None:
        """Take note of a large gradient that is final."""
        assert self._memory is not None
        part, index = self._placed[number]
        gradient = self._memory.numbered[number]
        if part.bucket and part.left[index] == 1 and not _is_sparse(gradient.parameter):
            self._memory.settle(gradient)
        ready = self._ready()
        if ready is not None:
            ready(part, index)

    def expect(self) -> None:
        """Have the backward passes from now on allocate gradients in their places."""
        if self._memory is None:
            return
        if self._thread not in (0, threading.get_ident()):
            self.why_off = _MOVED
            self.close()
            self.lane = None
            return
        self._thread = threading.get_ident()
        self._memory.end()
        self._memory.begin(in_passes=True)

    def reset(self) -> None:
        """Forget an unfinished step; waits until what this rank has sent of it is summed."""
        for bucket in self.all:
            bucket.reset()
        if self._memory is not None:
            self._memory.forget()

    def close(self) -> None:
        """Let the memory go, but for gradients that are in use."""
        for bucket in self.all:
            for part in bucket.parts:
                part.bucket = None
        for part, index in self._placed:
            part.is_placed[index] = False
        self.all, self._packs, self._placed = [], [], []
        if self._memory is not None:
            self._memory.close()
            self._memory = None
        self._thread = 0

    def has_counted(self) -> bool:
        """Return whether state() has anything to tell."""
        return bool(self.why_off) or self._counts.in_place + self._counts.copied > 0

    def state(self) -> GradientsState:
        """Return what was written in place and what was copied."""
        counts = self._counts
        return GradientsState(
            what=_WHAT,
            in_place=counts.in_place,
            copied=counts.copied,
            copied_bytes=counts.copied_bytes + counts.aside_bytes,
            why_off=self.why_off,
        )


def _arrived(known: weakref.ref[Buckets]) -> Callable[[int], None]:
    def arrived(number: int) -> None:
        buckets = known()
        if buckets is not None:
            buckets.arrived(number)

    return arrived


def _planned(lane: Lane, parts: dict[str, Part]) -> _Plan:
    plan = _Plan([], [], 0)
    for index, pack in enumerate(lane.packs):
        members = [parts[name] for name in pack.names if name in parts]
        if pack.is_whole and len(members) == len(pack.names) and _fits(pack, members):
            span = _span(members, plan.size_bytes)
            plan.packs.append((index, members))
            plan.spans.append(span)
            plan.size_bytes += span.size_bytes
    return plan


def _fits(pack: Pack, members: list[Part]) -> bool:
    """Return whether gradients are as the lane has them: parameters may have changed since."""
    return all(
        part.entry is not None
        and part.entry.signature == signature
        and part.kinds == [(one.dtype, one.shape) for one in part.parameters]
        for part, signature in zip(members, pack.signatures, strict=True)
    )


def _span(members: list[Part], offset: int) -> Span:
    named = [(part.name, one) for part in members for one in part.parameters]
    dtype, item_bytes = named[0][1].dtype, named[0][1].element_size()
    firsts, length = layout([one.numel() for _, one in named], item_bytes)
    slots = [
        Slot(name, name, cast("torch.nn.Parameter", one), offset + first * item_bytes, one.nbytes)
        for first, (name, one) in zip(firsts, named, strict=True)
        if one.nbytes >= LEAST_BYTES and one.is_contiguous()
    ]
    return Span(dtype, offset, length * item_bytes, slots)


_living: weakref.WeakSet[Buckets] = weakref.WeakSet()


def _states() -> Iterator[GradientsState]:
    return (one.state() for one in list(_living) if one.has_counted())


def _close_all() -> None:
    for one in list(_living):
        one.close()
        one.lane = None


adoption.gradient_sources.append(_states)
_runtime.before_stop.append(_close_all)
