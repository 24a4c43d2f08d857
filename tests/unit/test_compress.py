"""The compression tool in one process: rules, masks, points, rounds, exports, and wrong input."""

from __future__ import annotations

import copy
import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from rdmatensor import compress
from rdmatensor.compress import masks, sizes
from rdmatensor.compress.sensitivity import allocate
from rdmatensor.errors import InvalidArgumentError


def two_layers(seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8))


def problem(seed: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(256, 16, generator=generator)
    return inputs, torch.randn(16, 8, generator=generator).T @ inputs.T


def loss_of(model: nn.Module) -> Any:
    inputs, wanted = problem()
    return (model(inputs) - wanted.T).square().mean()


def evaluate(model: nn.Module) -> float:
    return float(loss_of(model).item())


class Training:
    def __init__(self, model: nn.Module, steps: int = 10) -> None:
        self.optimizer = torch.optim.Adam(model.parameters(), 1e-2)
        self.steps = steps

    def __call__(self, model: nn.Module) -> None:
        for _ in range(self.steps):
            self.optimizer.zero_grad()
            loss_of(model).backward()
            self.optimizer.step()


def test_a_cluster_moves_by_the_mean_of_its_members_gradients() -> None:
    model: Any = nn.Sequential(nn.Linear(4, 4, bias=False))
    compress.run(model, compress.Policy(compress.Quantize("0", "clustered", 2)))
    weight = model[0].weight
    assert len(weight.unique()) <= 4
    factor = torch.randn(4, 4)
    loss: Any = (weight * factor).sum()
    loss.backward()
    original = dict(model.named_parameters())["0.weight"]
    for value in weight.unique():
        members = weight == value
        assert original.grad is not None
        assert torch.allclose(original.grad[members], factor[members].mean().expand(members.sum()))


@pytest.mark.parametrize("by", ["near_zero", "contribution"])
def test_rounds_prune_step_by_step_and_training_moves_no_masked_weight(by: Any) -> None:
    model = two_layers()
    train = Training(model)
    train(model)
    before = evaluate(model)
    policy = compress.Policy(
        compress.Prune("*", by=by, block=(1, 4), to=0.5),
        process=compress.Progressive(step=0.25, retrain=train),
    )
    result = compress.run(
        model, policy, train.optimizer, evaluate=evaluate, score=lambda m: loss_of(m).backward()
    )
    assert [entry.degrees["0.weight"] for entry in result.history] == [0.25, 0.5]
    assert all(entry.is_accepted for entry in result.history)
    for name, layer in (("0.weight", model[0]), ("2.weight", model[2])):
        assert (layer.weight == 0).float().mean() >= 0.5
        assert float(result.masks[name].float().mean()) == 0.5
        dead = layer.weight == 0
        state = train.optimizer.state[dict(model.named_parameters())[name]]
        assert (state["exp_avg"][dead] == 0).all()
    assert result.base == pytest.approx(before)
    assert set(map(id, model.parameters())) == {
        id(one) for group in train.optimizer.param_groups for one in group["params"]
    }


def test_a_refused_round_is_undone_to_the_bit_and_the_step_halves() -> None:
    model = two_layers()
    train = Training(model)
    train(model)
    weights = copy.deepcopy(model.state_dict())
    state = copy.deepcopy(train.optimizer.state_dict())
    policy = compress.Policy(
        compress.Prune("*", to=0.9),
        process=compress.Progressive(step=0.4, retrain=train, accept=lambda _: False, least=0.1),
    )
    result = compress.run(model, policy, train.optimizer, evaluate=evaluate)
    assert [entry.degrees["0.weight"] for entry in result.history] == [0.4, 0.2, 0.1]
    assert not any(entry.is_accepted for entry in result.history)
    assert result.masks == {}
    after = model.state_dict()
    assert after.keys() == weights.keys()
    assert all(torch.equal(after[name], weights[name]) for name in weights)
    again = train.optimizer.state_dict()
    for key, entries in state["state"].items():
        assert all(torch.equal(again["state"][key][name], value) for name, value in entries.items())


def test_an_exception_in_a_round_undoes_it() -> None:
    model = two_layers()
    weights = copy.deepcopy(model.state_dict())

    def retrain(_: nn.Module) -> None:
        with torch.no_grad():
            model[0]._parameters["weight"].add_(1.0)
        raise KeyError("data")

    policy = compress.Policy(
        compress.Prune("0", to=0.5), process=compress.Progressive(retrain=retrain)
    )
    with pytest.raises(KeyError, match="data"):
        compress.run(model, policy)
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())


def test_a_loss_limit_decides_without_accept() -> None:
    model = two_layers()
    train = Training(model, 60)
    train(model)
    policy = compress.Policy(compress.Prune("*", to=0.95), total=compress.Target(loss_at_most=1.5))
    result = compress.run(model, policy, evaluate=evaluate)
    assert result.base is not None
    kept = [entry for entry in result.history if entry.is_accepted]
    undone = [entry for entry in result.history if not entry.is_accepted]
    assert kept
    assert undone
    assert all(entry.loss is not None and entry.loss <= 1.5 * result.base for entry in kept)
    assert evaluate(model) == pytest.approx(kept[-1].loss)


def mixed(kind: str) -> tuple[Any, compress.Result]:
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.Linear(64, 64))
    rules: list[Any] = [
        compress.Prune("0", block=(2, 8), to=0.75),
        compress.Quantize("0", "clustered", 3),
        compress.Quantize("2", "uniform", 5, group=24),
        compress.Prune("3", block=(8, 8), to=0.5),
    ]
    if kind == "bsr":
        del rules[1]
    return model, compress.run(model, compress.Policy(*rules))


@pytest.mark.parametrize("kind", ["dense", "bsr", "codebook"])
def test_what_is_exported_loads_and_computes_the_same_bits(kind: str, tmp_path: Path) -> None:
    model, result = mixed(kind)
    torch.save(result.export(kind), tmp_path / "small.pt")
    other = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.Linear(64, 64))
    compress.load(other, torch.load(tmp_path / "small.pt", weights_only=True))
    x = torch.randn(32, 64)
    assert torch.equal(other(x), model(x))
    for name, value in other.state_dict().items():
        module, attribute = name.rsplit(".", 1)
        assert torch.equal(value, getattr(model.get_submodule(module), attribute))


def test_a_codebook_takes_the_bytes_that_were_promised() -> None:
    _, result = mixed("codebook")

    def tensors(value: object) -> int:
        if isinstance(value, torch.Tensor):
            return value.numel() * value.element_size()
        return sum(map(tensors, value.values())) if isinstance(value, dict) else 0

    assert tensors(result.export("codebook")["state"]) == pytest.approx(result.size_bytes, rel=0.02)
    assert result.size_bytes < 0.55 * result.dense_bytes


def test_shared_weights_are_compressed_once_for_all_owners() -> None:
    model: Any = nn.Sequential(nn.Embedding(12, 8), nn.Linear(8, 12, bias=False))
    model[1].weight = model[0].weight
    result = compress.run(model, compress.Policy(compress.Prune("0", to=0.5)))
    assert len(result.items) == 1
    assert torch.equal(model[0].weight, model[1].weight)
    assert (model[1].weight == 0).float().mean() == 0.5
    other: Any = nn.Sequential(nn.Embedding(12, 8), nn.Linear(8, 12, bias=False))
    other[1].weight = other[0].weight
    compress.load(other, result.export("codebook"))
    assert torch.equal(other[1].weight, model[1].weight)


def test_a_checkpoint_of_a_compressed_model_goes_on() -> None:
    policy = compress.Policy(compress.Prune("*", to=0.5), compress.Quantize("*", bits=4))
    model = two_layers()
    compress.run(model, policy)
    other = two_layers(seed=9)
    compress.run(other, policy)
    other.load_state_dict(model.state_dict())
    inputs, _ = problem()
    assert torch.equal(other(inputs), model(inputs))


def test_a_copy_and_a_pickle_of_a_compressed_model_are_compressed(tmp_path: Path) -> None:
    model, _ = mixed("codebook")
    x = torch.randn(8, 64)
    torch.save(model, tmp_path / "model.pt")
    for other in (copy.deepcopy(model), torch.load(tmp_path / "model.pt", weights_only=False)):
        assert torch.equal(other(x), model(x))
        assert isinstance(other[0], nn.Linear)
        with torch.no_grad():
            dict(other.named_parameters())["0.weight"].zero_()
        assert (other[0].weight == 0).all()
        assert not (model[0].weight == 0).all()


def test_a_compressed_module_is_as_before_once_nothing_is_left() -> None:
    model = two_layers()
    names = list(model.state_dict())
    result = compress.run(model, compress.Policy(compress.Prune("0", to=0.5)))
    assert set(names) < set(model.state_dict())
    masks.remove(result.items[0], (masks.Masked,))
    assert list(model.state_dict()) == names
    assert type(model[0]) is nn.Linear


def test_sensitivity_leaves_no_trace_and_is_cached(tmp_path: Path) -> None:
    model = two_layers()
    weights, calls = copy.deepcopy(model.state_dict()), []

    def counted(one: nn.Module) -> float:
        calls.append(1)
        return evaluate(one)

    policy = compress.Policy(compress.Prune("*"), compress.Quantize("2", bits=2))
    cache = tmp_path / "curve.json"
    curve = compress.sensitivity(model, policy, counted, cache=cache, progress=False)
    assert len(calls) == 1 + 2 * 5 + 1
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    assert set(curve.pruned) == {"0.weight", "2.weight"}
    assert set(curve.quantized) == {"2.weight"}
    assert compress.sensitivity(model, policy, counted, cache=cache, progress=False) == curve
    assert len(calls) == 12
    with torch.no_grad():
        model[0].weight.add_(0.1)
    compress.sensitivity(model, policy, counted, cache=cache, progress=False)
    assert len(calls) == 24
    curve.picture(tmp_path / "curve.svg")
    assert (tmp_path / "curve.svg").stat().st_size > 1000
    cache.write_text(cache.read_text()[:-20])
    with pytest.raises(InvalidArgumentError, match=r"curve\.json is not a sensitivity curve"):
        compress.sensitivity(model, policy, counted, cache=cache, progress=False)


@given(seed=st.integers(0, 200), share=st.floats(0.15, 1.0))
@settings(max_examples=40, deadline=None)
def test_allocation_is_as_good_as_trying_everything(seed: int, share: float) -> None:
    generator = np.random.default_rng(seed)
    model = nn.Sequential(*(nn.Linear(int(generator.integers(4, 40)), 16) for _ in range(3)))
    policy = compress.Policy(compress.Prune("*"), total=compress.Target(bytes=share))
    items = policy.items(model)
    degrees = (0.5, 0.7, 0.8, 0.9, 0.95)
    pruned = {
        item.name: dict(zip(degrees, np.sort(generator.random(5)).tolist(), strict=True))
        for item in items
    }
    curve = compress.Curve(0.0, pruned, {}, "")
    rest = sizes.dense_bytes(model) - sum(item.tensor.numel() * 4 for item in items)
    limit = int(share * sizes.dense_bytes(model)) - rest

    def cost(chosen: tuple[float, ...]) -> int:
        return sum(
            sizes.item_bytes(item, degree, is_quantized=True)
            for item, degree in zip(items, chosen, strict=True)
        )

    def rise(chosen: tuple[float, ...]) -> Any:
        return sum(
            pruned[item.name].get(degree, 0.0) for item, degree in zip(items, chosen, strict=True)
        )

    fitting = [c for c in itertools.product((0.0, *degrees), repeat=3) if cost(c) <= limit]
    if not fitting:
        with pytest.raises(InvalidArgumentError, match="cannot be reached"):
            allocate(model, items, policy, curve)
        return
    chosen = allocate(model, items, policy, curve)
    mine = tuple(chosen[item.name] for item in items)
    assert cost(mine) <= limit
    near = min(rise(c) for c in fitting if cost(c) <= limit * (1 - 3 / 2000) or c == mine)
    assert rise(mine) <= near + 1e-12  # bins round the bytes of each tensor up


def test_the_table_names_tensors_rounds_and_what_is_not_faster() -> None:
    _, result = mixed("codebook")
    text = result.table()
    assert "0.weight" in text
    assert "clustered 3" in text
    assert "no time" in text
    assert f"{result.size_bytes} of {result.dense_bytes} bytes" in text


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.rnn = nn.LSTM(4, 4)


WRONG: list[tuple[str, Any, str]] = [
    ("nothing matches", lambda: compress.Policy(compress.Prune("conv*")), "matches no parameter"),
    (
        "two rules",
        lambda: compress.Policy(compress.Prune("fc", to=0.5), compress.Prune(nn.Linear, to=0.1)),
        "fc.weight has two rules",
    ),
    (
        "LSTM",
        lambda: compress.Policy(compress.Prune("rnn", to=0.5)),
        "LSTM reads weight_ih_l0 past",
    ),
    ("no curve", lambda: compress.Policy(compress.Prune("fc")), 'to="auto": give curve'),
    (
        "no loss",
        lambda: compress.Policy(
            compress.Prune("fc", to=0.5), total=compress.Target(loss_at_most=1.0)
        ),
        "needs evaluate=",
    ),
    (
        "no score",
        lambda: compress.Policy(compress.Prune("fc", by="contribution", to=0.5)),
        "needs score=",
    ),
    ("degree", lambda: compress.Prune("fc", to=1.5), "not from 0 to 1"),
    ("block", lambda: compress.Prune("fc", block=(0, 1)), "not two positive numbers"),
    ("bits", lambda: compress.Quantize("fc", bits=9), "not from 2 to 8"),
    ("group", lambda: compress.Quantize("fc", "clustered", 4, group=8), "must be None"),
    ("empty", compress.Policy, "at least one"),
]


@pytest.mark.parametrize(("make", "words"), [w[1:] for w in WRONG], ids=[w[0] for w in WRONG])
def test_wrong_input_is_refused_before_anything_changes(make: Any, words: str) -> None:
    model = Two()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(InvalidArgumentError, match=words):
        compress.run(model, make())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_weights_that_are_not_finite_are_named() -> None:
    model = two_layers()
    with torch.no_grad():
        model[2].weight[0, :3] = math.nan
    with pytest.raises(InvalidArgumentError, match=r"2\.weight has 3 values that are NaN"):
        compress.run(model, compress.Policy(compress.Prune("*", to=0.5)))


def test_a_target_out_of_reach_says_what_is_on_offer() -> None:
    model = two_layers()
    policy = compress.Policy(compress.Prune("0"), total=compress.Target(bytes=0.1))
    curve = compress.sensitivity(model, policy, evaluate, progress=False)
    with pytest.raises(InvalidArgumentError, match=r"cannot be reached.*0\.\d+ of the dense model"):
        compress.run(model, policy, curve=curve)


def test_an_export_that_cannot_hold_a_tensor_names_it() -> None:
    model = two_layers()
    result = compress.run(model, compress.Policy(compress.Prune("0", block=(3, 5), to=0.5)))
    with pytest.raises(InvalidArgumentError, match=r"0\.weight of shape \(32, 16\)"):
        result.export("bsr")
    with pytest.raises(InvalidArgumentError, match="expected one of dense"):
        result.export("onnx")


def test_damaged_data_is_refused_by_name() -> None:
    model = two_layers()
    small = compress.run(model, compress.Policy(compress.Quantize("0", bits=4))).export("codebook")
    broken = copy.deepcopy(small)
    del broken["state"]["0.weight"]["codes"]
    with pytest.raises(InvalidArgumentError, match=r"0\.weight is damaged"):
        compress.load(two_layers(), broken)
    with pytest.raises(InvalidArgumentError, match="version 9"):
        compress.load(two_layers(), {**small, "version": 9})
