"""Pass: cut a chain of modules into pipeline stages, and the time of a step of them.

A step runs all micro-batches forward, then all backward (GPipe). A stage sends to the next one
while it computes its next micro-batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Part:
    """One module of the chain: its time for a whole batch, and what its output has in bytes."""

    module: str
    forward_ns: int
    backward_ns: int
    out_bytes: int


def cut_chain(parts: Sequence[Part], speeds_permille: Sequence[int]) -> tuple[int, ...]:
    """First part of each stage after the first, so that the longest stage is as short as possible.

    Stages are the ranks in order; each has one part or more. Of equal cuts the first one counts.
    """
    count = len(speeds_permille)
    before = [0]
    for part in parts:
        before.append(before[-1] + part.forward_ns + part.backward_ns)

    def time_ns(start: int, stop: int, stage: int) -> int:
        return (before[stop] - before[start]) * 1000 // speeds_permille[stage]

    best: dict[int, tuple[int, tuple[int, ...]]] = {
        stop: (time_ns(0, stop, 0), ()) for stop in range(1, len(parts) - count + 2)
    }
    for stage in range(1, count):
        found: dict[int, tuple[int, tuple[int, ...]]] = {}
        for stop in range(stage + 1, len(parts) - count + stage + 2):
            found[stop] = min(
                (max(best[start][0], time_ns(start, stop, stage)), (*best[start][1], start))
                for start in range(stage, stop)
                if start in best
            )
        best = found
    return best[len(parts)][1]


def pipeline_ns(
    forward_ns: Sequence[int], backward_ns: Sequence[int], send_ns: Sequence[int], micros: int
) -> int:
    """The end of a step. Times are of one micro-batch, send_ns[s] from stage s to the next."""
    stages = len(forward_ns)
    ends = [0] * stages  # of the last task of each stage
    for _ in range(micros):
        came = 0
        for stage in range(stages):
            ends[stage] = max(ends[stage], came) + forward_ns[stage]
            came = ends[stage] + (send_ns[stage] if stage + 1 < stages else 0)
    for _ in range(micros):
        came = 0
        for stage in reversed(range(stages)):
            ends[stage] = max(ends[stage], came) + backward_ns[stage]
            came = ends[stage] + (send_ns[stage - 1] if stage else 0)
    return max(ends)
