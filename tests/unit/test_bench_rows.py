"""How many calls a sample of `bench collectives` has."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2]))

from bench.workers import rows

CALL_NS = 100_000


class Alone:
    """A rank that is the slowest."""

    def barrier(self) -> None:
        """Nobody else comes."""

    def most(self, value: int) -> int:
        return value


def slow_at_first(monkeypatch: pytest.MonkeyPatch, slow: int, slow_ns: int) -> Callable[[], None]:
    """Return a call that takes CALL_NS by the clock, and its first ones longer."""
    now_ns, calls = 0, 0

    def call() -> None:
        nonlocal now_ns, calls
        calls += 1
        now_ns += slow_ns if calls <= slow else CALL_NS

    monkeypatch.setattr(time, "perf_counter_ns", lambda: now_ns)
    return call


def test_a_core_for_each_rank_is_a_sample_of_two_milliseconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    call = slow_at_first(monkeypatch, 1, 5_000_000)  # of the two one counts
    assert rows.calls_of(call, Alone(), is_shared=False) == 20


@pytest.mark.parametrize(("slow", "slow_ns"), [(4, 2_000_000), (3, 30_000_000)])
def test_ranks_that_share_cores_are_not_taken_by_their_first_calls(
    monkeypatch: pytest.MonkeyPatch, slow: int, slow_ns: int
) -> None:
    call = slow_at_first(monkeypatch, slow, slow_ns)
    calls = rows.calls_of(call, Alone(), is_shared=True)
    assert 100 <= calls <= 200  # 20 ms of what it takes once all are there


@pytest.mark.parametrize(("is_shared", "most"), [(False, 100), (True, 1000)])
def test_short_calls_end_a_sample(
    monkeypatch: pytest.MonkeyPatch, is_shared: bool, most: int
) -> None:
    call = slow_at_first(monkeypatch, 1_000_000, 10)
    assert rows.calls_of(call, Alone(), is_shared=is_shared) == most


def test_a_call_that_is_longer_than_a_sample_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    call = slow_at_first(monkeypatch, 100, 30_000_000)
    assert rows.calls_of(call, Alone(), is_shared=True) == 1
