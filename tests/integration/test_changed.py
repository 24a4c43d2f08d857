"""A step that changes is noticed at once: it is planned anew, or an error says how it differs."""

from __future__ import annotations

from pathlib import Path

import jobs
import pytest

pytestmark = pytest.mark.timeout(150)

START_S = 100.0
ROW_BYTES = 512 * 4  # as in roles_pipeline.py, which imports torch


def test_a_planned_model_takes_batches_of_any_length(tmp_path: Path) -> None:
    """Its gradients have the shapes that they had, and are born in their places all the same."""
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


@pytest.mark.parametrize("rows", [32, 96])
@pytest.mark.parametrize("name", ["GPipe", "1F1B"])
def test_inputs_of_another_length_in_a_pipeline_that_has_no_room_for_them(
    name: str, rows: int, path_forced: dict[str, str], tmp_path: Path
) -> None:
    """torch asks for shapes once, and Gloo leaves the end of a tensor as it was."""
    first, second = jobs.results(
        jobs.run(
            "roles_changed:pipeline_changed",
            2,
            tmp_path,
            timeout_s=START_S,
            environment=path_forced,
            is_imported_first=True,
            name=name,
            rows=rows,
        )
    )
    assert f"{rows * ROW_BYTES} bytes" in second["error"]
    assert str(64 * ROW_BYTES) in second["error"]
    assert "rank 0" in second["error"]
    assert first["error"]  # its peer has ended, or will not answer
