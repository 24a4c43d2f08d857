"""The lossy hooks of DistributedDataParallel: convergence, accumulation, AMP, checkpoints."""

from __future__ import annotations

from pathlib import Path

import jobs
import pytest


def test_training_converges_as_exact_sums_let_it(tmp_path: Path) -> None:
    found = jobs.results(jobs.run("roles_hooks:training", 2, tmp_path, timeout_s=60))

    for name in found[0]:
        assert found[0][name]["digest"] == found[1][name]["digest"], name
        assert found[0][name]["loss"] < 0.5 * found[0][name]["first"], name
    exact = found[0]["exact"]["loss"]
    for name in ("q8", "q8 of 32", "bf16"):
        assert found[0][name]["loss"] == pytest.approx(exact, rel=0.02), name
    report = found[0]["q8"]["report"]
    assert report["buckets"] > 1
    assert 0.002 < report["relative_error"] < 0.02
    assert 0.25 < report["sent_bytes"] / report["exact_bytes"] < 0.27


def test_gradients_that_add_up_before_they_are_sent(tmp_path: Path) -> None:
    for errors in jobs.results(jobs.run("roles_hooks:gradients", 2, tmp_path)):
        assert set(errors) == {"plain", "views", "static", "unused"}
        for name, error in errors.items():
            assert 0 < error < 0.03, name


def test_an_infinite_gradient_is_seen_by_all(tmp_path: Path) -> None:
    first, second = jobs.results(jobs.run("roles_hooks:scaled", 2, tmp_path))

    assert first == second
    assert first[1] != first[0]
    assert first[2] == first[1]  # the step that was left out
    assert first[3] != first[2]


def test_a_residual_belongs_to_its_bucket_s_parameters(tmp_path: Path) -> None:
    for found in jobs.results(jobs.run("roles_hooks:cut_again", 2, tmp_path)):
        assert found["parameters"] == [[0, 1], [1, 0], [1, 0]]
        assert found["is_zero"] == [True, True, False]


def test_residuals_survive_a_checkpoint(tmp_path: Path) -> None:
    for found in jobs.results(jobs.run("roles_hooks:checkpoint", 2, tmp_path)):
        assert found["resumed"] == found["whole"]
        assert found["without residuals"] != found["whole"]
        assert "ValueError" in found["another model"]
        assert "another model" in found["another model"]
        assert found["no state"].startswith("ValueError: load_state_dict: expected")
        assert "error_feedback is False" in found["no feedback"]
        assert "TypeError" in found["doubles"]
        assert "torch.float32, not for torch.float64" in found["doubles"]
