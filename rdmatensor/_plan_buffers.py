"""The buffers that rank 0 sends before a forward pass, by the plan."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

import torch
import torch.distributed as dist

from graph_analysis import TransferPlan
from graph_analysis.measured import gradient_buckets
from graph_analysis.plan import PlannedBucket, PlannedTensor
from graph_analysis.recording import RecordedTensor
from rdmatensor._plan_memory import PlanMismatch

# From here on a pack gains nothing over messages of their own: "Many small tensors" in
# docs/performance.md has the times.
PACKED_BELOW_BYTES = 16 * 1024


@dataclass(frozen=True, slots=True)
class _Message:
    """What leaves together: a tensor from where it is, or several from `flat`, as its `parts`."""

    planned: tuple[PlannedTensor, ...]
    flat: torch.Tensor | None
    parts: tuple[torch.Tensor, ...]


class SentBuffers:
    """The messages of a step's buffers; small ones leave from their place in the plan's memory.

    Looked up by their names each time: a module may assign itself another tensor, as a running
    average does, and so do .to() and load_state_dict(assign=True).
    copied_bytes: of those packed or unpacked here so far.
    One thread uses it at a time: the one that calls the model.
    """

    def __init__(self, plan: TransferPlan, model: torch.nn.Module, memory: torch.Tensor) -> None:
        """Raise PlanMismatch if the model has not the plan's buffers, and as lay_out()."""
        self._model = model
        self.copied_bytes = 0
        self.lay_out(plan, memory)
        self._look_up()

    def lay_out(self, plan: TransferPlan, memory: torch.Tensor) -> None:
        """Pack by this plan from here on, in its memory of bytes, which is kept until close().

        Raises: PlanMismatch if a gradient lies where buffers are packed, which a plan may say
            whose buffers need their places for a part of the step.
        """
        planned = {tensor.name: tensor for tensor in plan.tensors if tensor.role == "buffer"}
        self._messages: list[_Message] = []
        for bucket in plan.buckets:
            # Of a merged plan other buckets have what the program sends by itself.
            if bucket.phase != "forward" or bucket.operation != "broadcast":
                continue
            if planned.keys() >= set(bucket.tensors):
                place = _place_of(bucket, plan, memory)
                self._messages += _split([planned[name] for name in bucket.tensors], place)

    def packed(self) -> dict[int, tuple[RecordedTensor, ...]]:
        """Return what leaves packed, by the address that it leaves from."""
        return {
            message.flat.data_ptr(): tuple(
                RecordedTensor(one.name, one.role, one.dtype, one.item_bytes, _shape_of(one))
                for one in message.planned
            )
            for message in self._messages
            if message.flat is not None
        }

    def send(self, root: int, group: dist.ProcessGroup) -> None:
        """Make those of the root (a global rank) everybody's; blocks until they are.

        Raises: PlanMismatch for one that is missing or differs; what the group raises.
        """
        is_root = dist.get_rank() == root
        works: list[dist.Work | None] = []
        arriving: list[tuple[list[torch.Tensor], tuple[torch.Tensor, ...]]] = []
        for message, found in zip(self._messages, self._look_up(), strict=True):
            # Two forward passes may come before a backward pass that has saved a buffer: .data, as
            # what arrives by a message, leaves autograd's count of its versions alone.
            tensors = [tensor.data for tensor in found]
            flat = tensors[0]
            if message.flat is not None:
                flat = message.flat
                self.copied_bytes += flat.nbytes
                if is_root:
                    torch._foreach_copy_(message.parts, tensors)
                else:
                    arriving.append((tensors, message.parts))
            works.append(dist.broadcast(flat, src=root, group=group, async_op=True))
        for work in works:
            if work is not None:
                work.wait()
        for tensors, parts in arriving:
            torch._foreach_copy_(tensors, parts)

    def close(self) -> None:
        """Give the memory back; nothing is sent afterwards. Again is harmless."""
        self._messages = []

    def _look_up(self) -> list[list[torch.Tensor]]:
        """Return the tensors, by message; PlanMismatch names one that is missing or differs."""
        if not self._messages:
            return []
        buffers = dict(self._model.named_buffers())
        return [
            [_checked(wanted, buffers.get(wanted.name)) for wanted in message.planned]
            for message in self._messages
        ]


def _place_of(bucket: PlannedBucket, plan: TransferPlan, memory: torch.Tensor) -> torch.Tensor:
    """Return a bucket's bytes of the plan's memory."""
    start = bucket.places[0].offset
    end = start + bucket.span_bytes
    for other in gradient_buckets(plan):
        first = other.places[0].offset
        if start < first + other.span_bytes and first < end:
            raise PlanMismatch(
                f"the plan has buffer {bucket.tensors[0]} and gradient {other.tensors[0]} in one "
                "place, where a gradient may lie when buffers are sent"
            )
    return memory[start:end]


def _split(bucket: list[PlannedTensor], place: torch.Tensor) -> Iterator[_Message]:
    """Yield a message for a bucket's small tensors together, and one for each of the others."""
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
    with torch.inference_mode(mode=False):  # or training could not write there later
        flat = place[: sum(counts) * planned[0].item_bytes].view(dtype)
    parts = zip(torch.split(flat, counts), shapes, strict=True)
    return _Message(tuple(planned), flat, tuple(part.view(shape) for part, shape in parts))


def _shape_of(planned: PlannedTensor) -> tuple[int, ...]:
    """Return a buffer's shape: nothing about it is left open."""
    return tuple(int(dim) for dim in planned.shape)


def _size_bytes(planned: PlannedTensor) -> int:
    return prod(_shape_of(planned), start=planned.item_bytes)


def _checked(wanted: PlannedTensor, buffer: torch.Tensor | None) -> torch.Tensor:
    if buffer is None:
        raise PlanMismatch(f"the plan has a buffer {wanted.name}, the model has none of that name")
    dtype = str(buffer.dtype).removeprefix("torch.")
    if (tuple(buffer.shape), dtype) != (tuple(wanted.shape), wanted.dtype):
        raise PlanMismatch(
            f"the plan's buffer {wanted.name} is {wanted.shape} of {wanted.dtype}, the "
            f"model's is {tuple(buffer.shape)} of {dtype}"
        )
    return buffer
