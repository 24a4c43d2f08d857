"""Gradients are born where peers reach them; what moves afterwards is still sent right."""

from __future__ import annotations

from pathlib import Path

import jobs
import pytest


@pytest.mark.parametrize("mode", ["views", "copies", "static", "unused"])
def test_buckets_of_ddp_are_born_in_the_arena(mode: str, tmp_path: Path) -> None:
    for rank in jobs.results(jobs.run("roles_adopt:buckets", 2, tmp_path, mode=mode)):
        assert rank["losses"] == rank["gloo_losses"]
        assert rank["has_same_weights"]
        assert not any(any(step) for step in rank["gloo_places"])
        assert all(entry["missed"] == 0 and entry["tensors"] > 0 for entry in rank["adopted"])
        if mode == "copies":  # the buckets are, the gradients are copied into them by torch
            assert rank["adopted"]
            continue
        # From the third step on nothing moves any more.
        assert all(all(step) for step in rank["places"][2:])
        assert all(step == rank["addresses"][3] for step in rank["addresses"][3:])


def test_adoption_can_be_switched_off(tmp_path: Path) -> None:
    ranks = jobs.run(
        "roles_adopt:buckets", 2, tmp_path, environment={"RDMATENSOR_ADOPT": "0"}, mode="views"
    )

    for rank in jobs.results(ranks):
        assert rank["adopted"] == []
        assert not any(any(step) for step in rank["places"])
        assert rank["losses"] == rank["gloo_losses"]


def test_adopted_on_request_and_moved_again(tmp_path: Path) -> None:
    for rank in jobs.results(jobs.run("roles_adopt:on_request", 2, tmp_path)):
        assert [name for name, holds in rank.items() if not holds] == []


def test_a_full_arena_is_told_and_stops_nothing(tmp_path: Path) -> None:
    limits = {"RDMATENSOR_ARENA_MB": "8", "RDMATENSOR_ARENA_MAX_MB": "12"}

    for rank in jobs.results(jobs.run("roles_adopt:arena_full", 2, tmp_path, environment=limits)):
        assert rank["is_right"]
        assert not rank["is_in_arena"]
        assert rank["adopted"][0]["missed"] > 0
        assert "RDMATENSOR_ARENA_MAX_MB" in rank["adopted"][0]["reason"]


@pytest.mark.timeout(120)
def test_stages_of_pipelines_are_found_whenever_they_are_imported(tmp_path: Path) -> None:
    """The other order is that of test_pipeline.py."""
    ranks = jobs.run("roles_adopt:stages_that_come_late", 2, tmp_path, timeout_s=60.0)

    for number, rank in enumerate(jobs.results(ranks)):  # two micro-batches of 32 x 64 floats
        assert [(entry["what"], entry["bytes"]) for entry in rank["adopted"]] == [
            (f"buffers of stage {number}", 2 * 32 * 64 * 4)
        ]
