"""The models of the zoo: plans against a step that really runs, and against torch's pipelining."""

import itertools
from collections import Counter

import pytest

torch = pytest.importorskip("torch")
import graph_models  # noqa: E402  needs torch
import naive  # noqa: E402
import zoo  # noqa: E402  needs torch
from clock import cpu_s  # noqa: E402
from torch import nn  # noqa: E402
from zoo.scaled import SCALED  # noqa: E402

from graph_analysis import (  # noqa: E402
    DataParallel,
    GraphCollectives,
    ParameterServer,
    Pipeline,
    TransferPlan,
    analyze,
    build_plan,
)
from graph_analysis.capture import capture  # noqa: E402
from graph_analysis.ir import Graph  # noqa: E402
from graph_analysis.liveness import lifetimes  # noqa: E402
from graph_analysis.plan_check import check_plan  # noqa: E402

pytestmark = [pytest.mark.timeout(600), pytest.mark.slow, pytest.mark.turns()]

# VGG differs from AlexNet in size alone, and its gradients would not fit on small machines.
PLANNED = [name for name in zoo.FACTORIES if name != "vgg16"]


def _plan(name: str, strategy: object, **options: object) -> tuple[nn.Module, TransferPlan]:
    torch.manual_seed(5)
    model, inputs, loss_fn = zoo.FACTORIES[name]()
    plan = analyze(model, inputs, loss_fn=loss_fn, strategy=strategy, **options)
    check_plan(plan)
    return model, plan


def _makers(loss: torch.Tensor) -> dict[torch.Tensor, set[object]]:
    """Return the nodes of autograd that hand a gradient to each parameter."""
    found: dict[torch.Tensor, set[object]] = {}
    seen, left = set(), [loss.grad_fn]
    while left:
        node = left.pop()
        if node in seen:
            continue
        seen.add(node)
        for after, _ in node.next_functions:
            if after is not None and hasattr(after, "variable"):
                found.setdefault(after.variable, set()).add(node)
            elif after is not None:
                left.append(after)
    return found


@pytest.mark.parametrize("name", PLANNED)
def test_gradients_of_a_real_step_are_the_planned_ones(name: str) -> None:
    model, plan = _plan(name, DataParallel(2))
    assert plan.source == "joint_graph"
    assert plan.omissions == ()
    _, inputs, loss_fn = zoo.FACTORIES[name]()
    named = dict(model.named_parameters())
    arrived: list[str] = []
    for key, parameter in named.items():
        parameter.register_post_accumulate_grad_hook(lambda _, key=key: arrived.append(key))
    loss = loss_fn(model(*inputs), *inputs)
    makers = _makers(loss)
    loss.backward()
    planned = {t.parameter: t for t in plan.tensors if t.role == "gradient"}
    assert set(planned) == {key for key, p in named.items() if p.grad is not None}
    for key, tensor in planned.items():
        gradient = named[str(key)].grad
        assert (tensor.shape, tensor.size_bytes) == (tuple(gradient.shape), gradient.nbytes)
    reduced = sum(b.payload_bytes for b in plan.buckets if b.operation == "all_reduce")
    assert reduced == sum(p.grad.nbytes for p in named.values() if p.grad is not None)
    assert len(arrived) == len(planned)
    for earlier, later in itertools.combinations(arrived, 2):
        one, other = planned[earlier], planned[later]
        is_of_one = makers[named[earlier]] == makers[named[later]]  # in whichever order
        assert one.ready_order < other.ready_order or one.producer == other.producer or is_of_one


@pytest.mark.parametrize("name", SCALED)
def test_naive_checkers_agree_on_every_kind_of_model(name: str) -> None:
    """Small ones with the same layers: the checkers take squares of their sizes."""
    torch.manual_seed(5)
    model, inputs, loss_fn = SCALED[name]()
    batch = torch.export.Dim("batch", min=2, max=8)
    sequence = torch.export.Dim("seq", min=4, max=32)
    shapes = {"tokens": {0: batch, 1: sequence}} if name in ("gpt", "moe", "huggingface") else None
    graph = capture(model, inputs, loss_fn=loss_fn, dynamic_shapes=shapes)
    assert lifetimes(graph) == naive.lifetimes(graph)
    for strategy in (DataParallel(3), Pipeline(2), ParameterServer(2, 2)):
        plan = build_plan(graph, strategy)
        check_plan(plan)
        assert any(arena.placements for arena in plan.arenas), strategy
        naive.check_arenas(plan)


@pytest.fixture(scope="module")
def dynamic_gpt() -> tuple[nn.Module, Graph]:
    """A GPT of any batch up to 8 and any sequence up to 64."""
    model, inputs, loss_fn = zoo.gpt()
    dims = {0: torch.export.Dim("batch", max=8), 1: torch.export.Dim("seq", min=4, max=64)}
    return model, capture(model, inputs, loss_fn=loss_fn, dynamic_shapes={"tokens": dims})


def test_gpt_with_dynamic_batch_and_sequence_counted(dynamic_gpt: tuple[nn.Module, Graph]) -> None:
    """Parameters and gradients are static, what the tokens make is bounded, nothing is dynamic."""
    model, graph = dynamic_gpt
    plan = build_plan(graph, DataParallel(2))
    check_plan(plan)
    assert [(s.name, s.upper) for s in plan.symbols] == [("batch", 8), ("seq", 64)]
    counts = Counter((t.role, t.kind) for t in plan.tensors)
    named = dict(model.named_parameters())
    assert len(named) == 53
    assert counts["parameter", "static"] == counts["gradient", "static"] == len(named)
    assert counts["input", "bounded"] == 1
    assert {kind for _, kind in counts} == {"static", "bounded"}
    assert {role for role, kind in counts if kind == "bounded"} >= {"activation", "backward"}
    assert all((t.kind == "bounded") == bool(t.symbols) for t in plan.tensors)
    # Each of the four blocks makes some, forward and backward: two norms, two products, two sums.
    assert counts["activation", "bounded"] > 4 * 6
    assert counts["backward", "bounded"] > 4 * 6
    crossing = [c.tensor for c in plan.crossings if c.phase != "setup"]
    assert sorted(crossing) == sorted(f"{name}.grad" for name in named)
    assert sum(b.payload_bytes for b in plan.buckets) == sum(p.nbytes for p in named.values())


def test_gpt_with_dynamic_batch_and_sequence_in_a_pipeline(
    dynamic_gpt: tuple[nn.Module, Graph],
) -> None:
    """What crosses is bounded by both symbols, and each names its input and dimension."""
    plan = build_plan(dynamic_gpt[1], Pipeline(("blocks.2",)))
    check_plan(plan)
    sent = {c.tensor for c in plan.crossings}
    crossing = [t for t in plan.tensors if t.name in sent]
    assert len(crossing) == 2
    for tensor in crossing:
        assert (tensor.kind, tensor.max_bytes) == ("bounded", 4 * 8 * 64 * 128)
        assert tensor.inputs == ("tokens, dimension 0", "tokens, dimension 1")
    held = {t.parameter: t.homes for t in plan.tensors if t.role == "gradient"}
    assert held["blocks.1.down.weight"] == ("stage0",)
    assert held["blocks.2.qkv.weight" if "blocks.2.qkv.weight" in held else "head.weight"] == (
        "stage1",
    )


def test_routing_by_data_names_the_operation_that_decides() -> None:
    _, plan = _plan("moe", DataParallel(2))
    routed = [t for t in plan.tensors if t.role == "activation" and t.symbols]
    assert routed
    by_data = {s.name: s.source for s in plan.symbols if s.dim is None}
    assert len(by_data) == 4  # one for each expert
    assert all("nonzero" in source for source in by_data.values())
    assert all(set(t.symbols) <= set(by_data) for t in routed)
    assert {t.kind for t in routed} == {"bounded"}  # no expert gets more rows than there are


@pytest.mark.parametrize("name", ["gpt", "mlp"])
def test_boundaries_are_those_of_torchs_own_pipelining(name: str) -> None:
    """torch.distributed.pipelining cuts at the same modules: the same bytes go to stage 1."""
    from torch.distributed.pipelining import SplitPoint, pipeline

    where = {"gpt": "blocks.2", "mlp": "hidden.1"}[name]
    model, plan = _plan(name, Pipeline((where,)))
    _, inputs, _ = zoo.FACTORIES[name]()
    pipe = pipeline(model, mb_args=inputs, split_spec={where: SplitPoint.BEGINNING})
    received = [
        node.meta["val"]
        for node in pipe.get_stage_module(1).graph.nodes
        if node.op == "placeholder" and isinstance(node.meta.get("val"), torch.Tensor)
    ]
    sizes = {t.name: (t.dtype, t.size_bytes) for t in plan.tensors}
    forward = [sizes[c.tensor] for c in plan.crossings if c.phase == "forward"]
    expected = [
        (str(value.dtype).removeprefix("torch."), value.nbytes)
        for value in received
        if value.is_floating_point()
    ]
    assert sorted(forward) == sorted(expected)
    # Each comes back as its gradient.
    assert sorted(sizes[c.tensor] for c in plan.crossings if c.phase == "backward") == sorted(
        forward
    )


@pytest.fixture
def fake_group() -> object:
    """Four ranks in one process, of which nothing is ever sent."""
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
    yield dist.group.WORLD
    dist.destroy_process_group()


def test_functional_collectives_are_found_in_both_directions(fake_group: object) -> None:
    plan = analyze(graph_models.Reducing(), (torch.randn(8, 16),), strategy=GraphCollectives(4))
    check_plan(plan)
    assert plan.source == "joint_graph"
    found = [(c.operation, c.phase) for c in plan.crossings]
    assert found == [("all_reduce", "forward"), ("all_reduce", "backward")]
    assert [b.payload_bytes for b in plan.buckets] == [512, 512]
    assert plan.groups[0].ranks == (0, 1, 2, 3)
    arena = plan.arenas[0]
    assert arena.peak_bytes == arena.lower_bound_bytes < arena.naive_bytes


def test_a_tensor_parallel_model_is_captured_whole_without_a_step(fake_group: object) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 16))
    mesh = init_device_mesh("cpu", (4,))
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    calls = []
    model.register_forward_hook(lambda *_: calls.append(torch.compiler.is_compiling()))
    plan = analyze(model, (torch.randn(8, 16),), strategy=GraphCollectives(4))
    check_plan(plan)
    assert plan.source == "joint_graph"
    assert all(calls)  # traced, never run
    assert [(c.operation, c.phase) for c in plan.crossings] == [("all_reduce", "forward")]
    assert [b.payload_bytes for b in plan.buckets] == [8 * 16 * 4]
    assert "whole parameters" in {o.subject for o in plan.omissions}
    gradients = {t.parameter: t.shape for t in plan.tensors if t.role == "gradient"}
    assert gradients == {
        "0.weight": (16, 16),
        "0.bias": (16,),
        "2.weight": (16, 16),
        "2.bias": (16,),
    }
    weight = next(t for t in plan.tensors if t.name == "0.weight")
    assert weight.shape == (16, 16)  # a quarter of it
    assert all(p.grad is None for p in model.parameters())


def test_a_resnet_is_analysed_in_linear_passes() -> None:
    """Of the largest model's analysis torch's capture is the most, whatever the strategy.

    All of it takes less than somebody would wait for who plans a step.
    """
    model, inputs, loss_fn = zoo.resnet50()
    capture_s, graph = cpu_s(lambda: capture(model, inputs, loss_fn=loss_fn))
    assert len(graph.ops) > 1_000
    for strategy in (DataParallel(8), Pipeline(4), ParameterServer(2, 4)):
        passes_s, plan = cpu_s(lambda strategy=strategy: build_plan(graph, strategy))
        check_plan(plan)
        assert passes_s < capture_s, strategy
        assert capture_s + passes_s < 30.0, strategy
