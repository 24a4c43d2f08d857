"""Medians drawn again: how far chance could have moved the median of some turns.

Samples of one turn resemble each other; so whole turns are drawn, with replacement, and samples
within them: the bootstrap in two stages.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from bench.suite import samples

MIN_TURNS = 3  # of fewer, nothing is said
DRAWS = 1000
SEED = 20_240_601  # the same each time, so that what is said of samples can be said again
TAIL = 0.005  # left out at either end
_MOST_PER_TURN = 100  # samples of a turn that are drawn from, evenly spread


def medians(turns: Sequence[Sequence[int]], chance: np.random.Generator) -> NDArray[np.float64]:
    """Return the median of each draw; all turns weigh the same."""
    kept = min(_MOST_PER_TURN, *map(len, turns))
    thinned = np.array([[turn[i * len(turn) // kept] for i in range(kept)] for turn in turns])
    shape = (DRAWS, len(turns), 1)
    whose = chance.integers(len(turns), size=shape)
    which = chance.integers(kept, size=(DRAWS, len(turns), kept))
    drawn: NDArray[np.float64] = np.median(thinned[whose, which].reshape(DRAWS, -1), axis=1)
    return drawn


def interval(values: NDArray[np.float64]) -> tuple[float, float]:
    """Return between what all but the tails lie."""
    ordered = np.sort(values).tolist()
    return samples.quantile(ordered, TAIL), samples.quantile(ordered, 1 - TAIL)
