"""Dtypes that Gloo lacks, and every reduction of integers, bool and complex numbers."""

from __future__ import annotations

from pathlib import Path

import jobs
import pytest

pytestmark = pytest.mark.turns("transport")

PARTS = {"reductions": 700, "products": 200, "refusals": 150, "moves": 150}  # checks, at least


@pytest.mark.timeout(120)
@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("part", PARTS)
def test_every_dtype_gives_what_numpy_does(
    part: str, world: int, path_forced: dict[str, str], tmp_path: Path
) -> None:
    role = "roles_dtypes:every_dtype"
    ranks = jobs.run(role, world, tmp_path, timeout_s=90.0, environment=path_forced, part=part)

    for rank in jobs.results(ranks):
        assert rank["wrong"] == []
        assert rank["made"] >= PARTS[part], "too few cases to mean anything"
