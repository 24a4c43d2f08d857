"""Where small buffers are packed: in the plan's memory, and nowhere else; nothing is sent here."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from graph_analysis import DataParallel, TransferPlan, analyze
from graph_analysis.plan import gradient_buckets
from rdmatensor._plan.buffers import SentBuffers
from rdmatensor.plan import PlanMismatchError

NO_GROUP: Any = None  # nothing is sent


@pytest.fixture(name="model")
def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 8), nn.BatchNorm1d(8))


@pytest.fixture(name="plan")
def plan_of(model: nn.Module) -> TransferPlan:
    return analyze(model, (torch.ones(4, 8),), strategy=DataParallel(2))


def _memory(plan: TransferPlan) -> torch.Tensor:
    return torch.zeros(plan.arenas[0].peak_bytes, dtype=torch.uint8)


def test_small_buffers_are_packed_in_their_bucket_s_place(
    model: nn.Module, plan: TransferPlan
) -> None:
    memory = _memory(plan)
    packed = SentBuffers(plan, model, memory, 0, NO_GROUP).packed()
    places = {
        memory.data_ptr() + bucket.places[0].offset: bucket.tensors
        for bucket in plan.buckets
        if bucket.phase == "forward"
    }
    assert len(places) == 2  # floats, and counts of batches
    assert {at: tuple(one.name for one in of) for at, of in packed.items()} == places


def test_a_place_that_a_gradient_has_too_is_refused(model: nn.Module, plan: TransferPlan) -> None:
    taken = gradient_buckets(plan)[0]
    buckets = tuple(
        replace(bucket, places=taken.places) if bucket.phase == "forward" else bucket
        for bucket in plan.buckets
    )
    with pytest.raises(
        PlanMismatchError, match=f"buffer 1.* and gradient {taken.tensors[0]} in one"
    ):
        SentBuffers(replace(plan, buckets=buckets), model, _memory(plan), 0, NO_GROUP)
