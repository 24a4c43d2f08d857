"""Buckets chosen again from measurements: never later by the model, every gradient in one place."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graph_analysis import DataParallel, InvalidArgument, ParameterServer, build_plan
from graph_analysis.ir import Graph, Op, Value
from graph_analysis.measured import Measured, choose_again, finish_ns, fit_cost, gradient_buckets
from graph_analysis.plan import TransferPlan
from graph_analysis.plan_check import check_plan
from graph_analysis.strategies import Strategy


def planned(sizes: list[int], strategy: Strategy) -> TransferPlan:
    """A plan of one gradient per size in items, made in turn, and of a buffer."""
    values = [Value("mean", "buffer", "float32", 4, (8,))]
    ops = []
    for index, items in enumerate(sizes):
        name = f"w{index}"
        values.append(Value(name, "parameter", "float32", 4, (items,)))
        made = len(ops)
        values.append(
            Value(f"{name}.grad", "gradient", "float32", 4, (items,), made, None, made, name)
        )
        ops.append(Op(f"backward of {name}", "assumed", (name,), (f"{name}.grad",)))
    graph = Graph((), tuple(values), tuple(ops), (), "module", "loss_fn", "test")
    return build_plan(graph, strategy)


TIMES = st.integers(0, 10**8)


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 10**6), min_size=1, max_size=12),
    ready=st.lists(TIMES, min_size=12, max_size=12),
    latency_ns=st.integers(0, 10**7),
    taken=st.lists(st.integers(1, 10**9), min_size=12, max_size=12),
)
def test_never_later_and_complete(
    sizes: list[int], ready: list[int], latency_ns: int, taken: list[int]
) -> None:
    plan = planned(sizes, DataParallel(3))
    old = gradient_buckets(plan)
    measured = Measured(
        ready_ns={f"w{index}.grad": ready[index] for index in range(len(sizes))},
        latency_ns=latency_ns,
        transfers=[(b.span_bytes, time) for b, time in zip(old, taken, strict=False)],
    )
    chosen = choose_again(plan, measured)
    check_plan(chosen)
    assert choose_again(plan, measured) == chosen
    cost = fit_cost(plan, measured)
    assert finish_ns(chosen, measured, cost) <= finish_ns(plan, measured, cost)
    members = [tensor for bucket in gradient_buckets(chosen) for tensor in bucket.tensors]
    assert sorted(members) == sorted(tensor for bucket in old for tensor in bucket.tensors)
    others = [b for b in plan.buckets if b not in old]
    kept = [b for b in chosen.buckets if b not in gradient_buckets(chosen)]
    assert [b.tensors for b in kept] == [b.tensors for b in others]
    assert chosen.crossings == plan.crossings


def test_a_slow_backward_gets_more_buckets() -> None:
    plan = planned([1000] * 8, DataParallel(2))
    measured = Measured(
        ready_ns={f"w{index}.grad": index * 10**7 for index in range(8)},
        latency_ns=1000,
        transfers=[(b.span_bytes, 10**7) for b in gradient_buckets(plan)],
    )
    assert len(gradient_buckets(plan)) == 1
    chosen = choose_again(plan, measured)
    assert len(gradient_buckets(chosen)) > 1
    assert chosen.fingerprint() != plan.fingerprint()
    # What the whole bucket took after the last gradient is now a part of it.
    cost = fit_cost(plan, measured)
    assert finish_ns(chosen, measured, cost) < 7 * 10**7 + 10**7 // 2


def test_what_cannot_be_chosen_again_is_refused() -> None:
    empty = Measured({}, 1, [])
    with pytest.raises(InvalidArgument, match="no readiness was measured for w0"):
        choose_again(planned([5], DataParallel(2)), empty)
    with pytest.raises(InvalidArgument, match="parameter_server"):
        choose_again(planned([5], ParameterServer(1, 2)), empty)
    alone = planned([5], DataParallel(1))
    assert choose_again(alone, empty) is alone
