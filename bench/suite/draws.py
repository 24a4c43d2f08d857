"""Medians drawn again: how far chance could have moved the median of some turns.

Samples of one turn resemble each other, and so do turns that share processes; so whole starts of
processes are drawn, with replacement, turns within them, and samples within these: the bootstrap in
three stages, of which the first two are one where each turn has processes of its own.

Contestants of one run have their turns beside each other, and what slows the machine for a while
slows them all; so all records draw the same starts and the same turns.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bench.benchlib.record import Record, number
from bench.suite import samples

MIN_TURNS = 3  # with processes of their own; of fewer, nothing is said
DRAWS = 1000
SEED = 20_240_601  # the same each time, so that what is said of samples can be said again
TAIL = 0.005  # left out at either end
_MOST_PER_TURN = 100  # samples of a turn that are drawn from, evenly spread


Starts = Sequence[Sequence[Sequence[int]]]  # the samples of each turn, by the processes' start


def medians(
    starts: Starts, moments: np.random.Generator, chance: np.random.Generator
) -> NDArray[np.float64]:
    """Return the median of each draw; all turns weigh the same.

    moments: draws starts and turns. chance: draws samples.
    """
    kept = min(_MOST_PER_TURN, *(len(turn) for turns in starts for turn in turns))
    count = min(map(len, starts))  # turns of a start that are drawn
    thinned = np.array(
        [
            [[turn[i * len(turn) // kept] for i in range(kept)] for turn in turns[:count]]
            for turns in starts
        ]
    )
    start = moments.integers(len(starts), size=(DRAWS, len(starts), 1))
    turn = moments.integers(count, size=(DRAWS, len(starts), count))
    sample = chance.integers(kept, size=(DRAWS, len(starts), count, kept))
    values = thinned[start[..., None], turn[..., None], sample]
    drawn: NDArray[np.float64] = np.median(values.reshape(DRAWS, -1), axis=1)
    return drawn


def of(record: Record) -> NDArray[np.float64] | None:
    """Return the median of each draw, the same wherever the record counts.

    None with too few starts of processes to draw from.
    """
    starts = samples.starts_of(record)
    if len(starts) < MIN_TURNS:
        return None
    same = zlib.crc32(repr(list(starts)).encode())  # another one has other starts, as one failed
    name = zlib.crc32(repr(samples.key_of(record)).encode())
    moments, chance = (np.random.default_rng([SEED, what]) for what in (same, name))
    return medians(list(starts.values()), moments, chance)


@dataclass(frozen=True, slots=True, eq=False)
class Ratio:
    """value: of the medians. drawn: of those of each draw; None with too few turns."""

    value: float
    drawn: NDArray[np.float64] | None

    @property
    def words(self) -> str:
        """The ratio, with the interval."""
        if self.drawn is None:
            return f"{self.value:.2f} (too few turns)"
        low, high = interval(self.drawn)
        return f"{self.value:.2f} ({low:.2f} to {high:.2f})"


def ratio(one: Record, other: Record) -> Ratio:
    """Return one's median over the other's."""
    both = [of(record) for record in (one, other)]
    drawn = None if both[0] is None or both[1] is None else both[0] / both[1]
    return Ratio(number(one, "median_ns") / number(other, "median_ns"), drawn)


def interval(values: NDArray[np.float64]) -> tuple[float, float]:
    """Return between what all but the tails lie."""
    ordered = np.sort(values).tolist()
    return samples.quantile(ordered, TAIL), samples.quantile(ordered, 1 - TAIL)
