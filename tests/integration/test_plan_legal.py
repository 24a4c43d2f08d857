"""Programs that DistributedDataParallel runs are right by a plan, or an error says why not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jobs
import pytest

pytestmark = [pytest.mark.timeout(150), pytest.mark.turns("transport")]


def run(role: str, out: Path, environment: dict[str, str] | None = None, **words: Any) -> list[Any]:
    ranks = jobs.run(
        f"roles_plan_legal:{role}", 2, out, timeout_s=100.0, environment=environment, **words
    )
    return jobs.results(ranks)


@pytest.mark.parametrize("is_bare", [False, True])
def test_a_discriminator_that_is_frozen_for_a_while(
    is_bare: bool, path_forced: dict[str, str], tmp_path: Path
) -> None:
    for difference in run("frozen_judge", tmp_path, path_forced, is_bare=is_bare):
        assert difference == 0.0


def test_a_pass_that_raised_waits_for_every_bucket(tmp_path: Path) -> None:
    for errors in run("caught", tmp_path):
        assert max(errors) < 1e-4


def test_a_gradient_that_is_written_while_it_is_summed(
    path_forced: dict[str, str], tmp_path: Path
) -> None:
    for said in run("written", tmp_path, path_forced):
        assert "the gradient of 7.weight was written by the program" in said


def test_apply_again_after_it_failed_on_another_rank(tmp_path: Path) -> None:
    first, second = run("again", tmp_path)
    assert first["freed"] == second["freed"] == 2048 * 2049 * 4  # the gradients
    assert "rank 1" in first["said"]
    assert second["said"]


def test_a_forked_child_that_ends_after_its_send(
    path_forced: dict[str, str], tmp_path: Path
) -> None:
    child, received = run("child_of", tmp_path, path_forced)
    assert child == [0.0]
    assert received == [7.0, 7.0, 7.0]
