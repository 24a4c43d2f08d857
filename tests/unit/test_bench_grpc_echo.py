"""gRPC from Python beside round trips in the rig: a worker that echoes, and its turns."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2]))

from bench import rdma, rdma_grpc
from bench.benchlib.programs import free_port
from bench.workers import grpc_echo


def test_a_tensor_comes_back_and_each_trip_is_told() -> None:
    address = f"127.0.0.1:{free_port()}"
    program = [sys.executable, str(rdma_grpc.PYTHON_GRPC)]
    with rdma_grpc.serving(program, address):
        turn = rdma_grpc.grpc_us(program, "echo", address, 4096, 7)
        assert len(turn.raw_us) == 7
        assert min(turn.raw_us) <= turn.median_us <= max(turn.raw_us)


def test_words_that_say_nothing_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert grpc_echo.main(["echo"]) == 2
    assert "Usage" in capsys.readouterr().err


def test_python_has_turns_and_a_server_of_its_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RIG_ADDR", "10.0.0.1")
    assert list(rdma_grpc.servers_of(has_python=False)) == [rdma_grpc.UNARY]
    servers = rdma_grpc.servers_of(has_python=True)
    assert len({address for _, address in servers.values()}) == 2
    took_us = {"echo": 800.0, "echo-all": 400.0}

    def run(words: list[str]) -> dict[str, object]:
        is_python = str(rdma_grpc.PYTHON_GRPC) in words
        return {"round_trip_us": took_us[words[-4]] * (3 if is_python else 1), "raw_us": [1.0]}

    monkeypatch.setattr(rdma_grpc, "run", run)
    monkeypatch.setattr(rdma_grpc, "ours_us", lambda *_: rdma_grpc.Turn(100.0, ()))
    monkeypatch.setattr(rdma_grpc, "perftest_us", lambda *_: rdma_grpc.Turn(80.0, ()))
    row = rdma_grpc.compare(8, 400, 2, [1, 2], rdma.Budget(1.0, 1).next_end_s(), servers)
    assert (row["ours_to_unary"], row["ours_to_python"]) == (8.0, 24.0)
    rdma_grpc.show(row)
    assert "Python's unary/ours 24.00" in capsys.readouterr().out
