"""Works, Futures, the profiler: this backend's answers beside Gloo's."""

from __future__ import annotations

from pathlib import Path

import jobs
import pytest


@pytest.mark.parametrize("world", [2, 3])
def test_works_tell_what_those_of_gloo_tell(
    world: int, path_forced: dict[str, str], tmp_path: Path
) -> None:
    role = "roles_works:compare_with_gloo"
    ranks = jobs.run(role, world, tmp_path, environment=path_forced)

    for rank in jobs.results(ranks):
        ours, theirs = rank["rdmatensor"], rank["gloo"]
        assert ours == theirs
        assert ours["kept"]
        assert ours["profile of all_reduce"]["titles"] == ["all_reduce"]
