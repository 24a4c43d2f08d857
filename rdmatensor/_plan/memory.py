"""Places for gradients in the arena, as a plan lays them out, and the buckets sent from them."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch

from rdmatensor._backend.extension import load_extension
from rdmatensor._native.malloc_limits import keep_large_blocks
from rdmatensor._plan.live import LivePart
from rdmatensor._plan.spans import Span
from rdmatensor.context import Context
from rdmatensor.errors import PlanMismatchError
from rdmatensor.torch import empty, has_allocator


@dataclass(slots=True)
class Counts:
    """Counts of gradients since creation: written into their place by autograd, or copied there.

    copied, copied_bytes: gradients that autograd wrote elsewhere.
    traced: allocations learnt; a step that repeats learns none.
    aside_bytes: copied, in addition to copied_bytes, because a bucket could not be sent in place.
    thinned_bytes: live blocks copied into buckets and out of them.
    """

    in_place: int = 0
    copied: int = 0
    copied_bytes: int = 0
    traced: int = 0
    aside_bytes: int = 0
    thinned_bytes: int = 0


@dataclass(eq=False, slots=True)
class Gradient:
    """One parameter's gradient, and the number of the allocation that becomes it, if known.

    tensor: its name in the plan; name: the parameter's. place: -1 if it has no bytes, or a part of
        it is sent.
    address, size_bytes: of what is sent.
    strides: as autograd lays the gradient out: those of the parameter if it is dense.
    live: its part that is sent; None: all of it.
    """

    number: int
    tensor: str
    name: str
    parameter: torch.nn.Parameter
    strides: tuple[int, ...]
    bucket: int
    place: int
    address: int
    size_bytes: int
    live: LivePart | None = None
    allocation: int | None = None


@dataclass(eq=False, slots=True)
class Bucket:
    """Gradients that are sent together; flat covers them and their gaps, in the arena."""

    number: int
    flat: torch.Tensor
    gradients: list[Gradient]
    waiting: set[Gradient] = field(default_factory=set)

    def reach(self, gradient: Gradient) -> tuple[int, int]:
        """Return the first element of a gradient's part of flat, and how many it has."""
        if gradient.live is None and gradient.place < 0:
            return 0, 0
        first = (gradient.address - self.flat.data_ptr()) // self.flat.element_size()
        live = gradient.live
        return first, gradient.parameter.numel() if live is None else live.count

    def part(self, of: torch.Tensor, gradient: Gradient) -> torch.Tensor:
        """Return a gradient's part of flat, or of a copy of it, in one dimension if it is thin."""
        first, count = self.reach(gradient)
        part = of[first : first + count]
        if gradient.live is not None:
            return part
        like = gradient.parameter
        return part.as_strided(like.shape, gradient.strides) if count else part.view(like.shape)


class GradientMemory:
    """The memory of one model's buckets, and the trace of which allocation becomes which gradient.

    One thread uses it at a time: the one that runs backward.
    """

    def __init__(
        self,
        size_bytes: int,
        spans: Iterable[Span],
        context: Context,
        arrived: Callable[[int], None],
        counts: Counts | None = None,
    ) -> None:
        """Lay the buckets out in new memory.

        arrived: called on the backward thread with the number of a gradient that is final, after
            all hooks of the program on that parameter. It must not keep this object alive.
        counts: to count further; None: from zero.
        """
        self.counts = Counts() if counts is None else counts
        self.memory = empty(max(size_bytes, 1), dtype=torch.uint8, context=context).zero_()
        self.size_bytes = self.memory.nbytes
        keep_large_blocks()
        self.gradients: dict[torch.nn.Parameter, Gradient] = {}
        self.buckets: list[Bucket] = []
        places = self._lay_out(spans)
        self.numbered = list(self.gradients.values())
        extension = load_extension()
        self._places: Any = extension.PlannedPlaces(self.memory, places)
        self._watched: Any = extension.PlanGradients(
            [
                (g.parameter, g.bucket, g.address if g.place >= 0 else 0, list(g.strides))
                for g in self.numbered
            ],
            arrived,
        )
        self._hooks = [
            g.parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                _last_hook(weakref.ref(self._watched), g.number)
            )
            for g in self.numbered
        ]
        self._exists: int = extension.PlanGradients.EXISTS
        self._in_place: int = extension.PlanGradients.IN_PLACE
        self._alone: int = extension.PlanGradients.ALONE
        self._strided: int = extension.PlanGradients.STRIDED
        self._stop = weakref.finalize(self, self._places.stop)  # after a pass that raised
        self._stop.atexit = False
        self._is_tracing = False
        # By number, while a bucket is on its way: a gradient of which a part is sent, its version.
        self._sent: dict[int, tuple[torch.Tensor, int]] = {}

    def _lay_out(self, spans: Iterable[Span]) -> list[tuple[int, int]]:
        """Make the buckets; return offset and bytes of each place."""
        places: list[tuple[int, int]] = []
        for span in spans:
            members = []
            for slot in span.slots:
                is_whole = slot.live is None and slot.size_bytes > 0
                gradient = Gradient(
                    number=len(self.gradients),
                    tensor=slot.tensor,
                    name=slot.name,
                    parameter=slot.parameter,
                    strides=strides_of(slot.parameter),
                    bucket=len(self.buckets),
                    place=len(places) if is_whole else -1,
                    address=self.memory.data_ptr() + slot.offset,
                    size_bytes=slot.size_bytes,
                )
                if slot.live is not None:
                    like, align = slot.parameter, span.alignment_bytes
                    gradient.live = LivePart(like, gradient.strides, slot.live, align)
                if is_whole:
                    places.append((slot.offset, slot.size_bytes))
                members.append(gradient)
                self.gradients[slot.parameter] = gradient
            part = self.memory[span.offset : span.offset + span.size_bytes]
            self.buckets.append(Bucket(len(self.buckets), part.view(span.dtype), members))
        return places

    def begin(self, *, in_passes: bool = False) -> None:
        """Start a backward pass: this thread's allocations are traced until end().

        in_passes: only those of whole backward passes count, of which several may follow.
        If another library has torch's allocator, settle() copies all gradients.
        """
        if not has_allocator():
            return
        served = [
            (gradient.allocation, gradient.place)
            for gradient in self.numbered
            if gradient.allocation is not None
            and (in_passes or gradient.parameter.grad is None)  # there may be none by then
        ]
        self._places.begin(served, in_passes)
        self._is_tracing = True

    def end(self) -> None:
        """End what begin() started; harmless without it."""
        if self._is_tracing:
            self._places.end()
        self._is_tracing = False

    def close(self) -> None:
        """Stop calling `arrived`, and let the memory go, but for gradients that are in use."""
        self.end()
        for hook in self._hooks:
            hook.remove()
        self._watched.close()
        self._stop()
        self._places = None
        self.memory = self.memory.new_empty(0)
        for bucket in self.buckets:
            bucket.flat = bucket.flat.new_empty(0)

    def settle(self, gradient: Gradient) -> None:
        """Move a final gradient into its place, unless it is there.

        If the program, or autograd, holds the gradient too, it stays where it is.

        Raises:
            PlanMismatchError: The gradient is sparse.
        """
        found = self._watched.look(gradient.number)
        if not found & self._exists:  # a hook of the program has taken it
            self.fill(gradient)
            return
        if not found & self._strided:
            raise PlanMismatchError(
                f"the gradient of {gradient.name} is sparse, which a plan does not send: make the "
                "layer with sparse=False, or train with DistributedDataParallel"
            )
        if gradient.live is not None:
            return  # its live blocks are copied when the bucket leaves
        if found & self._in_place:
            self.counts.in_place += 1
            return
        grad = grad_of(gradient)
        self._learn(gradient, grad)
        self.counts.copied += 1
        self.counts.copied_bytes += gradient.size_bytes
        if found & self._alone and not self.is_taken(gradient):
            gradient.parameter.grad = self.take(gradient).copy_(grad)

    def fill(self, gradient: Gradient) -> None:
        """Give a parameter without a gradient one of zeros, in its place if that is free."""
        if self.is_taken(gradient):
            like = gradient.parameter
            zeros = torch.zeros_like(like, memory_format=torch.preserve_format)
            like.grad = zeros
        else:
            gradient.parameter.grad = self.take(gradient).zero_()

    def take(self, gradient: Gradient) -> torch.Tensor:
        """Return a gradient in its place, which must be free; the content is undefined."""
        like = gradient.parameter
        if gradient.place < 0:
            return torch.empty_like(like)
        placed: torch.Tensor = self._places.take(
            gradient.place, list(like.shape), list(gradient.strides), like.dtype
        )
        return placed

    def leaving(self, bucket: Bucket) -> torch.Tensor:
        """Return what is sent: the bucket's place, or a copy if it has another holder.

        The peers expect one message in either case, and write into the memory that is sent.
        """
        if self._watched.can_leave(bucket.number):
            self._watched.hold(bucket.number)
            self._thin(bucket, bucket.flat)
            return bucket.flat
        flat = bucket.flat.clone()
        self.counts.aside_bytes += flat.nbytes
        with torch.no_grad():
            for gradient in bucket.gradients:
                grad = gradient.parameter.grad
                if gradient.live is not None:
                    continue
                if grad is None:
                    bucket.part(flat, gradient).zero_()
                elif not self.is_in_place(gradient):
                    bucket.part(flat, gradient).copy_(grad)
        self._thin(bucket, flat)
        return flat

    def _thin(self, bucket: Bucket, flat: torch.Tensor) -> None:
        """Copy live blocks into what is sent."""
        for gradient in bucket.gradients:
            if gradient.live is None:
                continue
            part, grad = bucket.part(flat, gradient), gradient.parameter.grad
            if grad is None:
                part.zero_()
                continue
            gradient.live.gather(grad, part)
            self.counts.thinned_bytes += gradient.size_bytes
            self._sent[gradient.number] = (grad, grad._version)

    def _spread(self, bucket: Bucket, flat: torch.Tensor) -> None:
        """Move sums of live blocks to the gradients, which become zero elsewhere.

        Raises:
            PlanMismatchError: The program wrote a gradient meanwhile.
        """
        for gradient in bucket.gradients:
            if gradient.live is None:
                continue
            sent, version = self._sent.pop(gradient.number, (None, 0))
            grad = gradient.parameter.grad
            if sent is not None and sent._version != version:
                raise _written(gradient)
            if grad is None:
                grad = gradient.parameter.grad = self.take(gradient) if sent is None else sent
            gradient.live.scatter(bucket.part(flat, gradient), grad)
            self.counts.thinned_bytes += gradient.size_bytes

    def arrived(self, bucket: Bucket, flat: torch.Tensor) -> None:
        """Move the sums in what leaving() returned to the gradients."""
        if flat is bucket.flat:
            written = self._watched.let_go(bucket.number)
            if written:
                raise _written(self.numbered[written[0]])
            self._spread(bucket, flat)
            return
        with torch.no_grad():
            for gradient in bucket.gradients:
                if gradient.live is not None:
                    continue
                part = bucket.part(flat, gradient)
                self.counts.aside_bytes += gradient.size_bytes
                if gradient.parameter.grad is None:
                    gradient.parameter.grad = part.clone()
                else:
                    gradient.parameter.grad.copy_(part)
        self._spread(bucket, flat)

    def unreached(self, outputs: list[torch.Tensor]) -> set[int]:
        """Return the numbers of the gradients that no backward pass from these tensors reaches.

        A reentrant checkpoint hides what it uses: with one, the result is empty.
        """
        return set(self._watched.unreached(outputs))

    def forget(self) -> None:
        """Discard the sums of a pass that raised. No peer may write them any more."""
        self._watched.forget()
        self._sent.clear()

    def is_taken(self, gradient: Gradient) -> bool:
        """Whether a tensor is in the gradient's place."""
        return gradient.place >= 0 and bool(self._places.is_taken(gradient.place))

    def is_in_place(self, gradient: Gradient) -> bool:
        """Whether the parameter's gradient, which exists, is in the place from which it is sent."""
        return bool(self._watched.look(gradient.number) & self._in_place)

    def _learn(self, gradient: Gradient, grad: torch.Tensor) -> None:
        if not self._is_tracing or grad.untyped_storage().nbytes() != gradient.size_bytes:
            return
        allocation = self._places.find(grad.data_ptr())
        if allocation >= 0 and allocation != gradient.allocation:
            gradient.allocation = allocation
            self.counts.traced += 1


def _written(gradient: Gradient) -> PlanMismatchError:
    return PlanMismatchError(
        f"the gradient of {gradient.name} was written by the program, for example by a hook of "
        "another parameter, while its sum was on its way: change a gradient in a hook of its own "
        "parameter, or after backward()"
    )


def _last_hook(watched: weakref.ref[Any], number: int) -> Callable[[torch.Tensor], None]:
    """Return a hook of a parameter that keeps nothing alive: Python's collector does not see it."""

    def hook(_parameter: torch.Tensor) -> None:
        known = watched()
        if known is not None:
            known.be_last(number)

    return hook


def strides_of(parameter: torch.Tensor) -> tuple[int, ...]:
    """Return the strides of a gradient: the parameter's if dense, else row-major ones."""
    expected = 1
    for stride, size in sorted(zip(parameter.stride(), parameter.shape, strict=True)):
        if size == 1:
            continue
        if stride != expected:
            return tuple(torch.empty(parameter.shape, device="meta").stride())
        expected *= size
    return tuple(parameter.stride())


def grad_of(gradient: Gradient) -> torch.Tensor:
    """Return the gradient itself, which must exist."""
    found = gradient.parameter.grad
    assert found is not None
    return found
