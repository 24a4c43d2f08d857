"""Pipelines and tensor parallelism: what the graph's plan says crosses is what is recorded."""

from __future__ import annotations

from pathlib import Path

import jobs
import pytest

pytestmark = pytest.mark.timeout(150)

# As in roles_pipeline.py, which imports torch.
MICRO_BATCHES = 4
MESSAGE_BYTES = 64 * 512 * 4
MICRO_BATCHES_OF_GPT = 2  # of roles_sources.py


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


@pytest.mark.slow
def test_messages_of_a_pipeline_of_any_batch_and_length(tmp_path: Path) -> None:
    """What crosses is bounded or dynamic; of each size it is what the plan's shapes come to."""
    for rank in jobs.results(
        jobs.run("roles_sources:pipeline_of_any_size", 2, tmp_path, timeout_s=100.0)
    ):
        most = 8 * 32 * 16 * 4
        assert rank["bounded"] == [["bounded", most]] * 2  # forth and back
        assert rank["dynamic"] == [["dynamic", None]] * 2
        assert len(rank["sizes"]) == 3
        for of_size in rank["sizes"]:
            assert of_size["recorded"] == sorted(of_size["bounded"] * MICRO_BATCHES_OF_GPT)
            assert of_size["bounded"] == of_size["dynamic"]
            assert of_size["all"] == len(of_size["recorded"])  # and nothing besides
        first, second, largest = (of_size["bounded"] for of_size in rank["sizes"])
        assert [size for _, _, size in largest] == [most] * 2
        assert len({first[0][2], second[0][2], most}) == 3


def test_collectives_of_a_tensor_parallel_model(tmp_path: Path) -> None:
    ranks = jobs.results(jobs.run("roles_sources:tensor_parallel", 2, tmp_path, timeout_s=100.0))
    for rank in ranks:
        assert len(rank["planned"]) >= 3  # of two pairs forward, and of one backward
        assert rank["recorded"] == rank["planned"]
    assert ranks[0]["fingerprint"] == ranks[1]["fingerprint"]
