"""Pipelines and tensor parallelism: what the graph's plan says crosses is what is recorded."""

from __future__ import annotations

from pathlib import Path

import jobs
import pytest

pytestmark = pytest.mark.timeout(150)

# As in roles_pipeline.py, which imports torch.
MICRO_BATCHES = 4
MESSAGE_BYTES = 64 * 512 * 4


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("name", ["GPipe", "1F1B"])
def test_messages_of_a_pipeline(name: str, world: int, tmp_path: Path) -> None:
    for rank in jobs.results(
        jobs.run("roles_sources:pipeline", world, tmp_path, timeout_s=100.0, name=name)
    ):
        links = [(a, a + 1) for a in range(world - 1)]
        assert [tuple(one) for one in rank["planned"]] == sorted(
            (*ends, MESSAGE_BYTES) for a, b in links for ends in ((a, b), (b, a))
        )
        assert rank["recorded"] == sorted(rank["planned"] * MICRO_BATCHES)
        assert len(rank["all"]) == len(rank["recorded"])  # and nothing besides


def test_collectives_of_a_tensor_parallel_model(tmp_path: Path) -> None:
    ranks = jobs.results(jobs.run("roles_sources:tensor_parallel", 2, tmp_path, timeout_s=100.0))
    for rank in ranks:
        assert len(rank["planned"]) >= 3  # of two pairs forward, and of one backward
        assert rank["recorded"] == rank["planned"] == rank["merged"]
        assert rank["known_from"] == ["both"]
    assert ranks[0]["fingerprint"] == ranks[1]["fingerprint"]
