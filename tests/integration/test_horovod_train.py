"""Training by Horovod's API: against DDP and float sums, random schedules, deaths and stalls."""

from __future__ import annotations

from pathlib import Path

import jobs
import pytest


@pytest.mark.parametrize("world", [2, 3])
def test_all_optimizers_train_as_with_ddp(
    world: int, path_forced: dict[str, str], tmp_path: Path
) -> None:
    ranks = jobs.run("roles_horovod_train:like_ddp", world, tmp_path, environment=path_forced)
    for found in jobs.results(ranks):
        assert len(found) >= 12
        limit = 0.0 if world == 2 else 1e-5  # of three, the order of a sum depends on its place
        assert {name: far for name, far in found.items() if far > limit} == {}


def test_options_of_the_optimizer(path_forced: dict[str, str], tmp_path: Path) -> None:
    ranks = jobs.run("roles_horovod_train:options", 3, tmp_path, environment=path_forced)
    for found in jobs.results(ranks):
        limits = {"fp16": 1e-2}
        far = {name: one for name, one in found.items() if one > limits.get(name, 1e-6)}
        assert far == {}


def test_missing_gradients_count_as_zeros(path_forced: dict[str, str], tmp_path: Path) -> None:
    ranks = jobs.run("roles_horovod_train:missing", 3, tmp_path, environment=path_forced)
    for result in jobs.results(ranks):
        assert result["found"] == pytest.approx(result["expected"], abs=1e-5)


@pytest.mark.parametrize(("first", "world"), [(0, 2), (100, 3), (200, 4)])
def test_random_schedules(
    first: int, world: int, path_forced: dict[str, str], tmp_path: Path
) -> None:
    ranks = jobs.run(
        *("roles_horovod_train:schedules", world, tmp_path),
        environment=path_forced,
        first=first,
        count=20,
    )
    assert jobs.results(ranks) == [20] * world


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_thousand_random_schedules(path_forced: dict[str, str], tmp_path: Path) -> None:
    ranks = jobs.run(
        *("roles_horovod_train:schedules", 3, tmp_path),
        environment=path_forced,
        timeout_s=300.0,
        first=1000,
        count=1000,
    )
    assert jobs.results(ranks) == [1000] * 3


@pytest.mark.parametrize("is_idle", [False, True])
@pytest.mark.parametrize("victim", [0, 1, 2])
def test_the_others_name_a_rank_that_was_killed(
    victim: int, is_idle: bool, path_forced: dict[str, str], tmp_path: Path
) -> None:
    ranks = jobs.run(
        *("roles_horovod_train:killed", 3, tmp_path),
        environment=path_forced,
        victim=victim,
        is_idle=is_idle,
    )
    assert [rank.exit for rank in ranks] == [-9 if one == victim else 0 for one in range(3)], [
        rank.log for rank in ranks
    ]
    for rank in ranks:
        if rank.number != victim:
            assert f"rank {victim}" in rank.result["words"]
            assert rank.result["late_s"] < 2.0 * jobs.SCALE


def test_a_stall_names_the_tensor_and_the_rank(tmp_path: Path) -> None:
    ranks = jobs.run(
        *("roles_horovod_train:stalled", 3, tmp_path),
        environment={"HOROVOD_STALL_CHECK_TIME_SECONDS": "1"},
        gives_up=False,
    )
    first, *_ = found = jobs.results(ranks)
    assert [one["error"] for one in found] == [""] * 3
    assert any(
        "allreduce.often was submitted by ranks [0, 2] and not by ranks [1]" in one
        for one in first["words"]
    ), first["words"]


def test_a_long_stall_is_an_error_on_all_ranks(tmp_path: Path) -> None:
    ranks = jobs.run(
        *("roles_horovod_train:stalled", 3, tmp_path),
        environment={
            "HOROVOD_STALL_CHECK_TIME_SECONDS": "1",
            "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "2",
        },
        gives_up=True,
    )
    for result in jobs.results(ranks):
        assert "allreduce.often was submitted by ranks [0, 2] and not by" in result["error"]


def test_operations_fail_when_a_rank_shuts_down(
    path_forced: dict[str, str], tmp_path: Path
) -> None:
    ranks = jobs.run("roles_horovod_train:shut_down_early", 3, tmp_path, environment=path_forced)
    first, *others = jobs.results(ranks)
    assert first == ""
    assert all("shutdown() was called on rank 0" in words for words in others)
