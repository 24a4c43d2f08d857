"""Times of calls that all ranks make together."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns

from rdmatensor.parallel._ranks import Ranks


def timed(ranks: Ranks, call: Callable[[], object], repeats: int) -> int:
    """The median of so many times, each the slowest rank's; one before them does not count."""
    times: list[int] = []
    for _ in range(repeats + 1):
        ranks.barrier()
        began_ns = perf_counter_ns()
        call()
        times.append(perf_counter_ns() - began_ns)
    return sorted(ranks.largest(times)[1:])[repeats // 2]
