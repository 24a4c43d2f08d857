"""Pass: group messages into buckets that are sent together, optimal under a cost model.

Messages are given in the order in which they become ready and share one link. A bucket of b bytes
occupies the link for latency + b * wire_factor / bandwidth and starts when the link is free and its
last member is ready. The goal is the fewest buckets that end no later than one latency after the
earliest possible end. That slack is the price of one message; without it many small messages would
be sent to save the last microsecond.

Let f(j) be the earliest end of the first j messages, P(j) their bytes in time on the link:
    f(j) = latency + P(j) + min over i < j of max(f(i), ready(j)) - P(i)
Cutting a message off the end of a schedule saves at least its own time on the link. Therefore
f(i) - P(i) never falls with i. So the best i is either the last with f(i) <= ready(j), or the one
after it; both only move forward: linear time. From the latest allowed end backwards, the longest
bucket that is ready in time is always a right choice, for the same reason: again linear. A bucket
has one dtype, because one collective has one dtype: i may not precede the last change of dtype. All
times are integers, scaled by Wire.scale, so that choices are exact.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from graph_analysis.errors import ArgumentError
from graph_analysis.ir import CostModel, Message, Operation

_NS_PER_S = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Wire:
    """Time on the link in units of 1/scale ns, so that every term is an integer."""

    scale: int
    latency: int
    per_byte: int


@dataclass(frozen=True, slots=True)
class Bucket:
    """Messages [start, stop) of the given order; times in ns after the start of the step."""

    start: int
    stop: int
    start_ns: int
    finish_ns: int


def wire(cost: CostModel, operation: Operation, ranks: int) -> Wire:
    """The load of the busiest link under this operation over so many ranks, in shares of the input.

    A bandwidth-optimal all-reduce moves 2 (n-1)/n of the bytes over each rank's link, a
    reduce-scatter and an all-to-all half of that; an all-gather passes on n-1 inputs. A broadcast
    passes the bytes on once, as a reduce and a send do. Between the root of a push, pull, gather or
    scatter and the n-1 others all the bytes of each go over the root's link.
    """
    if min(cost.latency_ns, cost.op_ns) < 0:
        raise ArgumentError(f"negative time in {cost}")
    if min(cost.bandwidth_bytes_per_s, cost.memory_bytes_per_s) < 1:
        raise ArgumentError(f"a rate below 1 byte/s in {cost}")
    shares: dict[Operation, tuple[int, int]] = {
        "all_reduce": (2 * (ranks - 1), ranks),
        "reduce_scatter": (ranks - 1, ranks),
        "all_to_all": (ranks - 1, ranks),
        "all_gather": (ranks - 1, 1),
        "push": (ranks - 1, 1),
        "pull": (ranks - 1, 1),
        "gather": (ranks - 1, 1),
        "scatter": (ranks - 1, 1),
        "broadcast": (1, 1),
        "reduce": (1, 1),
        "send": (1, 1),
    }
    numerator, denominator = shares[operation]
    scale = cost.bandwidth_bytes_per_s * denominator
    return Wire(scale, cost.latency_ns * scale, _NS_PER_S * numerator)


def make_buckets(messages: Sequence[Message], link: Wire) -> tuple[Bucket, ...]:
    """Optimal buckets, in order. Messages must be sorted by ready_ns, times not negative."""
    if not messages:
        return ()
    ready = [message.ready_ns * link.scale for message in messages]
    if any(a > b for a, b in pairwise(ready)):
        raise ArgumentError("messages are not in the order in which they become ready")
    spent = [0]
    for message in messages:
        spent.append(spent[-1] + message.span_bytes * link.per_byte)
    runs = _dtype_runs(messages)
    finish = _earliest_finish(ready, spent, runs, link.latency)
    cuts = _fewest_cuts(ready, spent, runs, finish[-1] + link.latency, link.latency)
    return _schedule(ready, spent, cuts, link)


def _dtype_runs(messages: Sequence[Message]) -> list[int]:
    """For each message the first index of the run of one dtype that it belongs to."""
    runs = [0] * len(messages)
    for index in range(1, len(messages)):
        same = messages[index].dtype == messages[index - 1].dtype
        runs[index] = runs[index - 1] if same else index
    return runs


def _earliest_finish(
    ready: list[int], spent: list[int], runs: list[int], latency: int
) -> list[int]:
    """f(0..n) as the module's docstring defines it."""
    finish = [0]
    idle = 0  # the last prefix that the link has finished when message j is ready
    for j in range(1, len(ready) + 1):
        when = ready[j - 1]
        while idle + 1 < j and finish[idle + 1] <= when:
            idle += 1
        low = runs[j - 1]
        best = min(
            max(finish[i], when) - spent[i] for i in (max(idle, low), max(idle + 1, low)) if i < j
        )
        finish.append(latency + spent[j] + best)
    return finish


def _fewest_cuts(
    ready: list[int], spent: list[int], runs: list[int], deadline: int, latency: int
) -> list[int]:
    """Ends of the fewest buckets that still finish at the deadline, ascending."""
    stop = len(ready)
    cuts = []
    while stop > 0:
        cuts.append(stop)
        when = ready[stop - 1]
        first = stop - 1
        start = deadline - latency - (spent[stop] - spent[first])
        while first > runs[stop - 1] and start - (spent[first] - spent[first - 1]) >= when:
            start -= spent[first] - spent[first - 1]
            first -= 1
        stop, deadline = first, start
    return cuts[::-1]


def _schedule(
    ready: list[int], spent: list[int], cuts: list[int], link: Wire
) -> tuple[Bucket, ...]:
    """Play the buckets over the link, each as early as it can start."""
    buckets = []
    free = begin = 0
    for stop in cuts:
        start = max(free, ready[stop - 1])
        free = start + link.latency + spent[stop] - spent[begin]
        buckets.append(Bucket(begin, stop, start // link.scale, -(-free // link.scale)))
        begin = stop
    return tuple(buckets)
