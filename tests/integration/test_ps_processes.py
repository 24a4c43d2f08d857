"""A parameter server of processes: run(), and deaths."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

import jobs
import pytest


@pytest.mark.parametrize("mode", ["sync", "ssp"])
def test_run_gives_each_rank_its_role(
    mode: str, path_forced: dict[str, str], tmp_path: Path
) -> None:
    jobs.results(jobs.run("roles_ps:train", 4, tmp_path, environment=path_forced, mode=mode))


def test_the_others_go_on_when_a_worker_dies(path_forced: dict[str, str], tmp_path: Path) -> None:
    ranks = jobs.run(
        "roles_ps:victim", 3, tmp_path, environment=path_forced, on_worker_death="continue"
    )
    assert [rank.exit for rank in ranks] == [0, -9, 0], [rank.log for rank in ranks]
    # Two steps of both, and eight of worker 0; the push without a clock is dropped.
    assert ranks[0].result["value"] == 2 * 2 + 8
    assert ranks[2].result["error"] is None


def test_all_end_when_a_worker_dies(path_forced: dict[str, str], tmp_path: Path) -> None:
    ranks = jobs.run(
        "roles_ps:victim", 3, tmp_path, environment=path_forced, on_worker_death="stop"
    )
    assert [rank.exit for rank in ranks] == [0, -9, 0], [rank.log for rank in ranks]
    for rank in (ranks[0], ranks[2]):
        assert "worker 1 is gone: rank 1" in rank.result["error"]
    assert ranks[0].result["late_s"] < 0.5 * jobs.SCALE


@pytest.mark.parametrize("saves", [False, True])
def test_workers_fail_when_a_server_dies(
    saves: bool, path_forced: dict[str, str], tmp_path: Path
) -> None:
    folder = str(tmp_path / "saved") if saves else None
    told = rf"checkpoint is {folder}, of \d+\.\d s ago" if saves else "no checkpoint was saved"
    ranks = jobs.run("roles_ps:server_dies", 4, tmp_path, environment=path_forced, folder=folder)
    assert [rank.exit for rank in ranks] == [0, 0, 0, -9], [rank.log for rank in ranks]
    for worker in ranks[:2]:
        assert "rank 3" in worker.result["error"]
        assert "server 1 is lost, with its rows of tables t, u" in worker.result["error"]
        assert re.search(told, worker.result["error"]), worker.result["error"]
        assert worker.result["late_s"] < 0.5 * jobs.SCALE


def test_a_full_disk_leaves_the_checkpoint_of_before(tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    result = jobs.results(jobs.run("roles_ps:full_disk", 3, tmp_path, folder=str(saved)))[0]
    assert os.strerror(errno.EFBIG) in result["error"]
    assert str(saved) in result["error"]
    assert "the last checkpoint is intact" in result["error"]
    assert len(result["files"]) == 3, "nothing of the second one stays"
    assert (result["kept"], result["saved"]) == (0.0, 1.0)


@pytest.mark.parametrize("mode", ["sync", "async", "ssp"])
@pytest.mark.parametrize("seed", [0, 1])
def test_each_sample_counts_once_whatever_dies(
    mode: str, seed: int, path_forced: dict[str, str], tmp_path: Path
) -> None:
    ranks = jobs.run("roles_ps:victims", 6, tmp_path, environment=path_forced, mode=mode, seed=seed)
    exits = [rank.exit for rank in ranks]
    assert [exits[0], *exits[4:]] == [0, 0, 0], [rank.log for rank in ranks]
    assert exits[1:4] == [-9, -9, -9], "no worker died: the test shows nothing"
    assert ranks[0].result["counts"] == [1.0] * 120
    assert ranks[0].result["twice"] == [2.0] * 120
