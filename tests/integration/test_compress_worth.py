"""What the compression tool is worth on small models, compared with torch and torchao."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

from rdmatensor import compress

DEGREE = 0.9
BLOCK = (1, 4)
STEPS = 9


class Rows(nn.Module):
    """A transformer that reads an image row by row."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(8, 32)
        self.places = nn.Parameter(torch.randn(8, 32) * 0.1)
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.leave = nn.Linear(32, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        values: torch.Tensor = self.leave(
            self.blocks(self.enter(images[:, 0]) + self.places).mean(1)
        )
        return values


def cnn() -> nn.Module:
    features = (nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1))
    head = (nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(512, 64), nn.ReLU())
    return nn.Sequential(*features, *head, nn.Linear(64, 10))


def mlp() -> nn.Module:
    hidden = (nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU())
    return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(64, 10))


MODELS: dict[str, Callable[[], nn.Module]] = {"cnn": cnn, "mlp": mlp, "rows": Rows}


class Task:
    """A trained model, and how it is trained on and judged."""

    def __init__(self, make: Callable[[], nn.Module]) -> None:
        found: Any = load_digits()
        order = torch.randperm(len(found.target), generator=torch.Generator().manual_seed(0))
        images = torch.tensor(found.images, dtype=torch.float32)[:, None][order] / 16
        labels = torch.tensor(found.target)[order]
        self.x, self.y, self.test_x, self.test_y = (
            *(images[:1200], labels[:1200]),
            *(images[1200:], labels[1200:]),
        )
        torch.manual_seed(1)
        self.model = make()
        self.optimizer = torch.optim.Adam(self.model.parameters(), 2e-3)
        for _ in range(15):
            self.epoch(self.model)

    def loss(self, model: nn.Module, some: torch.Tensor) -> Any:
        return nn.functional.cross_entropy(model(self.x[some]), self.y[some])

    def epoch(self, model: nn.Module) -> None:
        order = torch.randperm(len(self.y), generator=torch.Generator().manual_seed(7))
        for some in order.split(64):
            self.optimizer.zero_grad()
            self.loss(model, some).backward()
            self.optimizer.step()

    def evaluate(self, model: nn.Module) -> float:
        with torch.no_grad():
            return float(nn.functional.cross_entropy(model(self.test_x), self.test_y))

    def score(self, model: nn.Module) -> None:
        for some in torch.arange(len(self.y)).split(8):  # gradients of large batches cancel
            self.loss(model, some).backward()
        self.optimizer.zero_grad()


@pytest.fixture(scope="module")
def tasks() -> dict[str, Task]:
    torch.set_num_threads(1)
    return {name: Task(make) for name, make in MODELS.items()}


def pruned(task: Task, by: Any, step: float, epochs: int, pace: Any = "even") -> float:
    """Return the loss of a copy of the task's model, pruned and retrained."""
    task = copy.deepcopy(task)

    def retrain(model: nn.Module) -> None:
        for _ in range(epochs):
            task.epoch(model)

    policy = compress.Policy(
        compress.Prune("*", by=by, block=BLOCK, to=DEGREE),
        process=compress.Progressive(step=step, retrain=retrain, pace=pace),
    )
    compress.run(task.model, policy, task.optimizer, score=task.score, progress=False)
    return task.evaluate(task.model)


def pruned_by_torch(task: Task) -> float:
    """torch.ao.pruning: norms of blocks, a cubic schedule, as many steps and epochs."""
    from torch.ao.pruning import CubicSL, WeightNormSparsifier

    task = copy.deepcopy(task)
    found = [
        {"tensor_fqn": f"{name}.weight"}
        for name, module in task.model.named_modules()
        if isinstance(module, nn.Linear)
    ]
    sparsifier = WeightNormSparsifier(DEGREE, BLOCK, BLOCK[0] * BLOCK[1])
    sparsifier.prepare(task.model, found)
    schedule = CubicSL(sparsifier, init_sl=0.0, init_t=0, delta_t=1, total_t=STEPS - 1)
    for _ in range(STEPS):
        sparsifier.step()
        task.epoch(task.model)
        schedule.step()
    zeros = [
        float((module.weight == 0).float().mean())
        for module in task.model.modules()
        if isinstance(module, nn.Linear)
    ]
    assert min(zeros) > DEGREE - 0.02
    return task.evaluate(task.model)


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_steps_and_contributions_are_worth_their_time(tasks: dict[str, Task]) -> None:
    """Ten per cent at a time beats all at once; contributions are no worse in two of three."""
    found = {
        name: {
            "near_zero": pruned(task, "near_zero", 0.1, 1),
            "contribution": pruned(task, "contribution", 0.1, 1),
            "at once": pruned(task, "contribution", 1.0, STEPS),
        }
        for name, task in tasks.items()
    }
    better = [one["contribution"] <= one["near_zero"] for one in found.values()]
    assert sum(better) >= 2, found
    steps = [one["contribution"] <= one["at once"] for one in found.values()]
    assert sum(steps) >= 2, found


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_the_loss_is_not_above_torch_s_own_pruning(tasks: dict[str, Task]) -> None:
    """Of linear layers: torch's blocks are not of convolutions."""
    theirs = pruned_by_torch(tasks["mlp"])
    assert pruned(tasks["mlp"], "near_zero", 0.1, 1, "cubic") <= 1.05 * theirs


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", MODELS)
def test_chosen_degrees_lose_less_than_equal_ones(tasks: dict[str, Task], name: str) -> None:
    equal = copy.deepcopy(tasks[name])
    one = compress.Policy(compress.Prune("*", block=BLOCK, to=0.7))
    flat = compress.run(equal.model, one, progress=False)
    chosen = copy.deepcopy(tasks[name])
    share = flat.size_bytes / flat.dense_bytes
    policy = compress.Policy(compress.Prune("*", block=BLOCK), total=compress.Target(bytes=share))
    curve = compress.sensitivity(chosen.model, policy, chosen.evaluate, progress=False)
    result = compress.run(chosen.model, policy, curve=curve, progress=False)
    assert result.size_bytes <= flat.size_bytes
    assert chosen.evaluate(chosen.model) < equal.evaluate(equal.model)


def test_eight_bits_are_as_near_as_torchao_s() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 64))
    x = torch.randn(512, 256)
    dense = model(x).detach()
    result = compress.run(model, compress.Policy(compress.Quantize(nn.Linear, bits=8)))
    mine = (model(x).detach() - dense).norm() / dense.norm()
    exported = result.export("torchao")
    theirs = (exported(x).detach() - dense).norm() / dense.norm()
    assert "Int8" in type(exported[0].weight).__name__ or hasattr(exported[0].weight, "qdata")
    assert 0 < float(mine) <= 1.1 * float(theirs)


def test_pruned_weights_stay_zero_in_torchao_s_layers() -> None:
    torch.manual_seed(0)
    model: Any = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
    rules = (compress.Prune("0", to=0.5), compress.Quantize("0", bits=8, group=32))
    exported = compress.run(model, compress.Policy(*rules)).export("torchao")
    weight = exported[0].weight.dequantize()
    assert (weight == 0).float().mean() >= 0.5
    assert type(model[0]).__name__ == "Linear"
    assert torch.equal(exported[1].weight, model[1].weight)
