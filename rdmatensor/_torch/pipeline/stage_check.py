"""Whether what a pipeline stage is about to send still fits its neighbour's buffer for it.

torch exchanges shapes before the first micro-batch and allocates the buffers by them; nothing
checks them afterwards. A tensor with fewer bytes would fill a part of its buffer. A tensor with as
many bytes, but of another shape or dtype, would be taken for the planned one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
import torch.distributed as dist

from rdmatensor._backend.groups import backend_of
from rdmatensor.errors import PlanMismatchError

Direction = Literal["forward", "backward"]
_KINDS = {"forward": "activation", "backward": "gradient of activation"}
_AGAIN = (
    "the group has ended; in another run call schedule.eval() with an input of the new shape "
    "before step(), which makes the stages allocate new buffers; docs/explanation/pipelines.md has "
    "the other ways"
)


class Meta(Protocol):
    """The part of torch's _TensorMeta that is used here; of a DTensor it is the local part's."""

    shape: torch.Size
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class _Planned:
    """One message of a pass: the number of its tensor, its target stage, and its place."""

    index: int
    target: int
    place: Meta


def check_sends(stage: Any, chunk: int, direction: Direction) -> None:  # noqa: ANN401 - torch's
    """End the group with a PlanMismatchError, and raise it, if a tensor to send has changed.

    Called before the messages of a micro-batch are made, so that none of them is sent.
    """
    why = difference(stage, chunk, direction)
    if why is None:
        return
    group = dist.group.WORLD if stage.group is None else stage.group
    assert group is not None  # a stage cannot be made without one
    backend_of(group).break_group(f"ends the group: {why}")  # the others wait for it
    raise PlanMismatchError(f"{why}: {_AGAIN}")


def difference(stage: Any, chunk: int, direction: Direction) -> str | None:  # noqa: ANN401
    """Return how the result of a pass differs from what is planned, None if it does not."""
    is_forward = direction == "forward"
    # torch asks for the messages of a backward pass even if there was none.
    made: Sequence[object] = (
        stage.fwd_cache[chunk][0] if is_forward else stage.bwd_cache.get(chunk, ())
    )
    for planned in _forward(stage) if is_forward else _backward(stage):
        wanted = (tuple(planned.place.shape), planned.place.dtype)
        found = made[planned.index] if planned.index < len(made) else None
        if found is None and not is_forward:
            continue  # torch sends zeros, of the planned shape
        local = getattr(found, "_local_tensor", found)  # of a DTensor
        if isinstance(local, torch.Tensor) and (tuple(local.shape), local.dtype) == wanted:
            continue
        got = _words(tuple(local.shape), local.dtype) if isinstance(local, torch.Tensor) else local
        return (
            f"pipeline stage {stage.stage_index}, {direction}, micro-batch {chunk}: "
            f"{_KINDS[direction]} {planned.index} for stage {planned.target} is {got}, its place "
            f"is planned for {_words(*wanted)}"
        )
    return None


def _words(shape: tuple[int, ...], dtype: torch.dtype) -> str:
    return f"{shape} of {str(dtype).removeprefix('torch.')}"


def _forward(stage: Any) -> Iterator[_Planned]:  # noqa: ANN401
    for index, place in enumerate(stage._stage_meta.outputs or ()):
        for target in stage.act_send_info.get(index, ()):
            if target is not None:
                yield _Planned(index, target, place)


def _backward(stage: Any) -> Iterator[_Planned]:  # noqa: ANN401
    """Yield gradients: they go where the inputs came from, and have a place there if expected."""
    metas = stage._stage_meta
    places = metas.inputs if metas.input_grads is None else metas.input_grads
    for index, (source, place) in enumerate(
        zip(stage.args_recv_info[0], places or (), strict=False)
    ):
        if not source.is_root_arg and place is not None:
            yield _Planned(index, source.source, place)
