"""What a step exposes to communication, and whether that can be told from noise.

Exposed is what the median step takes beyond the same step without communication. Both medians are
drawn again (draws.py), and what comes of all draws but the tails is how far noise reaches.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bench.benchlib.record import Record, number
from bench.suite import draws


@dataclass(frozen=True, slots=True, eq=False)
class Exposed:
    """ns: by the medians. drawn: by those of each draw; None with too few turns to draw from."""

    ns: float
    drawn: NDArray[np.float64] | None

    @property
    def interval(self) -> tuple[float, float] | None:
        """Between what all draws but the tails lie."""
        return None if self.drawn is None else draws.interval(self.drawn)

    @property
    def words(self) -> str:
        """In ms, with the interval."""
        found = self.interval
        drawn = "" if found is None else f" ({found[0] / 1e6:.1f} to {found[1] / 1e6:.1f})"
        return f"{self.ns / 1e6:.1f}{drawn} ms"


def of(record: Record, floor: Record) -> Exposed:
    """Return what a record's step takes beyond the floor's."""
    both = [draws.of(one) for one in (record, floor)]
    drawn = None if both[0] is None or both[1] is None else both[0] - both[1]
    return Exposed(number(record, "median_ns") - number(floor, "median_ns"), drawn)
