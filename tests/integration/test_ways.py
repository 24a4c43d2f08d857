"""By a plan each kind of model trains in each way as with DistributedDataParallel on Gloo."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jobs
import pytest

pytestmark = [pytest.mark.timeout(180), pytest.mark.turns("model", first=1)]

WAYS = ("plain", "clipped", "bf16", "accumulated", "kept gradients", "frozen", "unused")
STEPS = 5  # roles_plan.STEPS


@pytest.mark.slow
@pytest.mark.parametrize("model", ["mlp", "cnn", "lstm", "gpt", "halves"])
def test_every_way_to_train(model: str, tmp_path: Path) -> None:
    ranks: list[dict[str, Any]] = jobs.results(
        jobs.run("roles_ways:ways", 2, tmp_path, timeout_s=120.0, model=model)
    )
    assert set(ranks[0]) == {*WAYS, "resumed"}
    for way in WAYS:
        first, second = (rank[way] for rank in ranks)
        assert first["bits"] == second["bits"], way
        for found in (first, second):
            assert len(found["losses"]) == STEPS
            assert found["losses"] == pytest.approx(found["gloo_losses"], rel=1e-5), way
            assert found["far"] < 1e-5, way
            assert found["gradients"] == found["trained"]
    for rank in ranks:
        assert rank["resumed"]["again"] == rank["resumed"]["losses"]  # bit by bit
        assert rank["resumed"]["bits"] == rank["resumed"]["whole"]


def test_gradients_are_held_once_where_the_plan_says(tmp_path: Path) -> None:
    for rank in jobs.results(jobs.run("roles_ways:memory", 2, tmp_path, timeout_s=90.0)):
        assert rank["peak"] >= rank["gradients"]
        assert rank["described"] == rank["peak"]
        assert rank["allocated"] == [rank["peak"]] * 2  # before any step, and after four
        # From the second step on the heap has none, in the first those that are learnt only then.
        assert all(more < rank["gradients"] / 8 for more in rank["heap"][1:]), rank["heap"]
        assert all(more >= rank["gradients"] for more in rank["heap_alone"])
