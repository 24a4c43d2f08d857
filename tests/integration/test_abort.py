"""abort() and shutdown() in every state: works end with errors, and the process goes on."""

from __future__ import annotations

from pathlib import Path

import jobs
import pytest
from roles_abort import FIRST_CALLS, judge_ended

pytestmark = pytest.mark.turns("transport", first=1)


@pytest.mark.timeout(150)
@pytest.mark.parametrize("is_connected", [True, False], ids=["connected", "unused"])
def test_a_group_may_be_ended_in_any_state(
    is_connected: bool, path_forced: dict[str, str], tmp_path: Path
) -> None:
    ranks = jobs.run(
        "roles_abort:ended",
        2,
        tmp_path,
        timeout_s=120.0,
        environment=path_forced,
        store=str(tmp_path / "store"),
        is_connected=is_connected,
    )

    judge_ended(jobs.results(ranks))
    for rank in ranks:
        assert "terminate called" not in rank.log
        assert "Fatal" not in rank.log


@pytest.mark.timeout(90)
def test_a_group_may_be_ended_while_it_connects(
    path_forced: dict[str, str], tmp_path: Path
) -> None:
    """By another thread than the one that waits for a rank that has not come."""
    ranks = jobs.run(
        "roles_abort:ended_while_it_connects",
        2,
        tmp_path,
        timeout_s=60.0,
        environment=path_forced,
        store=str(tmp_path / "store"),
    )

    by_rank = jobs.results(ranks)
    assert [found.pop("last") for found in by_rank] == [1.0, 1.0]
    assert len(by_rank[0]) == 2 * len(FIRST_CALLS)
    assert len(by_rank[1]) == len(FIRST_CALLS)
    for name, one in by_rank[0].items():
        assert f"rdmatensor:{name.rpartition(' ')[2]}" in one["error"], name
        assert one["seconds"] < 10.0, name
    for name, one in by_rank[1].items():
        assert "rdmatensor:all_reduce" in one["error"], name
        assert "rank 0 called abort()" in one["error"], name
        assert one["seconds"] < 10.0, name
    for rank in ranks:
        assert "terminate called" not in rank.log
        assert "Fatal" not in rank.log
