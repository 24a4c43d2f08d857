"""Buckets chosen again after step 3: on all ranks alike, in the same memory, and kept if faster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jobs
import pytest

pytestmark = pytest.mark.timeout(150)

STEPS = 13  # of roles_choice.py


def buckets(last: int) -> list[int]:
    """Return how many each step has whose choice is kept: by the plan, and so many, in turns."""
    return [1] * 3 + [last] * 2 + [1] * 2 + [last] * 2 + [1] + [last] * (STEPS - 10)


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    out = tmp_path_factory.mktemp("choice")
    return jobs.results(jobs.run("roles_choice:cases", 2, out, timeout_s=100.0))


def test_other_buckets_take_over_after_the_third_step(cases: list[dict[str, Any]]) -> None:
    for rank in (case["kept"] for case in cases):
        assert rank["buckets"] == buckets(rank["last"])
        assert rank["last"] > 1
        assert rank["choice"][2].startswith(f"chosen again after step 3: {rank['last']} buckets")
        assert rank["choice"][8] == rank["choice"][2]
        assert ", kept after step 10: 0." in rank["choice"][9]
        assert rank["choice"][-1] == rank["choice"][9]
        # The places are others, in the same memory; gradients are born there at once.
        assert rank["arena_bytes"] == rank["arena_bytes"][:1] * STEPS
        assert rank["copied"][1:] == rank["copied"][1:2] * (STEPS - 1)
        assert rank["is_right"]
    assert cases[0]["kept"]["choice"] == cases[1]["kept"]["choice"]
    assert cases[0]["kept"]["fingerprint"] == cases[1]["kept"]["fingerprint"]
    assert cases[0]["kept"]["bits"] == cases[1]["kept"]["bits"]


def test_slower_buckets_are_taken_back_on_all_ranks(cases: list[dict[str, Any]]) -> None:
    """One rank alone finds three of four of the steps slower: both return, in the same step."""
    for rank in (case["slower"] for case in cases):
        chosen = rank["buckets"][4]
        assert chosen > 1
        assert rank["buckets"] == buckets(chosen)[:10] + [1] * (STEPS - 10)
        assert "taken back after step 10" in rank["choice"][-1]
        assert rank["is_right"]


def test_buckets_that_were_faster_for_a_moment_are_taken_back(cases: list[dict[str, Any]]) -> None:
    """The first planned step was slow for another reason, as the next ones show."""
    for rank in (case["once"] for case in cases):
        chosen = rank["buckets"][4]
        assert rank["buckets"] == buckets(chosen)[:10] + [1] * (STEPS - 10)
        assert chosen > 1
        assert "taken back after step 10" in rank["choice"][-1]
        assert rank["copied"][1:] == rank["copied"][1:2] * (STEPS - 1)
        assert rank["is_right"]
    assert cases[0]["once"]["choice"] == cases[1]["once"]["choice"]
    assert cases[0]["once"]["bits"] == cases[1]["once"]["bits"]


def test_held_gradients_keep_the_buckets_as_they_are(cases: list[dict[str, Any]]) -> None:
    for rank in (case["held"] for case in cases):
        assert rank["buckets"] == [1] * STEPS
        assert "the program holds gradients" in rank["choice"][-1]
        assert rank["is_right"]


def test_gradients_that_the_program_keeps_stay_the_parameters(
    cases: list[dict[str, Any]],
) -> None:
    """Who has them from the first step on, as zero_grad(set_to_none=False) allows, sees each."""
    for rank in (case["cached"] for case in cases):
        assert rank["held"] > 0
        assert rank["is_same"]
        assert rank["buckets"] == [1] * STEPS
        assert "the program holds gradients" in rank["choice"][-1]
        assert rank["is_right"]


@pytest.mark.parametrize("kind", ["accumulated", "added"])
def test_gradients_that_lie_there_move_with_the_buckets(
    cases: list[dict[str, Any]], kind: str
) -> None:
    """Of a pass in no_sync() before, or of zero_grad(set_to_none=False)."""
    for rank in (case[kind] for case in cases):
        assert rank["buckets"] == buckets(rank["last"])
        assert rank["last"] > 1
        assert rank["choice"][2].startswith(f"chosen again after step 3: {rank['last']} buckets")
        assert rank["choice"][8] == rank["choice"][2]
        assert ", kept after step 10: 0." in rank["choice"][9]
        assert rank["choice"][-1] == rank["choice"][9]
        assert rank["copied"][3:] == rank["copied"][2:3] * (STEPS - 3)
        assert rank["is_right"]
    assert cases[0][kind]["bits"] == cases[1][kind]["bits"]


def test_lifted_gradients_come_back_where_there_is_no_place_for_them(tmp_path: Path) -> None:
    """Whichever place is refused: none is lost, and none lies where others' places may be."""
    for rank in jobs.results(jobs.run("roles_choice:refused_places", 2, tmp_path)):
        assert len(rank) > 5
        assert all(
            entry == {"is_refused": True, "is_kept": True, "is_free": True} for entry in rank
        )


def test_it_can_be_declined(cases: list[dict[str, Any]]) -> None:
    for rank in (case["declined"] for case in cases):
        assert rank["buckets"] == [1] * STEPS
        assert rank["choice"] == ["as planned"] * STEPS
        assert rank["is_right"]


@pytest.mark.timeout(150)
@pytest.mark.parametrize("is_slower", [False, True])
def test_another_algorithm_takes_over_on_all_ranks_at_once(is_slower: bool, tmp_path: Path) -> None:
    """Each rank has timed something else: the slower one of each algorithm counts."""
    ranks = jobs.results(
        jobs.run(
            "roles_choice:algorithms",
            2,
            tmp_path,
            timeout_s=120.0,
            environment={"RDMATENSOR_TRANSPORT": "tcp"},
            is_slower=is_slower,
        )
    )
    for rank in ranks:
        (timed,) = rank["timed"]
        assert len(timed) % 5 == 0
        assert all(taken > 0 for taken in timed)
        assert "bytes by ring" in rank["choice"]
        assert ("taken back after step 10" in rank["choice"]) == is_slower
        chosen = rank["preferred"][3]
        assert set(chosen.values()) == {"ring"}
        in_turns = [{}] * 3 + [chosen] * 2 + [{}] * 2 + [chosen] * 2 + [{}]
        assert rank["preferred"][:10] == in_turns
        assert rank["preferred"][10:] == [{} if is_slower else chosen] * (STEPS - 10)
        assert rank["is_right"]
    first, second = ranks
    for what in ("choice", "preferred", "bits"):
        assert first[what] == second[what]
