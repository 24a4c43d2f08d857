"""What the ranks of a group agree on before they train by a plan."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol, TypeVar, cast

import torch
import torch.distributed as dist

from graph_analysis import TransferPlan, first_difference, plan_from_json, plan_to_json
from rdmatensor._backend.groups import backend_of
from rdmatensor._plan.memory import Gradient
from rdmatensor.errors import InvalidArgumentError, PlanMismatchError

_REFUSAL = 32767  # the label of a rank that cannot continue
LABELS = _REFUSAL - 1  # of buckets, from 1

Made = TypeVar("Made")


def check_plan(
    plan: TransferPlan, group: dist.ProcessGroup, wire: str, *, find_unused_parameters: bool
) -> None:
    """Compare the plans and options of all ranks of the group, before any address is used."""
    world = dist.get_world_size(group)
    strategy = plan.strategy
    mine = (plan.fingerprint(), strategy.kind, strategy.world_size, find_unused_parameters, wire)
    others: list[Any] = [None] * world
    dist.all_gather_object(others, mine, group=group)
    for rank, (_, kind, planned, finds, other) in enumerate(others):  # each rank checks all
        if other != others[0][4]:
            raise PlanMismatchError(f"the wire is {other} on rank {rank}, {others[0][4]} on rank 0")
        if finds != others[0][3]:
            raise PlanMismatchError(
                f"find_unused_parameters is {finds} on rank {rank}, {others[0][3]} on rank 0"
            )
        if kind != "data_parallel" or planned != world:
            raise InvalidArgumentError(
                "RDT_EINVAL",
                "plan.apply",
                f"the plan of rank {rank} is for {planned} ranks with strategy {kind}; the group "
                f"has {world} ranks, and only data_parallel is run here",
            )
    if len({entry[0] for entry in others}) == 1:
        return
    first = next(rank for rank, entry in enumerate(others) if entry[0] != others[0][0])
    why = first_difference(_plan_of(first, plan, group), _plan_of(0, plan, group))
    raise PlanMismatchError(
        f"the ranks of the group have different plans: here is rank {first}, there rank 0: {why}"
    )


def _plan_of(rank: int, mine: TransferPlan, group: dist.ProcessGroup) -> TransferPlan:
    """Return the plan of a rank of the group, on all ranks."""
    texts: list[Any] = [plan_to_json(mine)]
    dist.broadcast_object_list(texts, src=dist.get_global_rank(group, rank), group=group)
    return plan_from_json(texts[0])


def on_all_ranks(make: Callable[[], Made], group: dist.ProcessGroup) -> Made:
    """Return what make() returns, once it has succeeded on all ranks of the group.

    make: does not communicate.
    Raises: what make() raised here; if it raised on other ranks only, PlanMismatchError or
        RuntimeError with the rank and its message. So no rank goes on to wait for one that has
        refused.
    """
    made: list[Made] = []
    raised: Exception | None = None
    try:
        made.append(make())
    except Exception as error:  # noqa: BLE001 - raised below, when the others know
        raised = error
    mine = None if raised is None else (isinstance(raised, PlanMismatchError), str(raised))
    others: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(others, mine, group=group)
    if raised is not None:
        raise raised
    for rank, other in enumerate(others):
        if other is not None:
            is_mismatch, words = other
            raise (PlanMismatchError if is_mismatch else RuntimeError)(f"on rank {rank}: {words}")
    return made[0]


def check_layouts(gradients: Iterable[Gradient], group: dist.ProcessGroup) -> None:
    """Compare how the ranks lay out each gradient: they sum bytes in memory order.

    Raises:
        PlanMismatchError: Two ranks lay one out differently, for example if one model is
            channels_last.
    """
    mine = {gradient.name: gradient.strides for gradient in gradients}
    others: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(others, mine, group=group)
    for rank, other in enumerate(others):
        for name, strides in others[0].items():
            if other.get(name) != strides:
                raise PlanMismatchError(
                    f"parameter {name} has the strides {other.get(name)} on rank {rank}, "
                    f"{strides} on rank 0"
                )


def broadcast_all(tensors: Iterable[torch.Tensor], root: int, group: dist.ProcessGroup) -> None:
    """Broadcast the root's values to all ranks, whatever their layout is; root is a global rank."""
    for tensor in tensors:
        data = tensor.detach()
        flat = data.contiguous()
        dist.broadcast(flat, src=root, group=group)
        if flat is not data and dist.get_rank() != root:
            data.copy_(flat)


class _Persistent(Protocol):
    """rdmatensor._c10d.Persistent: an average that is initialised once and started often."""

    def start(self, label: int, aside: torch.Tensor | None) -> dist.Work:
        """Average the tensor, or the one given for this start alone, in place."""

    def close(self) -> None:
        """Free it, and let its tensor go. Idempotent."""


class StartedBucket(Protocol):
    """The average of a bucket over the group, started in each pass."""

    def start(self, flat: torch.Tensor, label: int) -> dist.Work:
        """Average the bucket, or a copy of it, in place; fails if the ranks' labels differ."""

    def close(self) -> None:
        """Let its memory go. Idempotent."""


class BoundBucket:
    """The average of a bucket over the group: initialised once, started in each pass."""

    def __init__(self, flat: torch.Tensor, group: dist.ProcessGroup) -> None:
        """Initialise it; collective over the group."""
        self._flat: torch.Tensor | None = flat
        persistent = backend_of(group)._average_init(_real(flat))
        self._persistent = cast("_Persistent", persistent)

    def start(self, flat: torch.Tensor, label: int) -> dist.Work:
        """Average the bucket, or a copy of it, in place; fails if the ranks' labels differ."""
        return self._persistent.start(label, None if flat is self._flat else _real(flat))

    def close(self) -> None:
        """Let the other ranks' memory go. Idempotent."""
        self._persistent.close()
        self._flat = None


def _real(flat: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(flat) if flat.is_complex() else flat


def refuse(error: PlanMismatchError, group: dist.ProcessGroup) -> PlanMismatchError:
    """Return the error, once the other ranks have refused too, or know of it.

    If all ranks refuse at the same point, the group stays usable. If others continue, their next
    collective fails with an error that names this rank.
    """
    if dist.get_world_size(group) > 1:
        try:
            backend_of(group)._average_bucket(torch.zeros(1), _REFUSAL).wait()
        except RuntimeError as other:
            error.__cause__ = other
            backend_of(group).break_group(f"cannot go on with its plan: {error}")
    return error
