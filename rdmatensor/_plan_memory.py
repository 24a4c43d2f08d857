"""The memory of a plan: places for gradients in the arena, in which autograd lets them be born."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from graph_analysis import TransferPlan
from graph_analysis.measured import gradient_buckets
from graph_analysis.plan import PlannedTensor
from rdmatensor._heap import keep_large_blocks
from rdmatensor.context import Context
from rdmatensor.distributed import load_extension
from rdmatensor.torch import empty


class PlanMismatch(RuntimeError):
    """The model is not the one that the plan was made of; the message names the tensor."""


@dataclass(slots=True)
class Counts:
    """What the memory did since it was made.

    born: gradients that autograd wrote into their place. copied: those that it wrote elsewhere,
    and that had to be copied there. traced: allocations learnt; a step that repeats learns none.
    aside_bytes: copied because places were taken, or had to change, besides copied_bytes.
    """

    born: int = 0
    copied: int = 0
    copied_bytes: int = 0
    traced: int = 0
    aside_bytes: int = 0


@dataclass(eq=False, slots=True)
class Gradient:
    """One parameter's gradient. birth is the allocation of a backward pass that becomes it.

    tensor: its name in the plan; name: the parameter's. place: -1 if it has no bytes.
    """

    tensor: str
    name: str
    parameter: torch.nn.Parameter
    bucket: int
    place: int
    address: int
    size_bytes: int
    birth: int | None = None


@dataclass(eq=False, slots=True)
class Bucket:
    """Gradients that leave together. flat covers them and the gaps between them, in the arena."""

    number: int
    flat: torch.Tensor
    gradients: list[Gradient]
    waiting: set[Gradient] = field(default_factory=set)
    strays: list[Gradient] = field(default_factory=list)

    def part(self, of: torch.Tensor, gradient: Gradient) -> torch.Tensor:
        """Return a gradient's part of flat, or of a copy of it."""
        first = (gradient.address - self.flat.data_ptr()) // of.element_size()
        like = gradient.parameter
        return of[first : first + like.numel()].as_strided(like.shape, like.stride())


class GradientMemory:
    """The plan's memory for one model, and the trace of where its gradients are born.

    One thread uses it at a time: the one that runs backward.
    """

    def __init__(
        self,
        plan: TransferPlan,
        parameters: Mapping[str, torch.nn.Parameter],
        context: Context,
        before: GradientMemory | None = None,
    ) -> None:
        """Lay the plan out in new memory, or in that of `before`, in which nothing may lie then.

        What `before` has learnt, counted and lifted goes on here.
        """
        self.counts = Counts()
        # Under data parallelism all ranks have the same arena.
        size_bytes = plan.arenas[0].peak_bytes if plan.arenas else 0
        if before is None:
            self.memory = empty(max(size_bytes, 1), torch.uint8, context=context).zero_()
            keep_large_blocks()
        else:
            assert size_bytes <= before.memory.nbytes
            self.memory, self.counts = before.memory, before.counts
        self.gradients: dict[torch.nn.Parameter, Gradient] = {}
        self.buckets: list[Bucket] = []
        spans = self._lay_out(plan, parameters)
        self._places: Any = load_extension().Birthplaces(self.memory, spans)
        weakref.finalize(self, self._places.stop).atexit = False  # after a pass that raised
        self._is_tracing = False
        # What was in the place, and the gradient itself where the program has it too.
        self._lifted: dict[torch.nn.Parameter, tuple[torch.Tensor, weakref.ref[torch.Tensor]]] = {}
        if before is not None:
            self._lifted, before._lifted = before._lifted, {}
            for parameter, gradient in self.gradients.items():
                if parameter in before.gradients:
                    gradient.birth = before.gradients[parameter].birth
            self.lower()

    def _lay_out(
        self, plan: TransferPlan, parameters: Mapping[str, torch.nn.Parameter]
    ) -> list[tuple[int, int]]:
        tensors = {tensor.name: tensor for tensor in plan.tensors}
        offsets = {
            p.tensor: (p.offset, p.size_bytes) for arena in plan.arenas for p in arena.placements
        }
        spans: list[tuple[int, int]] = []
        for planned in gradient_buckets(plan):
            members = []
            for name in planned.tensors:
                parameter = check_gradient(tensors[name], parameters)
                offset, size_bytes = offsets[name]
                address = self.memory.data_ptr() + offset
                gradient = Gradient(
                    tensor=name,
                    name=tensors[name].parameter or name,
                    parameter=parameter,
                    bucket=len(self.buckets),
                    place=len(spans) if size_bytes > 0 else -1,
                    address=address,
                    size_bytes=size_bytes,
                )
                if size_bytes > 0:
                    spans.append((offset, size_bytes))
                members.append(gradient)
                self.gradients[parameter] = gradient
            start = planned.places[0].offset
            part = self.memory[start : start + planned.span_bytes]
            flat = part.view(getattr(torch, planned.dtype))
            self.buckets.append(Bucket(len(self.buckets), flat, members))
        return spans

    def begin(self) -> None:
        """From here on this thread's allocations are those of a backward pass."""
        served = [
            (gradient.birth, gradient.place)
            for gradient in self.gradients.values()
            if gradient.birth is not None and gradient.parameter.grad is None
        ]
        self._places.begin(served)
        self._is_tracing = True

    def end(self) -> None:
        """End what begin() began; harmless without it."""
        if self._is_tracing:
            self._places.end()
        self._is_tracing = False

    def settle(self, gradient: Gradient) -> bool:
        """Bring a gradient that is final into its place, unless it was born there.

        False: another tensor lies there, so that it must be sent from where it is.
        """
        grad = gradient.parameter.grad
        assert grad is not None
        if self.is_in_place(gradient, grad):
            self.counts.born += 1
            return True
        self._learn(gradient, grad)
        self.counts.copied += 1
        self.counts.copied_bytes += gradient.size_bytes
        if self._places.is_taken(gradient.place):
            return False
        gradient.parameter.grad = self.take(gradient).copy_(grad)
        return True

    def take(self, gradient: Gradient) -> torch.Tensor:
        """Return a gradient in its place, in which none may lie; the content is undefined."""
        like = gradient.parameter
        if gradient.place < 0:
            return torch.empty_like(like)
        placed: torch.Tensor = self._places.take(
            gradient.place, list(like.shape), list(like.stride()), like.dtype
        )
        return placed

    def leaving(self, bucket: Bucket) -> torch.Tensor:
        """Return what leaves: the bucket's place, or a copy of it where others lie in one.

        The peers expect one message all the same. Whoever made a stray has counted its copy.
        """
        if not bucket.strays:
            return bucket.flat
        flat = bucket.flat.clone()
        self.counts.aside_bytes += flat.nbytes
        for gradient in bucket.strays:
            bucket.part(flat, gradient).copy_(grad_of(gradient))
        return flat

    def arrived(self, bucket: Bucket, flat: torch.Tensor) -> None:
        """What leaving() returned is summed: bring it to where the gradients are."""
        if flat is bucket.flat:
            return
        for gradient in bucket.gradients:
            grad_of(gradient).copy_(bucket.part(flat, gradient))
            self.counts.aside_bytes += gradient.size_bytes

    def is_taken(self, gradient: Gradient) -> bool:
        """Whether a tensor lies in the gradient's place."""
        return gradient.place >= 0 and bool(self._places.is_taken(gradient.place))

    @staticmethod
    def is_in_place(gradient: Gradient, grad: torch.Tensor) -> bool:
        """Whether this tensor, the parameter's gradient, lies where it is sent from."""
        return gradient.place < 0 or grad.data_ptr() == gradient.address

    def is_free(self) -> bool:
        """Whether nothing lies in any place."""
        return not any(self.is_taken(gradient) for gradient in self.gradients.values())

    def lift(self) -> None:
        """Take what accumulates in the places out of them, until lower(): the places may change.

        Parameters have no gradient meanwhile. What the program holds besides stays where it is.
        """
        for parameter, gradient in self.gradients.items():
            grad = parameter.grad
            if grad is not None and self.is_taken(gradient) and self.is_in_place(gradient, grad):
                self._lifted[parameter] = (grad.clone(), weakref.ref(grad))
                self.counts.aside_bytes += gradient.size_bytes
                parameter.grad = None

    def lower(self) -> None:
        """Bring what was lifted into its place, or beside it where another tensor lies there.

        A gradient that the program has too is the parameter's again, since it lies there still.
        Where that fails, all are as they were lifted, beside their places: whoever goes on with
        other places in this memory finds none of them in it.
        """
        lifted, self._lifted = self._lifted, {}
        try:
            for parameter, (grad, held) in lifted.items():
                gradient = self.gradients[parameter]
                if not self.is_taken(gradient):
                    parameter.grad = self.take(gradient).copy_(grad)
                    self.counts.aside_bytes += gradient.size_bytes
                    continue
                before = held()
                is_same = before is not None and self.is_in_place(gradient, before)
                parameter.grad = before if is_same else grad
        except BaseException:
            for parameter, (grad, _) in lifted.items():
                parameter.grad = grad
            raise

    def _learn(self, gradient: Gradient, grad: torch.Tensor) -> None:
        if not self._is_tracing or grad.untyped_storage().nbytes() != gradient.size_bytes:
            return
        birth = self._places.find(grad.data_ptr())
        if birth >= 0 and birth != gradient.birth:
            gradient.birth = birth
            self.counts.traced += 1


def grad_of(gradient: Gradient) -> torch.Tensor:
    """Return the gradient itself, which there is."""
    found = gradient.parameter.grad
    assert found is not None
    return found


def check_gradient(
    planned: PlannedTensor, parameters: Mapping[str, torch.nn.Parameter]
) -> torch.nn.Parameter:
    """Return the parameter that a planned gradient belongs to; PlanMismatch if it is not so."""
    parameter = parameters.get(planned.parameter or planned.name)
    wants = f"{planned.shape} of {planned.dtype}"
    if parameter is None:
        raise PlanMismatch(
            f"the plan has a gradient of {planned.parameter} ({wants}), the model no such parameter"
        )
    found = f"{tuple(parameter.shape)} of {str(parameter.dtype).removeprefix('torch.')}"
    if found != wants:
        raise PlanMismatch(f"the plan's {planned.parameter} is {wants}, the model's is {found}")
    if not parameter.requires_grad:
        raise PlanMismatch(
            f"the plan has a gradient of {planned.parameter}, which is frozen in the model"
        )
    return parameter
