"""What a plan lays out for gradients: the bytes of each bucket, and each gradient's among them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from graph_analysis import TransferPlan
from graph_analysis.plan import LiveBlocks, PlannedTensor, gradient_buckets
from rdmatensor.errors import PlanMismatchError


@dataclass(frozen=True, slots=True)
class Slot:
    """Where one parameter's gradient, or what is sent of it, lies in the memory.

    tensor: its name in the plan; name: the parameter's. live: its blocks that are sent; None: all.
    """

    tensor: str
    name: str
    parameter: torch.nn.Parameter
    offset: int
    size_bytes: int
    live: LiveBlocks | None = None


@dataclass(frozen=True, slots=True)
class Span:
    """Where one bucket lies in the memory. Its slots need not fill it.

    alignment_bytes: of each slot.
    """

    dtype: torch.dtype
    offset: int
    size_bytes: int
    slots: list[Slot]
    alignment_bytes: int = 1


def spans_of(plan: TransferPlan, parameters: Mapping[str, torch.nn.Parameter]) -> list[Span]:
    """Return a plan's buckets; PlanMismatchError if the model lacks one of its parameters."""
    tensors = {tensor.name: tensor for tensor in plan.tensors}
    offsets = {
        p.tensor: (p.offset, p.size_bytes) for arena in plan.arenas for p in arena.placements
    }
    live = {one.tensor: one for one in plan.live}
    spans = []
    for planned in gradient_buckets(plan):
        slots = [
            Slot(
                name,
                tensors[name].parameter or name,
                check_gradient(tensors[name], parameters),
                *offsets[name],
                live.get(name),
            )
            for name in planned.tensors
        ]
        dtype = getattr(torch, planned.dtype)
        offset, align = planned.places[0].offset, plan.arenas[0].alignment_bytes
        spans.append(Span(dtype, offset, planned.span_bytes, slots, align))
    return spans


def check_gradient(
    planned: PlannedTensor, parameters: Mapping[str, torch.nn.Parameter]
) -> torch.nn.Parameter:
    """Return the parameter of a planned gradient; PlanMismatchError if it differs."""
    parameter = parameters.get(planned.parameter or planned.name)
    wants = f"{planned.shape} of {planned.dtype}"
    if parameter is None:
        raise PlanMismatchError(
            f"the plan has a gradient of {planned.parameter} ({wants}), the model no such parameter"
        )
    found = f"{tuple(parameter.shape)} of {str(parameter.dtype).removeprefix('torch.')}"
    if found != wants:
        raise PlanMismatchError(
            f"the plan's {planned.parameter} is {wants}, the model's is {found}"
        )
    if not parameter.requires_grad:
        raise PlanMismatchError(
            f"the plan has a gradient of {planned.parameter}, which is frozen in the model"
        )
    return parameter
