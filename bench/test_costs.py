"""Each cost once, against its target with room for a loaded machine."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from bench.benchlib.record import Record
from bench.suite import costs

pytestmark = [
    pytest.mark.timeout(1800),
    pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs 2 cores"),
]


@pytest.mark.parametrize("name", costs.COSTS)
def test_cost(
    name: str, benchmark: BenchmarkFixture, keep: Callable[[Sequence[Record]], None]
) -> None:
    benchmark.group = "whole runs"
    records = benchmark.pedantic(  # type: ignore[no-untyped-call]
        costs.taken, (name,), rounds=1, iterations=1
    )
    keep(records)
    rows = costs.rows_of(records)
    benchmark.extra_info["rows"] = [f"{row.what}: {row.figure}" for row in rows]
    missed = [row for row in rows if not row.is_absolute and row.holds(costs.ROOM) is False]
    assert not missed, f"below the target by more than noise explains: {missed}"
