"""Which algorithm sums a bucket: timed, where the cost table of the group only computes it.

Only where a group's sums go as messages among all its members, over tcp or verbs, and nothing has
forced an algorithm: over shared memory there is one way, and between hosts with several ranks each
the table decides.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Protocol, cast

import torch
import torch.distributed as dist

from rdmatensor.context import default_context
from rdmatensor.distributed import backend_of
from rdmatensor.torch import empty

BY_COSTS = "auto"
ALGORITHMS = (BY_COSTS, "direct", "halving-doubling", "tree", "ring")
NOISE = 1.05  # of one time against another where nothing changed; less gained is nothing
_TIMES = 3  # each is timed so often, and the least counts
_SIZES = 4  # the largest of a step; each costs some sums
_LARGEST_BYTES = 16 << 20  # above, it is bytes alone that count: what holds here holds there
_LEAST_BYTES = 64 << 10  # below, a sum is a latency, and who is faster changes by the call


class _Summing(Protocol):
    """What is used here of rdmatensor._c10d.Backend."""

    def _collectives(self) -> str: ...

    def _prefer(self, len_bytes: int, algorithm: str) -> None: ...


class Algorithms:
    """Times a group's all_reduces of some lengths, and lets them go by the fastest.

    All ranks call the same, at the same points between collectives.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group
        self._backend = cast("_Summing", backend_of(group))

    def are_open(self) -> bool:
        """Whether there is a choice; the same on all ranks."""
        how = json.loads(self._backend._collectives())
        is_free = how.get("algorithm") in (BY_COSTS, "messages")
        return how.get("way") == "messages" and is_free and not how["is_deterministic"]

    def sizes_of(self, spans: Sequence[int]) -> list[int]:
        """Return the lengths, in bytes, that are worth to be timed, the largest first."""
        return sorted({size for size in spans if size >= _LEAST_BYTES}, reverse=True)[:_SIZES]

    def times_ns(self, sizes: Sequence[int]) -> list[int]:
        """Time each length by each of ALGORITHMS, on this rank; leaves the costs in charge."""
        if not sizes:
            return []
        memory = empty(min(sizes[0], _LARGEST_BYTES), torch.uint8, context=default_context())
        scratch = memory.zero_().view(torch.float32)
        found = []
        for size in sizes:
            part = scratch[: min(size, _LARGEST_BYTES) // scratch.element_size()]
            for algorithm in ALGORITHMS:
                self._backend._prefer(part.nbytes, algorithm)
                found.append(min(self._time_ns(part) for _ in range(_TIMES)))
            self._backend._prefer(part.nbytes, BY_COSTS)
        return found

    def _time_ns(self, tensor: torch.Tensor) -> int:
        began = time.perf_counter_ns()
        dist.all_reduce(tensor, op=dist.ReduceOp.AVG, group=self._group)
        return time.perf_counter_ns() - began

    def use(self, chosen: Mapping[int, str]) -> None:
        """Let these lengths go by these algorithms from the next sum on."""
        for size, algorithm in chosen.items():
            self._backend._prefer(size, algorithm)


def fastest(sizes: Sequence[int], times_ns: Sequence[float]) -> dict[int, str]:
    """Return the lengths that another algorithm sums faster than the costs' one, beyond noise.

    times_ns: as of Algorithms.times_ns(), those of the slowest rank.
    """
    chosen = {}
    for number, size in enumerate(sizes):
        first = number * len(ALGORITHMS)
        of = dict(zip(ALGORITHMS, times_ns[first : first + len(ALGORITHMS)], strict=True))
        best = min(of, key=lambda name: of[name])
        if of[best] * NOISE < of[BY_COSTS]:
            chosen[size] = best
    return chosen
