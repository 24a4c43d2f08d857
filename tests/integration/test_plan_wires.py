"""Lossy wires of planned models, and of FSDP2."""

from __future__ import annotations

from pathlib import Path

import jobs
import pytest


def test_a_plan_s_buckets_take_the_wire(tmp_path: Path) -> None:
    found = jobs.results(jobs.run("roles_plan_wires:planned", 2, tmp_path, timeout_s=60))

    for each in found:
        for wire in ("exact", "bf16", "q8", "auto"):
            assert each[wire]["digest"] == found[0][wire]["digest"], wire
            assert each[wire]["wires"] == found[0][wire]["wires"], wire
            assert each[wire]["loss"] == pytest.approx(each["exact"]["loss"], rel=0.02), wire
        assert set(each["q8"]["wires"]) == {"q8"}
        assert set(each["exact"]["wires"]) == {"exact"}
        assert each["q8"]["digest"] != each["exact"]["digest"]
        assert any("exact time" in why or "of its time" in why for why in each["auto"]["wires"])
        assert each["resumed"] == each["went on"]
        assert each["from zero"] != each["went on"]
        assert "of 0 buckets" in each["refused"]
        assert "another plan" in each["other masks"]
        assert "the wire is" in each["mismatch"]


def test_a_gradient_that_is_not_finite_does_not_last(tmp_path: Path) -> None:
    for found in jobs.results(jobs.run("roles_plan_wires:overflow", 2, tmp_path)):
        assert found == {
            name: [False, True, True] for name in ("q8", "q8 kept", "q8 thin", "bf16", "auto")
        }


def test_a_wire_that_one_rank_does_not_know_ends_all(tmp_path: Path) -> None:
    first, second = jobs.results(jobs.run("roles_plan_wires:unknown", 2, tmp_path))

    assert first.startswith("ValueError: plan.apply: wire='q9'")
    assert second.startswith("RuntimeError: on rank 0: plan.apply: wire='q9'")


def test_a_model_without_its_new_places_does_not_train(tmp_path: Path) -> None:
    for found in jobs.results(jobs.run("roles_plan_wires:no_places", 2, tmp_path)):
        assert found["raised"][0].startswith(("MemoryError", "RuntimeError: on rank 0"))
        for later in found["raised"][1:]:
            assert "could not be laid out" in later
        assert found["evaluates"]
        assert found["applied again"]


def test_fsdp_sends_gradients_by_the_wire(tmp_path: Path) -> None:
    for losses in jobs.results(jobs.run("roles_plan_wires:sharded", 2, tmp_path)):
        assert len(set(losses.values())) == 3
        for wire in ("bf16", "q8"):
            assert losses[wire] == pytest.approx(losses["exact"], rel=0.02)
