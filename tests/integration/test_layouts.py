"""Tensors whose elements lie in another order than row-major, or with gaps."""

from __future__ import annotations

from pathlib import Path

import jobs
import pytest

pytestmark = [pytest.mark.timeout(90), pytest.mark.turns("transport")]


@pytest.mark.parametrize("world", [2, 3])
def test_elements_keep_their_places_whatever_the_strides(
    world: int, path_forced: dict[str, str], tmp_path: Path
) -> None:
    role = "roles_layouts:all_of"
    for rank in jobs.results(jobs.run(role, world, tmp_path, environment=path_forced)):
        assert rank["wrong"] == []
        assert rank["checked"] > 6 * 15
        assert rank["counted"] > 80 * 480  # of 120 floats each


def test_what_cannot_hold_a_result_is_refused(path_forced: dict[str, str], tmp_path: Path) -> None:
    role = "roles_layouts:refused"
    for rank in jobs.results(jobs.run(role, 2, tmp_path, environment=path_forced)):
        assert "has several elements in one place" in rank["text"]
        assert rank["dropped"] == 120.0
        assert rank["leaf"]


def test_gradients_averaged_by_hand(path_forced: dict[str, str], tmp_path: Path) -> None:
    role = "roles_layouts:averaged_by_hand"
    for rank in jobs.results(jobs.run(role, 2, tmp_path, environment=path_forced)):
        assert rank["same"] == [True] * 4
