"""Saved tensors in a peer's memory: equal gradients, no messages, and what goes wrong."""

from __future__ import annotations

from pathlib import Path

import jobs
import pytest


@pytest.mark.parametrize("tiers", [["peer"], ["recompute", "peer"]], ids="+".join)
def test_saved_tensors_come_back_from_a_peer_to_the_bit(
    tiers: list[str], path_forced: dict[str, str], tmp_path: Path
) -> None:
    options = {"environment": path_forced, "timeout_s": 60, "tiers": tiers}
    *trainers, _ = jobs.results(jobs.run("roles_budget:swap", 3, tmp_path, **options))
    assert len({one["prints"] for one in trainers}) == 1
    for one in trainers:
        assert one["same"]
        assert one["peaks"][1] < one["peaks"][0]
        assert one["measured"] <= 1.05 * one["peaks"][1]
        assert one["state"]["unplanned"] > 0 or "peer" not in one["ways"]  # two passes at once
        assert set(one["ways"]) <= {"keep", *tiers}
        if tiers == ["peer"]:
            assert "peer" in one["ways"]
            assert one["state"]["read_bytes"] > 0
        assert one["control"] == one["registered"] == 0
        assert any("rank 2 lends" in line for line in one["notes"])
        is_on_host = path_forced["RDMATENSOR_TRANSPORT"] == "shm"
        assert any("on the same host" in line for line in one["notes"]) == is_on_host


def test_a_lender_with_too_little_bounds_the_choice(tmp_path: Path) -> None:
    mine, others = jobs.results(jobs.run("roles_budget:too_little", 2, tmp_path, timeout_s=60))
    taken, *said = mine
    assert 0 < int(taken) <= 2 << 20
    assert "The lender has 2.0 MiB for a rank" in said[0]
    assert "the tier 'peer' needs lent=" in said[1]
    assert "give lent=" in said[2]
    assert "rank 1 lends this rank 2.0 MiB, of which 0 B are free" in said[3]
    assert "no rank lends memory" in said[4]
    assert "no rank lends memory" in others[0]


def test_a_rank_that_cannot_measure_its_link_ends_all(tmp_path: Path) -> None:
    *borrowers, _ = jobs.results(jobs.run("roles_budget:unmeasured", 3, tmp_path))
    assert "by zero, 0 B taken" in borrowers[0]
    assert borrowers[1].startswith("rank 0 cannot fit the budget: ")
    assert borrowers[1].endswith("by zero, 0 B taken")


@pytest.mark.parametrize("when", ["forward", "backward"])
def test_the_death_of_a_lender_names_it_and_a_unit(
    when: str, path_forced: dict[str, str], tmp_path: Path
) -> None:
    ranks = jobs.run(
        "roles_budget:lender_dies", 2, tmp_path, environment=path_forced, timeout_s=60, when=when
    )
    said = ranks[0].result
    assert said is not None, ranks[0].log
    assert said.startswith("saved tensors of ")
    assert " rank=1 " in said
    assert "rank 1, which lends memory for saved tensors, cannot be reached" in said
