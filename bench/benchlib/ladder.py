"""Growing numbers of ranks, climbed until the time is over."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence

_LEAST_S = 1e-6
# Where each reaches every other: more than this is a hiccup of the one before.
_MOST_POWER = 2.0


def expected_s(took: Sequence[tuple[int, float]], ranks: int) -> float:
    """Return how long a larger number of ranks should take; took: (ranks, seconds), at least one.

    By the power of the number of ranks that the last two show, and at least in proportion to it.
    """
    last, seconds = took[-1]
    power = 1.0
    if len(took) > 1:
        before, less = took[-2]
        growth = max(_LEAST_S, seconds) / max(_LEAST_S, less)
        power = min(_MOST_POWER, max(power, math.log(growth) / math.log(last / before)))
    return seconds * math.pow(ranks / last, power)


def climb(
    numbers: Sequence[int],
    turns_of: Callable[[int], int],
    seconds: float,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[int]:
    """Yield growing numbers of ranks, until the next one's turns are expected to end too late.

    turns_of: how many turns a number has, all between this yield and the next. seconds: from now
        on. The first number is yielded however long it takes.
    """
    began_s = clock()
    took: list[tuple[int, float]] = []
    for ranks in numbers:
        start_s = clock()
        if took and start_s - began_s + turns_of(ranks) * expected_s(took, ranks) > seconds:
            return
        yield ranks
        took.append((ranks, (clock() - start_s) / turns_of(ranks)))
