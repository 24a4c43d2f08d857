"""Each cost once, against its target with room for a loaded machine."""

from __future__ import annotations

import os

import pytest

from bench.suite import costs

pytestmark = [
    pytest.mark.timeout(1800),
    pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs 2 cores"),
]


@pytest.mark.parametrize("name", costs.COSTS)
def test_cost(name: str) -> None:
    rows = costs.rows_of(costs.taken(name))
    missed = [row for row in rows if not row.is_absolute and row.holds(costs.ROOM) is False]
    assert rows
    assert not missed, f"below the target by more than noise explains: {missed}"
