"""The C library through its C interface, each figure beside its floor in the same run."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bench.benchlib import programs
from bench.benchlib.record import Record
from bench.benchlib.verdict import Row

Judge = Callable[[str, str, Callable[[], list[Record]]], list[Row]]
pytestmark = pytest.mark.timeout(1800)


def test_shm_write(judge: Judge) -> None:
    """64 KiB, 1 MiB and 64 MiB: at least 0.9 of the best copy into memory the peer has read."""
    judge("shm_write", "shm_write", lambda: programs.run("shm_write"))


def test_shm_latency(judge: Judge) -> None:
    """8 B one way, both cores busy."""
    judge("shm_latency", "latency", lambda: programs.run("latency"))


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_write_many(judge: Judge, transport: str) -> None:
    """4,096 blocks of 16 KiB: at least 0.8 of one large write."""
    words = ["write_many", "--transport", transport]
    judge(f"write_many_{transport}", " ".join(words), lambda: programs.run(*words))


def test_tcp_throughput(judge: Judge) -> None:
    """64 MiB over loopback: at least 0.9 of the best plain sockets."""
    judge("tcp_throughput", "tcp_throughput", lambda: programs.run("tcp_throughput"))


@pytest.mark.parametrize("wait", ["spin", "sleep"])
def test_tcp_latency(judge: Judge, wait: str) -> None:
    """8 B one way: at most 1.2 of a plain socket that waits in the same way."""
    words = ["latency", "--transport", "tcp", "--wait", wait]
    judge(f"tcp_latency_{wait}", " ".join(words), lambda: programs.run(*words))


def test_registration(judge: Judge) -> None:
    """1 GiB: reported, and not repeated by later writes."""
    judge("registration", "registration", lambda: programs.run("registration"))


def _both(name: str) -> list[Record]:
    return [
        record
        for transport in ("shm", "tcp")
        for record in programs.run(name, "--transport", transport)
    ]


@pytest.mark.parametrize("name", ["idle_memory", "growth", "overhead"])
def test_cost_besides_time(judge: Judge, name: str) -> None:
    """Memory of idle connections, growth, system calls and wire bytes."""
    judge(name, f"{name} --transport shm, and tcp", lambda: _both(name))
