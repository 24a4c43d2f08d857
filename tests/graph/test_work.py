"""Work of operations against torch's counter and against products written out; times; machines."""

from dataclasses import replace

import graph_models
import pytest
import torch
from generated_graphs import graphs
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.flop_counter import FlopCounterMode

from graph_analysis import (
    ArgumentError,
    CaptureError,
    DataParallel,
    Machine,
    OpTime,
    OpTimes,
    PlanError,
    fit_line,
    machine_from_json,
    machine_to_json,
    merge,
    predict,
    times_from_json,
    times_to_json,
)
from graph_analysis.build import build_plan
from graph_analysis.capture import capture, measure_ops
from graph_analysis.capture.flops import flops_of
from graph_analysis.ir import Graph
from graph_analysis.machine import Cost, Device, Link
from graph_analysis.work import attention_flops, recurrent_flops


def convolutional() -> tuple[nn.Module, torch.Tensor]:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 10))
    return model, torch.randn(4, 3, 8, 8)


@pytest.mark.parametrize("make", [convolutional, lambda: (nn.Linear(6, 5), torch.randn(3, 6))])
def test_flops_are_those_that_torch_counts_in_a_step(make: object) -> None:
    model, x = make()  # type: ignore[operator]
    graph = capture(model, (x,))
    with FlopCounterMode(display=False) as counter:
        model(x).sum().backward()
    assert sum(op.flops for op in graph.ops) == counter.get_total_flops() > 0


def test_attention_of_a_cpu_has_the_flops_of_its_products() -> None:
    batch, heads, length, width = 3, 2, 5, 8
    q = (batch, heads, length, width)

    def step(x: torch.Tensor) -> torch.Tensor:
        y = nn.functional.scaled_dot_product_attention(x, x, x)
        return torch.autograd.grad(y.sum(), x)[0]

    graph = make_fx(step)(torch.randn(*q, requires_grad=True)).graph
    product = 2 * batch * heads * length * length * width
    found = [flops_of(node, int) for node in graph.nodes if "flash_attention" in str(node.target)]
    assert found == [2 * product, 5 * product]
    assert attention_flops(q, q, is_causal=True, is_backward=False) == product


@pytest.mark.parametrize(("kind", "mode"), [(nn.LSTM, 2), (nn.GRU, 3)])
def test_a_recurrent_layer_has_the_flops_of_its_products(kind: type, mode: int) -> None:
    model = kind(6, 4, batch_first=True)
    graph = capture(model, (torch.randn(2, 7, 6),), loss_fn=lambda out, _: out[0].sum())
    forward = recurrent_flops(7, 2, 6, 4, mode=mode, is_backward=False)
    assert forward == 2 * 7 * 2 * (6 + 4) * 4 * (4 if mode == 2 else 3)
    assert sum(op.flops for op in graph.ops) >= 2 * forward


def test_work_is_no_part_of_a_plan() -> None:
    model, x = convolutional()
    graph = capture(model, (x,))
    bare = replace(
        graph,
        ops=tuple(replace(op, constants="", flops=0, moved_bytes=0, unit="") for op in graph.ops),
    )
    strategy = DataParallel(2)
    assert build_plan(graph, strategy).fingerprint() == build_plan(bare, strategy).fingerprint()


def test_moved_bytes_count_what_is_read_and_made() -> None:
    graph = capture(nn.Linear(6, 5), (torch.randn(3, 6),))
    product = next(op for op in graph.ops if op.target.startswith("aten.addmm"))
    assert product.moved_bytes == 4 * (5 + 3 * 6 + 5 * 6 + 3 * 5)
    assert all(op.moved_bytes == 0 for op in graph.ops if "permute" in op.target)


def test_operations_belong_to_the_modules_of_their_parameters() -> None:
    graph = capture(graph_models.Transformer(), (torch.zeros(2, 5, dtype=torch.long),))
    units = {op.unit for op in graph.ops}
    assert {"blocks.0.mlp.0", "blocks.0.mlp.2", "blocks.0.norm1"} <= units
    gelu = next(op for op in graph.ops if op.target.startswith("aten.gelu."))
    assert gelu.unit == "blocks.0.mlp.0"
    made = {name: op for op in graph.ops for name in op.outputs}
    assert made["blocks.0.mlp.2.weight.grad"].unit == "blocks.0.mlp.2"
    erf = [op.unit for op in graph.ops if op.target.startswith(("aten.erf.", "aten.exp."))]
    assert "blocks.0.mlp.0" in erf


def test_times_are_measured_for_each_operation_and_predict_their_graph() -> None:
    model, x = convolutional()
    before = [p.detach().clone() for p in model.parameters()]
    graph, times = measure_ops(model, (x,), repeats=2)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert all(p.grad is None for p in model.parameters())
    assert times.overhead_permille > 0
    predicted = predict(graph, times)
    assert not predicted.omissions
    products = [ns for op, ns in zip(graph.ops, predicted.op_ns, strict=True) if op.flops]
    assert len(products) >= 4
    assert min(products) > 0
    assert times_from_json(times_to_json(times)) == times


def test_a_step_at_a_size_between_two_measured_ones_is_priced_between_them() -> None:
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))
    few, small = measure_ops(model, (torch.randn(8, 64),), repeats=2)
    many, large = measure_ops(model, (torch.randn(512, 64),), repeats=2)
    middle = capture(model, (torch.randn(200, 64),))
    both = merge(small, large)
    ends = [predict(graph, both).total_ns for graph in (few, many)]
    assert ends[0] <= predict(middle, both).total_ns <= ends[1]


def test_what_cannot_be_captured_is_named() -> None:
    class Branching(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) if x.sum() > 0 else x

    with pytest.raises(CaptureError, match="cannot be captured whole"):
        measure_ops(Branching(4, 4), (torch.ones(2, 4),))


@given(graphs(), st.integers(0, 10**6))
def test_an_exact_signature_has_its_own_time(graph: Graph, ns: int) -> None:
    from graph_analysis.times import signatures, tabulate

    op_ns = [ns + index for index in range(len(graph.ops))]
    times = tabulate(graph, op_ns, "thread")
    found = predict(graph, times)
    by_signature: dict[str, int] = {}
    for name, value in zip(signatures(graph), op_ns, strict=True):
        by_signature[name] = min(value, by_signature.get(name, value))
    assert list(found.op_ns) == [by_signature[name] for name in signatures(graph)]


@given(graphs())
def test_an_operation_that_nothing_can_price_is_named(graph: Graph) -> None:
    found = predict(graph, OpTimes("thread", ()))
    assert [o.subject for o in found.omissions] == [op.name for op in graph.ops]
    assert found.total_ns == 0


# ---- machines ------------------------------------------------------------------------------------


def machine(world: int = 3) -> Machine:
    devices = tuple(Device(rank, "host", 2, 0, 1000 + rank) for rank in range(world))
    costs = (Cost("all_reduce.alpha_ns", 500), Cost("all_reduce.beta_ps", 2000))
    return Machine(devices, (Link(0, 1, "tcp", 10, 20),), costs)


def test_a_machine_is_read_back_and_priced_by_its_measured_line() -> None:
    one = machine()
    again = machine_from_json(machine_to_json(one))
    assert again == one
    assert again.fingerprint() == one.fingerprint()
    assert one.cost_ns("all_reduce", 1000) == 500 + 2000
    with pytest.raises(ArgumentError, match="no costs of all_gather"):
        one.cost_ns("all_gather", 1)


def test_a_collective_that_was_not_measured_is_priced_by_messages() -> None:
    costs = (Cost("gamma_ps", 100), Cost("tcp.alpha_ns", 1000), Cost("tcp.beta_ps", 800))
    one = replace(machine(4), costs=costs)
    assert one.cost_ns("all_gather", 4000) == 3 * 1000 + 3 * 1000 * 800 // 1000
    assert one.cost_ns("all_reduce", 4000) == 6 * 1000 + 4000 * (6 * 800 + 3 * 100) // 4 // 1000
    assert replace(machine(1), costs=costs, links=()).cost_ns("all_reduce", 1) == 0


@given(
    st.integers(0, 10**9),
    st.integers(0, 10**6),
    st.integers(1, 10**6),
    st.integers(10**6, 10**8),
)
def test_a_line_goes_through_both_points(alpha: int, beta: int, few: int, more: int) -> None:
    many = few + more
    points = [(size, alpha + beta * size // 1000) for size in (few, many)]
    got_alpha, got_beta = fit_line(*points)
    for size, ns in points:
        assert abs(got_alpha + got_beta * size // 1000 - ns) <= 2 + size // 1000


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda one: replace(one, devices=()), "its ranks are"),
        (lambda one: replace(one, devices=one.devices[1:]), "its ranks are"),
        (
            lambda one: replace(one, devices=(replace(one.devices[0], cores=0), *one.devices[1:])),
            "rank 0 is impossible",
        ),
        (
            lambda one: replace(
                one, devices=tuple(replace(d, speed_permille=2000) for d in one.devices)
            ),
            "slowest rank's speed",
        ),
        (lambda one: replace(one, links=(Link(0, 9, "tcp", 1, 1),)), "a link is impossible"),
        (lambda one: replace(one, costs=one.costs[::-1]), "order of their names"),
        (lambda one: replace(one, costs=(Cost("a", -1),)), "a is -1"),
    ],
)
def test_a_machine_that_cannot_be_is_refused(change: object, words: str) -> None:
    text = machine_to_json(change(machine()))  # type: ignore[operator]
    with pytest.raises(PlanError, match=words):
        machine_from_json(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not a machine"),
        ("[]", 'no "format"'),
        ("{" * 2000, "not a machine"),
        (machine_to_json(machine()).replace("500", "501"), "damaged"),
        (machine_to_json(machine()).replace('"version": 1', '"version": 9'), "version 9"),
        (times_to_json(OpTimes("wall", ())), 'no "format"'),
    ],
)
def test_a_damaged_machine_is_refused(text: str, words: str) -> None:
    with pytest.raises(PlanError, match=words):
        machine_from_json(text)


def test_damaged_times_are_refused() -> None:
    row = OpTime("a", "t", 0, 0, 5)
    for rows in ((replace(row, ns=-1),), (row, row)):
        with pytest.raises(PlanError):
            times_from_json(times_to_json(OpTimes("thread", rows)))
