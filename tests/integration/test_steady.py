"""However many collectives of torch: memory, descriptors, mappings and threads stay as they were.

RDT_TEST_STEADY=full has 10^6 small and 10^4 large ones over each path. The same for all kinds of
operations below torch is tests/c/integration/steady_test.c.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import jobs
import pytest
from meeting import SCALE

IS_FULL = {"": False, "full": True}[os.environ.get("RDT_TEST_STEADY", "")]
JOB_LIMIT_S = (1200.0 if IS_FULL else 90.0) * SCALE
BYTES = {"small": 8, "large": 1 << 20}
COUNTS = {"small": 1_000_000, "large": 10_000} if IS_FULL else {"small": 6_000, "large": 200}
# A byte lost in each operation is 32 of the heap, and each object of Python's a block: both are
# exact but for what threads keep back and for what is on its way. Of pages a few large buffers' may
# come or go. Pss is told and not judged: all that the launcher forked share torch's pages, and each
# has a larger part of them when another ends.
LIMITS = {
    "heap_bytes": 32768,
    "python_blocks": 200,
    "rss_kib": 4096,
    "mappings": 4,
    "descriptors": 0,
    "threads": 0,
}
LOST_BYTES = 8  # in a test of the measure itself

pytestmark = pytest.mark.timeout(JOB_LIMIT_S + 30)


def growth_of(
    size: str, out: Path, environment: dict[str, str], *, lost_bytes: int = 0
) -> list[dict[str, Any]]:
    """Run a job of sums; return what each rank holds more than before, and print it."""
    ranks = jobs.results(
        jobs.run(
            "roles_steady:growth",
            2,
            out,
            timeout_s=JOB_LIMIT_S,
            environment=environment,
            count=COUNTS[size],
            elements=BYTES[size] // 4,
            limits=LIMITS,
            lost_bytes=lost_bytes,
        )
    )
    for number, rank in enumerate(ranks):
        print(
            f"\nsteady: rank {number}, {environment}, {COUNTS[size]} sums of {BYTES[size]} bytes "
            f"in {rank['took_s']:.1f} s: {rank['growth']}"
        )
    return ranks


def too_much(rank: dict[str, Any]) -> dict[str, int]:
    return {
        name: rank["growth"][name] for name, limit in LIMITS.items() if rank["growth"][name] > limit
    }


@pytest.mark.parametrize("size", ["small", "large"])
def test_nothing_grows(size: str, path_forced: dict[str, str], tmp_path: Path) -> None:
    for rank in growth_of(size, tmp_path, path_forced):
        assert not too_much(rank)


def test_bytes_lost_in_each_operation_are_seen(tmp_path: Path) -> None:
    environment = {"RDMATENSOR_TRANSPORT": "shm"}
    for rank in growth_of("small", tmp_path, environment, lost_bytes=LOST_BYTES):
        assert too_much(rank)["heap_bytes"] >= COUNTS["small"] * LOST_BYTES
