"""abort() and shutdown() in every state: works end with errors, and the process goes on."""

from __future__ import annotations

from pathlib import Path

import jobs
import pytest


@pytest.mark.timeout(150)
def test_a_group_may_be_ended_in_any_state(path_forced: dict[str, str], tmp_path: Path) -> None:
    store = str(tmp_path / "store")
    ranks = jobs.run(
        "roles_abort:ended", 2, tmp_path, timeout_s=120.0, environment=path_forced, store=store
    )

    for rank, found in enumerate(jobs.results(ranks)):
        assert found.pop("last") == 1.0
        assert len(found) == 18
        for name, one in found.items():
            assert one["before"] == 1.0
            assert len(one["errors"]) == (0 if name.endswith("idle") else 4 - rank)
            assert all("rdmatensor:" in error for error in one["errors"]), (name, one["errors"])
            assert one["seconds"] < 10.0, name
    for rank in ranks:
        assert "terminate called" not in rank.log
        assert "Fatal" not in rank.log
