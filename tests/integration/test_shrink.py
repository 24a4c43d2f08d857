"""torch.distributed.shrink_group(): ranks that are lost, and the group of the others."""

from __future__ import annotations

import signal
from pathlib import Path

import jobs
import pytest

pytestmark = pytest.mark.turns("transport", first=1)


@pytest.mark.parametrize(("victim", "flags"), [(1, 0), (2, 1)])
def test_survivors_of_a_killed_rank_go_on(
    victim: int, flags: int, path_forced: dict[str, str], tmp_path: Path
) -> None:
    ranks = jobs.run(
        "roles_shrink:goes_on_without", 3, tmp_path, environment=path_forced,
        victim=victim, flags=flags,
    )  # fmt: skip
    assert ranks[victim].exit == -signal.SIGKILL
    for place, rank in enumerate(rank for rank in ranks if rank.number != victim):
        assert rank.exit == 0, rank.log
        assert rank.result["before"] == [6.0, 6.0]
        assert f"rank {victim}" in rank.result["told"]
        assert (rank.result["rank"], rank.result["size"]) == (place, 2)
        assert rank.result["after"] == [3.0, 3.0]


def test_a_shrunken_group_shrinks_again(path_forced: dict[str, str], tmp_path: Path) -> None:
    seen = jobs.results(jobs.run("roles_shrink:twice", 4, tmp_path, environment=path_forced))
    whole, three, two = [10.0, 10.0], [3, [6.0, 6.0]], [2, [3.0, 3.0]]
    assert seen == [[whole, three, two], [whole, three, two], [whole, three], [whole]]


def test_what_makes_no_group_is_refused(tmp_path: Path) -> None:
    for rank, said in enumerate(jobs.results(jobs.run("roles_shrink:refused", 2, tmp_path))):
        assert f"rank {rank} calls it and is excluded" in said
        assert "the group has ranks 0 to 1 only" in said
