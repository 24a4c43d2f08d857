"""A forked child of a rank: told to be spawned by every call, harmless by its end."""

from __future__ import annotations

from pathlib import Path

import jobs
import pytest
from meeting import SCALE

pytestmark = pytest.mark.turns("transport")

HARMLESS = ("abort", "shutdown", "destroy_process_group")
REFUSED = 15  # calls of roles_fork


@pytest.mark.timeout(60 * SCALE)
@pytest.mark.parametrize("forker", [0, 1])  # rank 0 has the store as well
def test_a_forked_child_is_told_and_harms_nobody(
    forker: int, path_forced: dict[str, str], tmp_path: Path
) -> None:
    ranks = jobs.run("roles_fork:a_rank_forks", 2, tmp_path, environment=path_forced, forker=forker)

    by_rank = jobs.results(ranks)
    child = by_rank[forker]["child"]
    assert child["exit"] == 0, ranks[forker].log
    assert child["is_ended"]  # by atexit's handlers
    said = child["said"]
    assert [said.pop(name) for name in HARMLESS] == [""] * len(HARMLESS)
    assert len(said) == REFUSED
    unclear = {name: text for name, text in said.items() if "spawn the process" not in text}
    assert not unclear
    assert not child["is_done"]
    assert child["new keys"] == 0
    assert by_rank[forker]["received"] == [5.0]
    for seen in by_rank:
        assert seen["summed"] == [2.0] * 7
        assert [seen["before"], seen["after"], seen["in a new group"]] == [1.0] * 3
        assert seen["left"] == {}
    assert "terminate called" not in ranks[forker].log


@pytest.mark.timeout(60 * SCALE)
def test_children_of_a_parent_without_groups_make_their_own(
    path_forced: dict[str, str], tmp_path: Path
) -> None:
    role = "roles_fork:a_parent_without_groups_forks"
    ranks = jobs.run(role, 1, tmp_path, environment=path_forced)

    assert jobs.results(ranks) == [[0, 0]], ranks[0].log
