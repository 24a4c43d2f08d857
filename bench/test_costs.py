"""Each cost once, against its target with room for a loaded machine."""

from __future__ import annotations

import os

import pytest

from bench.suite import costs

pytestmark = [
    pytest.mark.timeout(1800),
    pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs 2 cores"),
]
TRIES = 4


@pytest.mark.parametrize("name", [name for name in costs.COSTS if name not in costs.HELD])
def test_cost(name: str) -> None:
    check(name)


@pytest.mark.parametrize("name", costs.HELD)
def test_ratio(name: str) -> None:
    """What ci/ratios.sh runs."""
    check(name)


def check(name: str) -> None:
    missed: list[list[costs.Row]] = []
    for _ in range(TRIES):  # what other processes do with the cores only makes a figure worse
        rows = costs.rows_of(costs.taken(name))
        assert rows
        held = (row for row in rows if not row.is_absolute)
        missed.append([row for row in held if row.holds(with_room=True) is False])
        if not missed[-1]:
            return
    pytest.fail(f"below the target in {TRIES} tries by more than noise explains: {missed}")
