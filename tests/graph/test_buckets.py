"""Buckets against every possible way to cut the messages, in exact fractions."""

import itertools
import time
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graph_analysis.buckets import Bucket, make_buckets, wire
from graph_analysis.errors import ArgumentError
from graph_analysis.ir import CostModel, Message

pytestmark = pytest.mark.timeout(300)


@st.composite
def message_lists(draw: st.DrawFn, max_size: int = 8) -> list[Message]:
    gaps = draw(st.lists(st.integers(0, 60), max_size=max_size))
    ready = list(itertools.accumulate(gaps))
    sizes = st.integers(0, 40)
    dtypes = st.sampled_from(["float32", "float32", "bfloat16"])
    return [Message(f"t{i}", draw(dtypes), draw(sizes), ns) for i, ns in enumerate(ready)]


costs = st.builds(
    CostModel,
    latency_ns=st.integers(0, 80),
    bandwidth_bytes_per_s=st.sampled_from([300_000_000, 1_000_000_000, 7_000_000_000]),
)


def _finish(
    messages: list[Message], cuts: tuple[int, ...], cost: CostModel, ranks: int
) -> Fraction:
    """When an all-reduce of each bucket in turn has ended, by the definition of the model."""
    free = Fraction(0)
    begin = 0
    for stop in cuts:
        inside = messages[begin:stop]
        moved = sum(m.span_bytes for m in inside) * Fraction(2 * (ranks - 1), ranks)
        start = max(free, Fraction(inside[-1].ready_ns))
        free = start + cost.latency_ns + moved * 10**9 / cost.bandwidth_bytes_per_s
        begin = stop
    return free


def _cuts(messages: list[Message]) -> list[tuple[int, ...]]:
    """Every way to cut, as ends of buckets, that keeps one dtype in each."""
    count = len(messages)
    found = []
    for size in range(count):
        for inner in itertools.combinations(range(1, count), size):
            ends = (*inner, count)
            pieces = [messages[a:b] for a, b in zip((0, *inner), ends, strict=True)]
            if all(len({m.dtype for m in piece}) == 1 for piece in pieces):
                found.append(ends)
    return found


@given(message_lists(), costs, st.integers(2, 5))
def test_no_other_cut_that_ends_in_time_needs_fewer_buckets(
    messages: list[Message], cost: CostModel, ranks: int
) -> None:
    buckets = make_buckets(messages, wire(cost, "all_reduce", ranks))
    if not messages:
        assert buckets == ()
        return
    mine = tuple(b.stop for b in buckets)
    assert [b.start for b in buckets] == [0, *mine[:-1]]
    every = _cuts(messages)
    assert mine in every
    ends = {cuts: _finish(messages, cuts, cost, ranks) for cuts in every}
    latest = min(ends.values()) + cost.latency_ns
    assert ends[mine] <= latest
    assert len(mine) == min(len(cuts) for cuts, end in ends.items() if end <= latest)
    assert buckets[-1].finish_ns == -(-ends[mine].numerator // ends[mine].denominator)


@given(message_lists(), costs)
def test_times_of_buckets_are_possible(messages: list[Message], cost: CostModel) -> None:
    free = 0
    for bucket in make_buckets(messages, wire(cost, "broadcast", 2)):
        assert bucket.start_ns >= max(free, messages[bucket.stop - 1].ready_ns)
        assert bucket.finish_ns >= bucket.start_ns + cost.latency_ns
        free = bucket.finish_ns - 1  # the end is rounded up, the next start down


@pytest.mark.parametrize("gap_ns", [0, 10, 1_000, 5_000])
def test_a_thousand_small_gradients_leave_in_at_most_three_messages(gap_ns: int) -> None:
    messages = [Message(f"t{i}", "float32", 256, i * gap_ns) for i in range(1000)]
    assert 1 <= len(make_buckets(messages, wire(CostModel(), "all_reduce", 2))) <= 3


def test_large_gradients_overlap_with_the_rest_of_backward() -> None:
    """Each takes 80 us on the link and comes every 100 us: waiting to merge would only cost."""
    messages = [Message(f"t{i}", "float32", 100_000, 100_000 * i) for i in range(10)]
    cost = CostModel(latency_ns=1_000, bandwidth_bytes_per_s=1_250_000_000)
    buckets = make_buckets(messages, wire(cost, "all_reduce", 2))
    assert buckets[-1] == Bucket(9, 10, 900_000, 981_000)
    assert len(buckets) > 1


def test_unsorted_messages_are_refused() -> None:
    messages = [Message("a", "float32", 4, 5), Message("b", "float32", 4, 4)]
    with pytest.raises(ArgumentError, match="order"):
        make_buckets(messages, wire(CostModel(), "broadcast", 2))


@pytest.mark.parametrize(
    "cost",
    [CostModel(latency_ns=-1), CostModel(op_ns=-1), CostModel(bandwidth_bytes_per_s=0)],
)
def test_impossible_costs_are_refused(cost: CostModel) -> None:
    with pytest.raises(ArgumentError):
        wire(cost, "broadcast", 2)


def test_time_is_linear_in_messages() -> None:
    """Eight times as many take eight times as long; a quadratic pass takes 64 times."""

    def cpu_s(count: int) -> float:
        messages = [Message(f"t{i}", "float32", 64 * (i % 7), 900 * i) for i in range(count)]
        began = time.process_time()
        make_buckets(messages, wire(CostModel(), "all_reduce", 4))
        return time.process_time() - began

    few, many = (min(cpu_s(count) for _ in range(3)) for count in (5_000, 40_000))
    assert many < 24 * few
