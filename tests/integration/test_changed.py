"""A step that changes is noticed at once: it is planned again, or an error says how it differs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jobs
import pytest

pytestmark = [pytest.mark.timeout(150), pytest.mark.turns("transport")]

START_S = 100.0
ROW_BYTES = 512 * 4  # as in roles_pipeline.py, which imports torch
STEPS_OF_LENGTHS = 6  # of roles_changed.py


def test_a_planned_model_takes_batches_of_any_length(tmp_path: Path) -> None:
    """Its gradients have the shapes that they had, and are allocated in their places."""
    ranks = jobs.results(jobs.run("roles_changed:lengths", 2, tmp_path, timeout_s=START_S))
    assert ranks[0]["bits"] == ranks[1]["bits"]
    for rank in ranks:
        for mine, theirs in rank["losses"]:
            assert mine == pytest.approx(theirs, rel=1e-5)
        first, *later = rank["copied"]
        assert first > 0
        assert all(copied <= 3 * first for copied in later), later


def test_a_ddp_script_that_goes_on_with_other_models(tmp_path: Path) -> None:
    for rank in jobs.results(jobs.run("roles_changed:ddp", 2, tmp_path, timeout_s=START_S)):
        assert rank["losses"] == rank["gloo_losses"]
        names = [f"{layer}.{part}.grad" for layer in (0, 2, 3) for part in ("bias", "weight")]
        assert rank["last"] == names
        changes = 0
        for index, bytes_of_model in enumerate(rank["bytes"]):
            states = rank["states"][4 * index : 4 * index + 4]
            if index > 0:  # the first step of another model is none that was seen
                assert states[0][0] == "watching"
                assert states[0][1] > changes
            assert states[-1][0] == "locked"
            assert states[-1][2] == bytes_of_model
            changes = states[-1][1]


@pytest.mark.parametrize("name", ["GPipe", "1F1B"])
def test_pipelines_of_other_lengths_one_after_the_other(
    name: str, path_forced: dict[str, str], tmp_path: Path
) -> None:
    """What stood for the one is no place for the other: the losses are Gloo's, to the bit."""
    for rank in jobs.results(
        jobs.run(
            "roles_changed:pipeline_again",
            2,
            tmp_path,
            timeout_s=START_S,
            environment=path_forced,
            is_imported_first=True,
            name=name,
        )
    ):
        assert rank["is_same"]
        assert rank["gradients"] > 0


def test_pipelines_of_another_length_in_each_step(
    path_forced: dict[str, str], tmp_path: Path
) -> None:
    """A schedule for each length, one that is told by eval(), and messages without a schedule."""
    for rank in jobs.results(
        jobs.run(
            "roles_changed:pipeline_by_length",
            2,
            tmp_path,
            timeout_s=START_S,
            environment=path_forced,
            is_imported_first=True,
        )
    ):
        assert set(rank) == {"GPipe", "1F1B", "eval", "by hand"}
        for seen in rank.values():
            assert seen["is_same"]
            assert seen["gradients"] > 0
        # An offer, and a request or a place that is told: of both ends two for a tensor at most.
        for name, micro_batches in {"GPipe": 4, "1F1B": 4, "by hand": 1}.items():
            ends = 2 * micro_batches * STEPS_OF_LENGTHS
            assert rank[name]["control_messages"] <= ends


@pytest.mark.parametrize("rows", [32, 96])
@pytest.mark.parametrize("name", ["GPipe", "1F1B"])
def test_inputs_of_another_length_in_a_pipeline_that_has_no_room_for_them(
    name: str, rows: int, path_forced: dict[str, str], tmp_path: Path
) -> None:
    """torch asks for shapes once, and Gloo leaves the end of a tensor as it was."""
    first, second = changed(tmp_path, path_forced, name=name, rows=rows)
    why = (
        "pipeline stage 0, forward, micro-batch 0: activation 0 for stage 1 is "
        f"({rows}, 512) of float32, its place is planned for (64, 512) of float32"
    )
    assert first["error"].startswith(f"PlanMismatchError: {why}: ")
    assert "schedule.eval()" in first["error"]
    assert f"rank 0 ends the group: {why}" in second["error"]


def test_another_shape_of_as_many_bytes_is_none_that_a_pipeline_planned(tmp_path: Path) -> None:
    first, second = changed(tmp_path, {}, name="1F1B", rows=64, shape=(128, 256))
    why = (
        "pipeline stage 0, forward, micro-batch 0: activation 0 for stage 1 is "
        "(128, 256) of float32, its place is planned for (64, 512) of float32"
    )
    assert first["error"].startswith(f"PlanMismatchError: {why}: ")
    assert f"rank 0 ends the group: {why}" in second["error"]


@pytest.mark.parametrize("rows", [32, 96])
def test_where_nothing_is_planned_the_bytes_are_told(
    rows: int, path_forced: dict[str, str], tmp_path: Path
) -> None:
    environment = {**path_forced, "RDMATENSOR_ADOPT": "0"}
    first, second = changed(tmp_path, environment, name="1F1B", rows=rows)
    assert f"{rows * ROW_BYTES} bytes" in second["error"]
    assert str(64 * ROW_BYTES) in second["error"]
    assert "rank 0" in second["error"]
    assert first["error"]  # its peer has ended, or will not answer


def changed(out: Path, environment: dict[str, str], **words: Any) -> list[dict[str, str]]:
    return jobs.results(
        jobs.run(
            "roles_changed:pipeline_changed",
            2,
            out,
            timeout_s=START_S,
            environment=environment,
            is_imported_first=True,
            **words,
        )
    )
