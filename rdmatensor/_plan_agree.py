"""What the ranks of a group agree on before they train by a plan."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from graph_analysis import TransferPlan, first_difference, plan_from_json, plan_to_json
from rdmatensor._plan_memory import PlanMismatch
from rdmatensor.errors import InvalidArgument


def check_plan(plan: TransferPlan, group: dist.ProcessGroup) -> None:
    """Compare the plans of all ranks of the group, before any address is used."""
    world = dist.get_world_size(group)
    kind, planned = plan.strategy.kind, plan.strategy.world_size
    others: list[Any] = [None] * world
    dist.all_gather_object(others, (plan.fingerprint(), kind, planned), group=group)
    if kind != "data_parallel" or planned != world:
        raise InvalidArgument(
            "RDT_EINVAL",
            "plan.apply",
            f"the plan is for {planned} ranks with strategy {kind}; the group has {world} ranks, "
            "and only data_parallel is run here",
        )
    if len({entry[0] for entry in others}) == 1:
        return
    other = next(rank for rank, entry in enumerate(others) if entry[0] != others[0][0])
    why = first_difference(_plan_of(other, plan, group), _plan_of(0, plan, group))
    raise PlanMismatch(
        f"the ranks of the group have different plans: here is rank {other}, there rank 0: {why}"
    )


def _plan_of(rank: int, mine: TransferPlan, group: dist.ProcessGroup) -> TransferPlan:
    """Return the plan of a rank of the group, on all ranks."""
    texts: list[Any] = [plan_to_json(mine)]
    dist.broadcast_object_list(texts, src=dist.get_global_rank(group, rank), group=group)
    return plan_from_json(texts[0])


def buffers_to_send(plan: TransferPlan, model: torch.nn.Module) -> list[torch.Tensor]:
    """Return the buffers that rank 0 sends before each forward; PlanMismatch if one is unknown."""
    buffers = dict(model.named_buffers())
    of_modules = {tensor.name for tensor in plan.tensors if tensor.role == "buffer"}
    sent = []
    for bucket in plan.buckets:
        if bucket.phase != "forward" or bucket.operation != "broadcast":
            continue
        if not of_modules.issuperset(bucket.tensors):
            continue  # of a merged plan: what the program sends by itself
        for name in bucket.tensors:
            if name not in buffers:
                raise PlanMismatch(f"the plan has a buffer {name}, the model has none of that name")
            sent.append(buffers[name])
    return sent
