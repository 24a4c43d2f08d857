"""Partitions: pairs against what a layer's parts compute, choices against all choices."""

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import scaled_dot_product_attention, softmax

from graph_analysis import ArgumentError, Machine, PlanError
from graph_analysis.capture import capture
from graph_analysis.machine import Cost, Device
from graph_analysis.partition import (
    BatchTimes,
    Pair,
    Step,
    Unit,
    UnitChoice,
    find_pairs,
    make_units,
    partition_from_json,
    partition_to_json,
    partitions,
    predict_step,
    read_step,
    scales_permille,
    unequal_shares,
)


class Between(nn.Module):
    """Two linear layers with a function between them."""

    def __init__(self, function: Any, middle: int = 8) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, middle), nn.Linear(middle, 4)
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(self.function(self.a(x)))


class Attention(nn.Module):
    """Attention whose heads are counted by its layers' features."""

    def __init__(self, heads: int = 2) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(16, 16) for _ in range(4))
        self.width = 16 // heads

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            one(x).view(*x.shape[:2], -1, self.width).transpose(1, 2)
            for one in (self.q, self.k, self.v)
        )
        y = scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(y.transpose(1, 2).flatten(2))


def names(model: nn.Module) -> list[str]:
    return [name for name, one in model.named_modules() if isinstance(one, nn.Linear)]


def pairs_of(model: nn.Module, *shape: int, degree: int = 2) -> list[tuple[tuple[str, ...], str]]:
    graph = capture(model, (torch.randn(*shape),))
    return [(one.first, one.last) for one in find_pairs(graph, names(model), degree)]


@pytest.mark.parametrize(
    "function",
    [torch.relu, nn.functional.gelu, torch.tanh, lambda h: 2 * torch.sigmoid(h) * h, lambda h: h],
)
def test_layers_with_pointwise_functions_between_them_are_a_pair(function: Any) -> None:
    assert pairs_of(Between(function), 3, 6) == [(("a",), "b")]
    assert pairs_of(Between(function), 3, 5, 6) == [(("a",), "b")]


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(6, 8), nn.Linear(6, 8), nn.Linear(8, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.silu(self.gate(x)) * self.up(x))


def test_several_layers_can_come_first() -> None:
    assert pairs_of(Gated(), 3, 6) == [(("gate", "up"), "down")]
    assert pairs_of(Attention(), 2, 5, 16) == [(("q", "k", "v"), "o")]


@pytest.mark.parametrize(
    "function",
    [
        lambda h: softmax(h, -1),
        lambda h: h - h.mean(-1, keepdim=True),
        lambda h: h.flip(-1),
        lambda h: h + torch.ones(8),
        lambda h: h.view(h.shape[0] * 2, 4).repeat(1, 2)[: h.shape[0]],
        lambda h: torch.roll(h, 1, -1),
        nn.LayerNorm(8),
    ],
)
def test_what_mixes_features_is_no_pair(function: Any) -> None:
    assert pairs_of(Between(function), 3, 6) == []


class Leaking(Between):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        middle = self.function(self.a(x))
        return self.b(middle) + middle.sum()


def test_what_is_read_elsewhere_or_does_not_divide_is_no_pair() -> None:
    assert pairs_of(Leaking(torch.relu), 3, 6) == []
    assert pairs_of(Between(torch.relu, 7), 3, 6) == []
    assert pairs_of(Attention(2), 2, 5, 16, degree=4) == []
    tied = Between(torch.relu, 6)
    tied.b = tied.a
    assert pairs_of(tied, 3, 6) == []


def test_a_layer_is_in_one_pair() -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6))
    assert pairs_of(model, 3, 6) == [(("0",), "2")]


@given(st.integers(0, 9), st.sampled_from([2, 4]))
def test_parts_of_a_found_pair_sum_to_the_whole(seed: int, degree: int) -> None:
    torch.manual_seed(seed)
    model = Between(nn.functional.gelu).double()
    x = torch.randn(3, 6, dtype=torch.float64)
    assert pairs_of(Between(nn.functional.gelu), 3, 6, degree=degree) == [(("a",), "b")]
    total = model.b.bias.clone()
    for weight, bias, last in zip(
        model.a.weight.chunk(degree),
        model.a.bias.chunk(degree),
        model.b.weight.chunk(degree, 1),
        strict=True,
    ):
        total = total + nn.functional.gelu(x @ weight.t() + bias) @ last.t()
    assert torch.allclose(total, model(x), atol=1e-12)


# ---- prediction and choice -----------------------------------------------------------------------


def machine(
    world: int = 2, beta_ps: int = 8000, speeds: tuple[int, ...] = (), memory: int = 0
) -> Machine:
    speeds = speeds or (1000,) * world
    devices = tuple(Device(rank, "host", 2, memory, speeds[rank]) for rank in range(world))
    costs = [
        Cost(f"{name}.{what}", value)
        for name, factor in (("all_gather", 1), ("all_reduce", 2), ("reduce_scatter", 1))
        for what, value in (("alpha_ns", 50_000), ("beta_ps", factor * beta_ps))
    ]
    return Machine(devices, (), tuple(costs))


def step_of(model: nn.Module, x: torch.Tensor, world: int, op_ns: int = 10_000) -> Step:
    graph = capture(model, (x,))
    pairs = find_pairs(graph, names(model), world)
    units = make_units(graph, [name for name, _ in model.named_children()], pairs, {})
    return read_step(graph, [op_ns] * len(graph.ops), units, 2)


def tail_heavy() -> tuple[nn.Module, torch.Tensor]:
    """Much to send in two layers, which have few rows."""
    features = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Flatten())
    head = nn.Sequential(nn.Linear(8 * 64, 2048), nn.ReLU(), nn.Linear(2048, 64))
    return nn.Sequential(features, head), torch.randn(4, 3, 8, 8)


def batch_of(step: Step, rows: int) -> BatchTimes:
    total = sum(step.op_ns)
    return BatchTimes(rows // 2, total // 2, rows, total)


def test_a_slow_link_splits_the_pair_and_a_fast_one_does_not() -> None:
    model, x = tail_heavy()
    step = step_of(model, x, 2)
    slow, *others = partitions(step, machine(2, 16_000), batch_of(step, 4))
    assert slow.name.startswith("pairs: 1")
    assert "data parallel" in {one.name for one in others}
    assert slow.predicted.step_ns * 2 < next(
        one.predicted.step_ns for one in others if one.name == "data parallel"
    )
    fast = partitions(step, machine(2, 1), batch_of(step, 4))[0]
    assert fast.name == "data parallel"


@given(st.integers(0, 40_000), st.integers(0, 10**6), st.sampled_from([1, 2, 4]))
def test_bounds_hold_the_prediction(beta_ps: int, op_ns: int, world: int) -> None:
    step = _STEPS[world]
    step = replace(step, op_ns=(op_ns,) * len(step.op_ns))
    for ways in itertools.product(("replicate", "fsdp", "column_row"), repeat=len(step.units)):
        choices = [
            UnitChoice(u.name, _possible(u, way), u.modules, ())
            for u, way in zip(step.units, ways, strict=True)
        ]
        got = predict_step(step, choices, (4,) * world, (1000,) * world, machine(world, beta_ps))
        assert got.low_ns <= got.step_ns <= got.high_ns
        assert got.exposed_ns >= 0
        assert max(got.compute_ns) + got.sent_ns == got.high_ns


def _possible(unit: Unit, way: Any) -> Any:
    return way if unit.pair or way != "column_row" else "replicate"


_STEPS = {world: step_of(*tail_heavy(), world) for world in (1, 2, 4)}


def plain_step(units: tuple[Unit, ...]) -> Step:
    sizes = {name: u.parameter_bytes // len(u.parameters) for u in units for name in u.parameters}
    return Step((1000,) * 4, 2, (), sizes, units, 1000, 2, {}, {})


@st.composite
def unit_lists(draw: st.DrawFn) -> tuple[Unit, ...]:
    made = []
    for index in range(draw(st.integers(1, 3))):
        size = draw(st.integers(1, 10**7))
        pair = None
        if draw(st.booleans()):
            pair = Pair((f"m{index}",), f"l{index}", 0, 1, draw(st.integers(1, 10**6)), 64)
        cut = size if pair else 0
        made.append(Unit(f"u{index}", (f"m{index}",), (), (f"m{index}.w",), size, cut, pair))
    return tuple(made)


@given(unit_lists(), st.integers(1, 20_000), st.integers(0, 1000))
def test_the_program_finds_the_least_price_of_all(
    units: tuple[Unit, ...], beta_ps: int, credit: int
) -> None:
    from graph_analysis.partition.solve import _solve, _ways

    step, on = plain_step(units), machine(2, beta_ps)
    every = list(itertools.product(*(_ways(unit, step, on, credit) for unit in units)))
    held = sorted(sum(w[2] for w in one) + step.activation_bytes for one in every)
    limit = held[len(held) // 2]

    def price(ways: tuple[str, ...]) -> int:
        return next(sum(w[1] for w in one) for one in every if tuple(w[0] for w in one) == ways)

    fastest, *keeping = _solve(step, on, credit, limit)
    assert price(fastest) == min(sum(w[1] for w in one) for one in every)
    fitting = [o for o in every if sum(w[2] for w in o) + step.activation_bytes <= limit]
    assert price(keeping[0]) == min(sum(w[1] for w in one) for one in fitting)


def test_a_limit_of_memory_shards_what_must_be_and_names_the_least() -> None:
    model, x = tail_heavy()
    step = step_of(model, x, 2)
    fast = machine(2, 1)
    whole = partitions(step, fast, batch_of(step, 4))[0].predicted.peak_bytes[0]
    limited = machine(2, 1, memory=whole * 3 // 4)
    best = partitions(step, limited, batch_of(step, 4))[0]
    assert max(best.predicted.peak_bytes) <= whole * 3 // 4
    assert best.of_way("fsdp") or best.of_way("column_row")
    with pytest.raises(ArgumentError, match="the least needs"):
        partitions(step, machine(2, 1, memory=1000), batch_of(step, 4))


@given(
    st.lists(st.integers(1000, 4000), min_size=2, max_size=3),
    st.integers(2, 5),
    st.integers(0, 10**6),
)
def test_unequal_rows_end_as_early_as_any(speeds: list[int], rows: int, fixed_ns: int) -> None:
    speeds[0] = 1000
    world = len(speeds)
    batch = BatchTimes(1, fixed_ns + 10**6, rows, fixed_ns + rows * 10**6)
    on = machine(world, speeds=tuple(speeds))
    got = unequal_shares(batch, on)
    assert sum(got) == rows * world
    every = [
        one
        for one in itertools.product(range(1, rows * world), repeat=world)
        if sum(one) == rows * world
    ]
    best = min(max(scales_permille(one, batch, on)) for one in every)
    even = max(scales_permille((rows,) * world, batch, on))
    found = max(scales_permille(got, batch, on))
    assert found <= best + 1 or (found == even and best * 105 >= even * 100 - 105)


def test_a_slow_rank_gets_fewer_rows() -> None:
    model, x = tail_heavy()
    step = step_of(model, x, 2, op_ns=10_000_000)
    on = machine(2, 1, speeds=(1000, 2000))
    best, *others = partitions(step, on, batch_of(step, 8))
    assert best.name == "data parallel, unequal rows"
    assert best.shares[0] < best.shares[1]
    even = next(one for one in others if one.name == "data parallel")
    assert best.predicted.step_ns * 10 < even.predicted.step_ns * 8
    never = partitions(step, on, batch_of(step, 8), may_be_unequal=False)
    assert all(len(set(one.shares)) == 1 for one in never)


@pytest.mark.parametrize("has_bias", [False, True])
def test_a_block_with_a_weight_that_another_one_holds_is_not_sharded(has_bias: bool) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8, bias=has_bias))
    model[2].weight = model[0].weight
    graph = capture(model, (torch.randn(4, 8),))
    units = make_units(graph, ["0", "1", "2"], [], {}, [["0.weight", "2.weight"]])
    assert {u.name: u.may_shard for u in units} == {
        "0": False,
        "1": True,
        **({"2": False} if has_bias else {}),
    }
    whole = make_units(graph, [], [], {}, [["0.weight", "2.weight"]])
    assert all(u.may_shard for u in whole)
    step = read_step(graph, [10_000] * len(graph.ops), units, 2)
    for one in partitions(step, machine(2), batch_of(step, 4), most=9):
        assert not {"0", "2"} & {u.unit for u in one.of_way("fsdp")}


def test_a_partition_is_read_back_and_explains_itself() -> None:
    model, x = tail_heavy()
    step = step_of(model, x, 2)
    best = partitions(step, machine(2, 16_000), batch_of(step, 4), reasons=("said",))[0]
    again = partition_from_json(partition_to_json(best))
    assert again == best
    assert again.fingerprint() == best.fingerprint()
    text = best.text()
    assert "column_row: 1.0 + 1.2" in text
    assert "Others:" in text
    assert "transfers decide" in text
    assert "said" in text


@pytest.mark.parametrize("damage", ["shares", "twice", "lonely", "text"])
def test_a_damaged_partition_is_refused(damage: str) -> None:
    model, x = tail_heavy()
    step = step_of(model, x, 2)
    one = partitions(step, machine(2, 16_000), batch_of(step, 4))[0]
    if damage == "text":
        text = partition_to_json(one).replace("column_row", "replicate")
    elif damage == "shares":
        text = partition_to_json(replace(one, shares=(1,)))
    elif damage == "twice":
        text = partition_to_json(replace(one, units=(*one.units, one.units[0])))
    else:
        units = tuple(replace(u, modules=u.modules[:1]) for u in one.units)
        text = partition_to_json(replace(one, units=units))
    with pytest.raises(PlanError):
        partition_from_json(text)
