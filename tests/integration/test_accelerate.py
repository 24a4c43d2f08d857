"""Accelerate and the Hugging Face Trainer over a group that the program has made before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jobs
import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


def trained(role: str, out: Path, **arguments: object) -> list[dict[str, Any]]:
    how: dict[str, Any] = {"timeout_s": 100.0, **arguments}
    return jobs.results(jobs.run(f"roles_accelerate:{role}", 2, out, **how))


def test_an_accelerator_takes_the_group_that_is_there(tmp_path: Path) -> None:
    ours = trained("accelerator", tmp_path / "ours", backend="rdmatensor")
    theirs = trained("accelerator", tmp_path / "theirs", backend="gloo")
    for mine, other in zip(ours, theirs, strict=True):
        assert mine["backend"] == "rdmatensor"
        assert mine["ranks"] == [0, 1]
        assert mine["processes"]
        assert mine["weights"] == ours[0]["weights"]
        assert mine["weights"] == other["weights"]  # two ranks: a sum has no order


def test_a_trainer_takes_the_group_that_is_there(tmp_path: Path) -> None:
    ours = trained("trainer", tmp_path / "ours", backend="rdmatensor", folder=str(tmp_path))
    theirs = trained("trainer", tmp_path / "theirs", backend="gloo", folder=str(tmp_path))
    for mine, other in zip(ours, theirs, strict=True):
        assert mine["backend"] == "rdmatensor"
        assert mine["is_wrapped"]
        assert mine["weights"] == ours[0]["weights"]
        assert mine["weights"] == other["weights"]
