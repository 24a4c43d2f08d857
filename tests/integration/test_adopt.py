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


@pytest.mark.parametrize("setting", ["RDMATENSOR_ADOPT", "RDMATENSOR_HOOKS"])
def test_adoption_can_be_switched_off(setting: str, tmp_path: Path) -> None:
    ranks = jobs.run("roles_adopt:buckets", 2, tmp_path, environment={setting: "0"}, mode="views")

    for rank in jobs.results(ranks):
        assert rank["adopted"] == []
        assert not any(any(step) for step in rank["places"])
        assert rank["losses"] == rank["gloo_losses"]
        assert f"{setting}=0" in {entry["reason"] for entry in rank["not_adopted"]}
        if setting == "RDMATENSOR_HOOKS":  # modules are not watched
            continue
        of_gradients = [entry for entry in rank["not_adopted"] if "gradients" in entry["what"]]
        assert [entry["reason"] for entry in of_gradients] == ["RDMATENSOR_ADOPT=0"]
        assert of_gradients[0]["tensors"] == len(rank["places"][0])


@pytest.mark.parametrize("when", ["before", "after"])
def test_another_librarys_allocator_costs_no_more_than_adoption(when: str, tmp_path: Path) -> None:
    role = "roles_adopt:allocator_taken"
    for rank in jobs.results(jobs.run(role, 2, tmp_path, when=when, by="ddp")):
        assert rank["losses"] == rank["gloo_losses"]
        assert rank["adopted"] == []
        assert not any(any(step) for step in rank["places"])
        reasons = [
            entry["reason"]
            for entry in rank["not_adopted"]
            if "buckets" in entry["what"] or "gradients of" in entry["what"]
        ]
        assert len(reasons) == 2
        assert all("another library has taken over torch's allocator" in it for it in reasons)


def test_a_plan_trains_without_torchs_allocator(tmp_path: Path) -> None:
    role = "roles_adopt:allocator_taken"
    for rank in jobs.results(jobs.run(role, 2, tmp_path, when="before", by="plan")):
        assert rank["is_same"]


def test_describe_says_why_something_is_not_in_the_arena(tmp_path: Path) -> None:
    outside = {  # what: part of the reason, and the names
        "gradients of Small": ("smaller than 4096 B", ["0.weight", "0.bias"]),
        "gradients of Copying": ("gradient_as_bucket_view=True spares", ["0.weight", "0.bias"]),
        "gradients of Ignoring": ("ignores the parameter", ["0.weight"]),
        "gradients of Sparse": ("sparse", ["0.weight"]),
        "gradients of Shared": ("shared with other processes", ["0.weight", "0.bias"]),
        "gradients of Replaced": ("outside the arena: replaced by the program", ["1.weight"]),
        "gradients of Replaced, until torch has moved them": (
            "no gradient has 32768 bytes",
            ["0.weight", "0.bias"],
        ),
        "parameters of Replaced": ("only on request", ["0.bias", "1.weight"]),  # one was adopted
    }
    requests = [
        ("shared with other processes", ["float32 (2048,)"], 8192),
        ("given other memory", ["float32 (2048,)"], 16384),
        ("the tensor has no memory", ["float32 (0,)"], 0),
    ]
    for found, left in jobs.results(jobs.run("roles_adopt:reasons", 2, tmp_path)):
        for what, (reason, names) in outside.items():
            entries = [entry for entry in found if entry["what"] == what]
            assert [entry["names"] for entry in entries] == [names], what
            assert reason in entries[0]["reason"]
            assert entries[0]["tensors"] == len(names)
        assert not any("gradients of Adding" in entry["what"] for entry in found)
        entries = [entry for entry in found if entry["what"] == "adopt()"]
        assert [(entry["names"], entry["bytes"]) for entry in entries] == [
            (names, size_bytes) for _, names, size_bytes in requests
        ]
        assert all(
            part in entry["reason"] for (part, *_), entry in zip(requests, entries, strict=True)
        )
        # What is gone is not told of.
        assert {entry["what"] for entry in left} == {"adopt()"}


def test_adopted_on_request_and_moved_again(tmp_path: Path) -> None:
    for rank in jobs.results(jobs.run("roles_adopt:on_request", 2, tmp_path)):
        assert [name for name, holds in rank.items() if not holds] == []


def test_a_full_arena_is_told_and_stops_nothing(tmp_path: Path) -> None:
    limits = {"RDMATENSOR_ARENA_MIB": "8", "RDMATENSOR_ARENA_MAX_MIB": "12"}

    for rank in jobs.results(jobs.run("roles_adopt:arena_full", 2, tmp_path, environment=limits)):
        assert rank["is_right"]
        assert not rank["is_in_arena"]
        assert rank["adopted"][0]["missed"] > 0
        assert "RDMATENSOR_ARENA_MAX_MIB" in rank["adopted"][0]["reason"]
        outside = {entry["what"]: entry["reason"] for entry in rank["not_adopted"]}
        assert outside["gradients of Linear"] == rank["adopted"][0]["reason"]


@pytest.mark.timeout(120)
def test_stages_of_pipelines_are_found_whenever_they_are_imported(tmp_path: Path) -> None:
    """The other order is that of test_pipeline.py."""
    ranks = jobs.run("roles_adopt:stages_that_come_late", 2, tmp_path, timeout_s=60.0)

    for number, rank in enumerate(jobs.results(ranks)):  # two micro-batches of 32 x 64 floats
        assert [(entry["what"], entry["bytes"]) for entry in rank["adopted"]] == [
            (f"buffers of stage {number}", 2 * 32 * 64 * 4)
        ]
