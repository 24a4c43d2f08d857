"""Buckets chosen again after step 3: on all ranks alike, in the same memory, and never slower."""

from __future__ import annotations

from typing import Any

import jobs
import pytest

pytestmark = pytest.mark.timeout(150)


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    out = tmp_path_factory.mktemp("choice")
    return jobs.results(jobs.run("roles_choice:cases", 2, out, timeout_s=60.0))


def test_other_buckets_take_over_after_the_third_step(cases: list[dict[str, Any]]) -> None:
    for rank in (case["kept"] for case in cases):
        assert rank["buckets"] == [1] * 3 + [rank["last"]] * 5
        assert rank["last"] > 1
        assert rank["choice"][2].startswith(f"chosen again after step 3: {rank['last']} buckets")
        assert "taken back" not in rank["choice"][-1]
        # The places are others, in the same memory; gradients are born there at once.
        assert rank["arena_bytes"] == rank["arena_bytes"][:1] * 8
        assert rank["copied"][1:] == rank["copied"][1:2] * 7
        assert rank["is_right"]
    assert cases[0]["kept"]["choice"] == cases[1]["kept"]["choice"]
    assert cases[0]["kept"]["fingerprint"] == cases[1]["kept"]["fingerprint"]
    assert cases[0]["kept"]["bits"] == cases[1]["kept"]["bits"]


def test_slower_buckets_are_taken_back_on_all_ranks(cases: list[dict[str, Any]]) -> None:
    """One rank alone finds the steps slower: both return, in the same step."""
    for rank in (case["slower"] for case in cases):
        assert rank["buckets"][:3] == [1] * 3
        assert rank["buckets"][3] == rank["buckets"][4] > 1
        assert rank["buckets"][5:] == [1] * 3
        assert "taken back after step 5" in rank["choice"][-1]
        assert rank["is_right"]


def test_held_gradients_keep_the_buckets_as_they_are(cases: list[dict[str, Any]]) -> None:
    for rank in (case["held"] for case in cases):
        assert rank["buckets"] == [1] * 8
        assert "still held" in rank["choice"][-1]
        assert rank["is_right"]


def test_it_can_be_declined(cases: list[dict[str, Any]]) -> None:
    for rank in (case["declined"] for case in cases):
        assert rank["buckets"] == [1] * 8
        assert rank["choice"] == ["as planned"] * 8
        assert rank["is_right"]
