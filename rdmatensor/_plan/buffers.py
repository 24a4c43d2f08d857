"""The buffers that rank 0 sends before a forward pass, by the plan."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

import torch
import torch.distributed as dist

from graph_analysis import TransferPlan
from graph_analysis.plan import PlannedBucket, PlannedTensor, gradient_buckets
from graph_analysis.recording import RecordedTensor
from rdmatensor.errors import PlanMismatchError

# From this size on a pack gains nothing over separate messages: collectives.md, "Many small
# tensors".
PACKED_BELOW_BYTES = 16 * 1024


@dataclass(frozen=True, slots=True)
class _Message:
    """One message: a tensor in its own memory, or several in `flat`, as its `parts`."""

    planned: tuple[PlannedTensor, ...]
    flat: torch.Tensor | None
    parts: tuple[torch.Tensor, ...]


class SentBuffers:
    """The buffers of a model, which are rank 0's at the start of each forward pass.

    Rank 0 sends them at the end of each backward pass that sends, so that an evaluation, which does
    not communicate, has them. It uses what has arrived, unless the program changed a buffer in
    between. A training forward pass asks whether rank 0's buffers are still those; if not, or if no
    such backward pass came before, rank 0 sends them.
    Small buffers are sent together from their place in the plan's memory. Buffers are looked up by
    name each time: a module may assign another tensor, as a running average does, and so do .to()
    and load_state_dict(assign=True).
    copied_bytes: those packed or unpacked here so far.
    One thread uses it at a time: the one that calls the model, or runs its backward pass.
    """

    def __init__(
        self,
        plan: TransferPlan,
        model: torch.nn.Module,
        memory: torch.Tensor,
        root: int,
        group: dist.ProcessGroup,
    ) -> None:
        """Raise PlanMismatchError if the model lacks a buffer of the plan, or one has no place.

        memory: the plan's, of bytes, in which small buffers are packed.
        root: the global rank whose buffers all ranks get.
        """
        self._model = model
        self._root = root
        self._group = group
        self.copied_bytes = 0
        self._lay_out(plan, memory)
        self._look_up()
        self._is_root = dist.is_initialized() and dist.get_rank() == root
        self._works: list[dist.Work | None] = []
        self._sent: tuple[list[torch.Tensor], list[torch.Tensor]] = ([], [])  # until end_send()
        # By message: the root's, and this rank's of that moment or after the last evaluation.
        self._arrived: list[torch.Tensor] = []
        self._known: list[torch.Tensor] = []
        self._is_sent = False  # since the last training forward pass
        self._is_own = False  # the running evaluation found no change by the program

    def _lay_out(self, plan: TransferPlan, memory: torch.Tensor) -> None:
        """Pack by the plan, in its memory of bytes, which is kept until close().

        Raises: PlanMismatchError if a gradient is where buffers are packed. A plan may allow that
            if its buffers need their places for a part of the step only.
        """
        planned = {tensor.name: tensor for tensor in plan.tensors if tensor.role == "buffer"}
        self._messages: list[_Message] = []
        for bucket in plan.buckets:
            # In a recorded plan, other buckets hold what the program sends by itself.
            if bucket.phase != "forward" or bucket.operation != "broadcast":
                continue
            if planned.keys() >= set(bucket.tensors):
                place = _place_of(bucket, plan, memory)
                self._messages += _split([planned[name] for name in bucket.tensors], place)

    def packed(self) -> dict[int, tuple[RecordedTensor, ...]]:
        """Return what is sent packed, by the address from which it is sent."""
        return {
            message.flat.data_ptr(): tuple(
                RecordedTensor(one.name, one.role, one.dtype, one.item_bytes, _shape_of(one))
                for one in message.planned
            )
            for message in self._messages
            if message.flat is not None
        }

    def begin_send(self) -> None:
        """Start to send the root's buffers, without blocking. end_send() must follow.

        Raises: PlanMismatchError if a buffer is missing or differs; what the group raises.
        """
        found = self._look_up()
        self._works, self._sent, self._is_sent = [], ([], []), False
        arriving, known = self._sent
        for message, tensors in zip(self._messages, found, strict=True):
            if message.flat is not None:
                flat = message.flat
                self.copied_bytes += flat.nbytes
                if self._is_root:
                    torch._foreach_copy_(message.parts, tensors)
            else:
                flat = tensors[0].contiguous() if self._is_root else _empty_like(tensors[0])
            known.append(_values_of(tensors))
            arriving.append(flat)
            self._works.append(
                dist.broadcast(flat, src=self._root, group=self._group, async_op=True)
            )

    def end_send(self) -> None:
        """Wait until the root's buffers have arrived; the next forward pass uses them."""
        works, self._works = self._works, []
        for work in works:
            if work is not None:
                work.wait()
        self._arrived, self._known = self._sent
        self._is_sent = True

    def forget(self) -> None:
        """The pass raised: wait for what was started, and use none of it."""
        works, self._works = self._works, []
        for work in works:
            if work is not None:
                work.wait()
        self._is_sent = False

    def before_training(self, *, is_owed: bool) -> None:
        """Prepare a training forward pass; collective if the buffers are owed.

        Raises: PlanMismatchError if a buffer is missing or differs; what the group raises.
        """
        found = self._look_up()
        if not is_owed or not self._messages:
            return
        if not self._is_sent or self._has_root_changed(found):
            self.begin_send()
            self.end_send()
        self._show(found)
        self._is_sent = False

    def _has_root_changed(self, found: list[list[torch.Tensor]]) -> bool:
        """Whether the root's buffers differ from those that it has sent; the same on all ranks."""
        is_changed = self._is_root and not self._is_unchanged(found)
        said = torch.tensor([is_changed], dtype=torch.uint8)
        dist.all_reduce(said, op=dist.ReduceOp.MAX, group=self._group)
        return bool(said.item())

    def before_evaluation(self, *, shows: bool) -> None:
        """Prepare any other forward pass.

        shows: use what has arrived, unless the program changed it.

        Raises: PlanMismatchError if a buffer is missing or differs.
        """
        found = self._look_up()
        self._is_own = self._is_sent and not self._is_root and self._is_unchanged(found)
        if self._is_own and shows:
            self._show(found)

    def after_evaluation(self) -> None:
        """Finish an evaluation: changes by the pass itself do not count as the program's."""
        if self._is_own:
            self._known = [_values_of(tensors) for tensors in self._look_up()]
        self._is_own = False

    def _show(self, found: list[list[torch.Tensor]]) -> None:
        """Copy the root's buffers into this rank's."""
        if self._is_root:
            return
        for message, tensors, flat in zip(self._messages, found, self._arrived, strict=True):
            if message.flat is not None:
                torch._foreach_copy_(tensors, message.parts)
            else:
                tensors[0].copy_(flat)
        self._known = [_values_of(tensors) for tensors in found]

    def _is_unchanged(self, found: list[list[torch.Tensor]]) -> bool:
        return all(
            torch.equal(_values_of(tensors), before)
            for tensors, before in zip(found, self._known, strict=True)
        )

    def close(self) -> None:
        """Release the memory; nothing is sent afterwards. Idempotent."""
        self._messages, self._sent = [], ([], [])
        self._arrived, self._known = [], []

    def _look_up(self) -> list[list[torch.Tensor]]:
        """Return the tensors by message; PlanMismatchError names a missing or different one."""
        if not self._messages:
            return []
        buffers = dict(self._model.named_buffers())
        # Two forward passes may come before a backward pass that has saved a buffer. Writes to
        # .data, like an arriving message, leave autograd's version counter unchanged.
        return [
            [_checked(wanted, buffers.get(wanted.name)).data for wanted in message.planned]
            for message in self._messages
        ]


def _place_of(bucket: PlannedBucket, plan: TransferPlan, memory: torch.Tensor) -> torch.Tensor:
    """Return a bucket's bytes of the plan's memory."""
    start = bucket.places[0].offset
    end = start + bucket.span_bytes
    for other in gradient_buckets(plan):
        first = other.places[0].offset
        if start < first + other.span_bytes and first < end:
            raise PlanMismatchError(
                f"the plan has buffer {bucket.tensors[0]} and gradient {other.tensors[0]} in one "
                "place, where a gradient may lie when buffers are sent"
            )
    return memory[start:end]


def _split(bucket: list[PlannedTensor], place: torch.Tensor) -> Iterator[_Message]:
    """Yield one message for a bucket's small tensors together, and one for each other tensor."""
    small = [tensor for tensor in bucket if _size_bytes(tensor) < PACKED_BELOW_BYTES]
    if len(small) > 1:
        yield _packed(small, place)
    for tensor in bucket:
        if len(small) == 1 or _size_bytes(tensor) >= PACKED_BELOW_BYTES:
            yield _Message((tensor,), None, ())


def _packed(planned: list[PlannedTensor], place: torch.Tensor) -> _Message:
    """Return a message without gaps at the beginning of the place."""
    shapes = [_shape_of(one) for one in planned]
    counts = [prod(shape) for shape in shapes]
    dtype = getattr(torch, planned[0].dtype)
    with torch.inference_mode(mode=False):  # otherwise training could not write there later
        flat = place[: sum(counts) * planned[0].item_bytes].view(dtype)
    parts = zip(torch.split(flat, counts), shapes, strict=True)
    return _Message(tuple(planned), flat, tuple(part.view(shape) for part, shape in parts))


def _values_of(tensors: list[torch.Tensor]) -> torch.Tensor:
    """Return a copy of the bytes of tensors of one type, in which NaN equals itself."""
    return torch.cat([tensor.reshape(-1) for tensor in tensors]).view(torch.uint8)


def _empty_like(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)


def _shape_of(planned: PlannedTensor) -> tuple[int, ...]:
    """Return a buffer's shape, in which no size is open."""
    return tuple(int(dim) for dim in planned.shape)


def _size_bytes(planned: PlannedTensor) -> int:
    return prod(_shape_of(planned), start=planned.item_bytes)


def _checked(wanted: PlannedTensor, buffer: torch.Tensor | None) -> torch.Tensor:
    if buffer is None:
        raise PlanMismatchError(
            f"the plan has a buffer {wanted.name}, the model has none of that name"
        )
    dtype = str(buffer.dtype).removeprefix("torch.")
    if (tuple(buffer.shape), dtype) != (tuple(wanted.shape), wanted.dtype):
        raise PlanMismatchError(
            f"the plan's buffer {wanted.name} is {wanted.shape} of {wanted.dtype}, the "
            f"model's is {tuple(buffer.shape)} of {dtype}"
        )
    return buffer
