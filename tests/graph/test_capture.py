"""Real models: every fact that a plan states is compared with a step that really runs."""

import pytest

torch = pytest.importorskip("torch")
import naive  # noqa: E402
from graph_models import (  # noqa: E402  needs torch
    Branching,
    Breaking,
    Mixed,
    PartlyUsed,
    Selecting,
    cnn,
    lstm,
    mlp,
    transformer,
)
from torch import nn  # noqa: E402

from graph_analysis import (  # noqa: E402
    ArgumentError,
    DataParallel,
    ParameterServer,
    Pipeline,
    TransferPlan,
    analyze,
    build_plan,
    plan_to_json,
)
from graph_analysis.capture import capture  # noqa: E402
from graph_analysis.liveness import lifetimes  # noqa: E402
from graph_analysis.plan import PlannedTensor  # noqa: E402
from graph_analysis.plan_check import check_plan  # noqa: E402

pytestmark = pytest.mark.timeout(600)

_PHASES = ("setup", "forward", "backward")
FACTORIES = {"mlp": mlp, "cnn": cnn, "lstm": lstm, "transformer": transformer}


def _dim(name: str, **bounds: int) -> object:
    return torch.export.Dim(name, **bounds)


def _analyze(name: str, **options: object) -> tuple[nn.Module, TransferPlan, list[str]]:
    """Model, its plan, and the parameters in the order in which a real backward finished them."""
    torch.manual_seed(7)
    model, inputs, *rest = FACTORIES[name]()
    loss_fn = rest[0] if rest else None
    plan = analyze(model, inputs, loss_fn=loss_fn, strategy=DataParallel(2), **options)
    finished: list[str] = []
    for key, parameter in model.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda _, key=key: finished.append(key))
    output = model(*inputs)
    (loss_fn(output, *inputs) if loss_fn else output.sum()).backward()
    return model, plan, finished


def _by_role(plan: TransferPlan, role: str) -> list[PlannedTensor]:
    return [t for t in plan.tensors if t.role == role]


def _order(plan: TransferPlan) -> list[str | None]:
    gradients = sorted(_by_role(plan, "gradient"), key=lambda t: t.ready_order or 0)
    return [t.parameter for t in gradients]


def _operation(parameter: str) -> str:
    """Parameters whose gradients one operation of autograd makes together, as one name."""
    return (
        parameter.rpartition(".")[0] if parameter.startswith(("0.", "1.", "lstm.")) else parameter
    )


@pytest.mark.parametrize("name", FACTORIES)
def test_plan_agrees_with_a_real_step(name: str) -> None:
    model, plan, finished = _analyze(name)
    check_plan(plan)
    assert plan.source == "joint_graph"
    assert plan.omissions == ()
    named = dict(model.named_parameters())
    for tensor in _by_role(plan, "gradient"):
        gradient = named[str(tensor.parameter)].grad
        assert tensor.shape == tuple(gradient.shape)
        assert tensor.size_bytes == gradient.untyped_storage().nbytes()
        assert tensor.dtype == str(gradient.dtype).removeprefix("torch.")
    assert {t.name for t in _by_role(plan, "parameter")} == set(named)
    buffers = dict(model.named_buffers())
    assert {t.name: t.shape for t in _by_role(plan, "buffer")} == {
        key: tuple(buffer.shape) for key, buffer in buffers.items()
    }
    planned = [_operation(str(key)) for key in _order(plan)]
    assert planned == [_operation(key) for key in finished]
    assert sorted(map(str, _order(plan))) == sorted(finished)
    reduced = [c.tensor for c in plan.crossings if c.operation == "all_reduce"]
    assert sorted(reduced) == sorted(f"{key}.grad" for key in finished)
    payload = sum(b.payload_bytes for b in plan.buckets if b.operation == "all_reduce")
    assert payload == sum(p.grad.nbytes for p in named.values())


@pytest.mark.parametrize("name", FACTORIES)
def test_naive_checkers_agree_on_real_models(name: str) -> None:
    model, inputs, *rest = FACTORIES[name]()
    graph = capture(model, inputs, loss_fn=rest[0] if rest else None)
    assert lifetimes(graph) == naive.lifetimes(graph)
    for strategy in (DataParallel(3), Pipeline(2), ParameterServer(2, 2)):
        plan = build_plan(graph, strategy)
        assert any(arena.placements for arena in plan.arenas), strategy
        naive.check_arenas(plan)


def test_loss_is_told_apart() -> None:
    _, plan, _ = _analyze("transformer")
    assert (plan.loss, len(_by_role(plan, "loss"))) == ("loss_fn", 1)
    _, plan, _ = _analyze("mlp")
    assert (plan.loss, len(_by_role(plan, "loss"))) == ("output_sum", 1)


def test_same_model_gives_the_same_bytes() -> None:
    texts = {plan_to_json(_analyze("cnn")[1]) for _ in range(2)}
    assert len(texts) == 1


def test_transformer_with_dynamic_batch_and_sequence() -> None:
    bounds = {0: _dim("batch", min=1, max=64), 1: _dim("seq", min=4, max=128)}
    _, plan, _ = _analyze("transformer", dynamic_shapes={"tokens": bounds})
    assert [(s.name, s.source, s.dim, s.upper) for s in plan.symbols] == [
        ("batch", "tokens", 0, 64),
        ("seq", "tokens", 1, 128),
    ]
    tokens = next(t for t in plan.tensors if t.role == "input")
    assert (tokens.shape, tokens.kind, tokens.max_bytes) == (
        ("batch", "seq"),
        "bounded",
        8 * 64 * 128,
    )
    assert tokens.inputs == ("tokens, dimension 0", "tokens, dimension 1")
    rows = [t.symbols for t in plan.tensors if t.shape and t.shape[0] == "batch*seq"]
    assert len(rows) > 5
    assert set(rows) == {("batch", "seq")}
    scores = [t for t in plan.tensors if t.shape == ("batch", 2, "seq", "seq")]
    assert scores
    assert all(t.max_bytes == t.item_bytes * 64 * 2 * 128 * 128 for t in scores)
    assert {t.kind for t in plan.tensors if t.role in ("parameter", "gradient")} == {"static"}
    assert all(t.kind == "bounded" for t in plan.tensors if t.symbols)


def test_symbolic_shapes_are_right_at_other_sizes() -> None:
    """Evaluated at batch 5, the dynamic plan's shapes are those of a plan captured with 5."""
    model, _ = cnn()
    dynamic = analyze(
        model,
        (torch.randn(2, 1, 8, 8),),
        strategy=DataParallel(2),
        dynamic_shapes=({0: _dim("batch")},),
    )
    fixed = analyze(model, (torch.randn(5, 1, 8, 8),), strategy=DataParallel(2))
    evaluated = [
        tuple(eval(d, {}, {"batch": 5}) if isinstance(d, str) else d for d in t.shape)
        for t in dynamic.tensors
    ]
    # By position: names of operations shift with the sizes that are computed in between.
    assert evaluated == [t.shape for t in fixed.tensors]
    unbounded = [t for t in dynamic.tensors if t.symbols]
    assert unbounded
    assert {t.kind for t in unbounded} == {"dynamic"}
    assert {t.max_bytes for t in unbounded} == {None}


def test_batch_norm_state_is_broadcast_and_written_in_place() -> None:
    _, plan, _ = _analyze("cnn")
    state = ["1.running_mean", "1.running_var", "1.num_batches_tracked"]
    forward = [c.tensor for c in plan.crossings if c.phase == "forward"]
    assert forward == state
    assert {(t.name, t.last_use) for t in _by_role(plan, "buffer")} == {
        (name, plan.op_count) for name in state
    }
    # No second tensor with the updated value: three float32[4] belong to batch norm's saved
    # mean and inverse deviation and to nothing else before the loss.
    made = [t for t in _by_role(plan, "activation") if t.shape == (4,)]
    assert len(made) == 2


def test_tied_weights_are_one_tensor() -> None:
    _, plan, finished = _analyze("transformer")
    names = [t.name for t in _by_role(plan, "parameter")]
    assert "embedding.weight" in names
    assert "head.weight" not in names
    assert finished.count("embedding.weight") == 1
    assert _order(plan)[-1] == "embedding.weight"  # the embedding's part comes last


def test_size_that_only_data_decides_names_the_operation() -> None:
    plan = analyze(Selecting(), (torch.randn(3, 4),), strategy=DataParallel(2))
    assert plan.source == "joint_graph"
    rows = next(s for s in plan.symbols if s.dim is None)
    assert rows.upper == 3
    chosen = next(t for t in plan.tensors if t.symbols)
    assert (chosen.kind, chosen.max_bytes, chosen.inputs) == ("bounded", 48, (rows.source,))
    assert chosen.producer == rows.source


def test_idle_and_frozen_parameters() -> None:
    model = PartlyUsed()
    plan = analyze(model, (torch.randn(3, 4),), strategy=DataParallel(2))
    assert plan.source == "joint_graph"
    assert sorted(map(str, _order(plan))) == ["used.bias", "used.weight"]
    assert [o.subject for o in plan.omissions] == [
        "gradient of idle.bias",
        "gradient of idle.weight",
    ]
    assert len(_by_role(plan, "parameter")) == 6
    assert len([c for c in plan.crossings if c.phase == "setup"]) == 6
    assert model.idle.weight.requires_grad


def test_sparse_gradient_is_left_out_with_a_reason() -> None:
    model = nn.Sequential(nn.Embedding(10, 4, sparse=True), nn.Linear(4, 2))
    plan = analyze(model, (torch.randint(0, 10, (3,)),), strategy=DataParallel(2))
    assert sorted(map(str, _order(plan))) == ["1.bias", "1.weight"]
    assert [(o.subject, "sparse" in o.reason) for o in plan.omissions] == [
        ("gradient of 0.weight", True)
    ]


@pytest.mark.parametrize(
    ("model", "inputs", "shapes", "reason"),
    [
        (Branching(), (torch.ones(3, 4),), None, "data-dependent"),
        (Breaking("item"), (torch.ones(3, 4),), None, "data-dependent"),
        (Breaking("numpy"), (torch.ones(3, 4),), None, ".numpy() is not supported"),
        (lstm()[0], lstm()[1], ({1: _dim("time", max=64)},), "Constraints violated"),
        (mlp()[0], (torch.ones(3, 5),), None, "same reduction dim"),
    ],
    ids=["control-flow", "value", "numpy", "unrolled-time", "inputs-that-do-not-fit"],
)
def test_what_torch_refuses_still_gets_a_plan_of_the_certain(
    model: nn.Module, inputs: tuple[object, ...], shapes: object, reason: str
) -> None:
    plan = analyze(model, inputs, strategy=DataParallel(2), dynamic_shapes=shapes)
    check_plan(plan)
    assert plan.source == "module"
    assert reason in plan.omissions[0].reason
    assert {o.subject for o in plan.omissions} >= {"order of gradients", "use of parameters"}
    names = [name for name, _ in model.named_parameters()]
    assert _order(plan) == names[::-1]
    assert [t.name for t in _by_role(plan, "buffer")] == [n for n, _ in model.named_buffers()]
    assert _by_role(plan, "activation") == []
    # All of the model crosses as it does with a graph: at set-up, and in each step.
    held = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    sent = {phase: [c.tensor for c in plan.crossings if c.phase == phase] for phase in _PHASES}
    assert sorted(sent["setup"]) == sorted(held)
    assert sent["forward"] == [name for name, _ in model.named_buffers()]
    assert sorted(sent["backward"]) == sorted(f"{name}.grad" for name in names)
    sizes = {t.name: t.size_bytes for t in plan.tensors}
    assert {name: sizes[name] for name in held} == {name: held[name].nbytes for name in held}
    assert {name: sizes[f"{name}.grad"] for name in names} == {n: held[n].nbytes for n in names}
    again = analyze(model, inputs, strategy=DataParallel(2), dynamic_shapes=shapes)
    assert plan_to_json(again) == plan_to_json(plan)


def test_a_break_that_is_only_the_compiler_s_loses_nothing() -> None:
    model = Breaking("request")
    plan = analyze(model, (torch.ones(3, 4),), strategy=DataParallel(2))
    assert (plan.source, plan.omissions) == ("joint_graph", ())
    assert _order(plan)[0] in {"second.weight", "second.bias"}


def test_nested_inputs_and_plain_values() -> None:
    batch = {"x": torch.randn(3, 4), "y": torch.randn(3, 4)}
    plan = analyze(Mixed(), (batch, 2.0, None), strategy=DataParallel(2))
    assert plan.source == "joint_graph"
    assert [t.name for t in _by_role(plan, "input")] == ["batch['x']", "batch['y']"]


def test_the_model_is_left_as_it_was() -> None:
    model, inputs = cnn()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    parameters = [id(p) for p in model.parameters()]
    analyze(model, inputs, strategy=DataParallel(2))
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert [id(p) for p in model.parameters()] == parameters
    assert model.training
    assert all(p.grad is None for p in model.parameters())
    model(*inputs).sum().backward()


def test_lstm_still_runs_after_capture() -> None:
    """nn.LSTM keeps a list of its weights next to the parameters; capture must not spoil it."""
    model, inputs = lstm()
    expected = model(*inputs)
    analyze(model, inputs, strategy=DataParallel(2))
    assert torch.equal(model(*inputs), expected)


def test_eval_mode_is_mentioned() -> None:
    model, inputs = mlp()
    plan = analyze(model.eval(), inputs, strategy=DataParallel(2))
    assert [o.subject for o in plan.omissions] == ["training mode"]


def test_one_rank_sends_nothing() -> None:
    model, inputs = mlp()
    plan = analyze(model, inputs, strategy=DataParallel(1))
    assert (plan.crossings, plan.buckets, plan.arenas[0].peak_bytes) == ((), (), 0)


@pytest.mark.parametrize(
    ("inputs", "shapes"),
    [
        (torch.ones(3, 4), None),
        ((torch.ones(3, 4),) * 2, None),
        ((torch.ones(3, 4),), ()),
        ((torch.ones(3, 4),), {"nothing": {}}),
    ],
    ids=["a-bare-tensor", "too-many", "too-few-shapes", "unknown-name"],
)
def test_arguments_are_checked(inputs: object, shapes: object) -> None:
    with pytest.raises(ArgumentError):
        analyze(mlp()[0], inputs, strategy=DataParallel(2), dynamic_shapes=shapes)


def test_model_must_be_a_module() -> None:
    with pytest.raises(ArgumentError, match="Module"):
        analyze(lambda x: x, (), strategy=DataParallel(2))
