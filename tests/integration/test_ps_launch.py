"""A parameter server under other launchers than torchrun, and servers within workers."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from pathlib import Path

import jobs
import pytest


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]


def test_a_job_of_tensorflow_runs(tmp_path: Path) -> None:
    ranks = jobs.run("roles_ps_launch:tensorflow", 5, tmp_path, ports=free_ports(5))
    results = jobs.results(ranks)
    assert [one["who"] for one in results[:3]] == [[0, 3, 2], [1, 3, 2], [2, 3, 2]]
    assert [one["sums"] for one in results[:3]] == [[[15.0] * 10] * 2] * 3
    assert results[3:] == [{}, {}]


def test_a_job_of_ps_lite_runs(tmp_path: Path) -> None:
    results = jobs.results(jobs.run("roles_ps_launch:ps_lite", 5, tmp_path, ports=free_ports(1)))
    assert sorted(one["who"] for one in results[1:4]) == [[0, 3, 1], [1, 3, 1], [2, 3, 1]]
    assert [one["sums"][1] for one in results[1:4]] == [[15.0] * 10] * 3
    assert (results[0], results[4]) == ({}, {})


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("processes", [1, 3])
def test_each_process_has_a_worker_and_a_server(
    processes: int, mode: str, path_forced: dict[str, str], tmp_path: Path
) -> None:
    ranks = jobs.run(
        "roles_ps_launch:colocated", processes, tmp_path, environment=path_forced, mode=mode
    )
    results = jobs.results(ranks)
    assert [one["who"] for one in results] == [[i, processes, processes] for i in range(processes)]
    if mode == "sync":
        assert [one["sums"] for one in results] == [[[5.0 * processes] * 10]] * processes


def test_all_end_when_a_process_with_a_server_dies(tmp_path: Path) -> None:
    ranks = jobs.run("roles_ps_launch:colocated_dies", 3, tmp_path)
    assert [rank.exit for rank in ranks] == [0, 0, -9], [rank.log for rank in ranks]
    for rank in ranks[:2]:
        assert any(f"rank {lost}" in rank.result["error"] for lost in (2, 5)), rank.result


def test_all_end_when_a_program_raises(tmp_path: Path) -> None:
    results = jobs.results(jobs.run("roles_ps_launch:colocated_raises", 3, tmp_path))
    assert results[1]["error"].startswith("KeyError")
    assert all(one["error"].startswith("PeerError") for one in (results[0], results[2]))


def test_the_program_and_the_launcher_agree_on_servers(tmp_path: Path) -> None:
    (result,) = jobs.results(jobs.run("roles_ps_launch:disagrees", 1, tmp_path))
    for servers, error in zip(("2", "'colocated'"), result["errors"], strict=True):
        assert f"servers={servers}, and TF_CONFIG describes a job with 1 servers" in error
