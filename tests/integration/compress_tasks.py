"""Small models that are trained, compressed and judged: what compression is worth."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from roles_plan import Block
from sklearn.datasets import load_digits
from torch import nn

from rdmatensor import compress

DEGREE = 0.9
STEPS = 9
CONTEXT = 32
LICENSE = Path(__file__).parents[2] / "LICENSE"


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
        self.take(images[:1200], labels[:1200], images[1200:], labels[1200:])
        self.begin(make, epochs=15)

    def take(self, x: Any, y: Any, test_x: Any, test_y: Any) -> None:
        self.x, self.y, self.test_x, self.test_y = x, y, test_x, test_y

    def begin(self, make: Callable[[], nn.Module], epochs: int) -> None:
        torch.manual_seed(1)
        self.model = make()
        self.optimizer = torch.optim.Adam(self.model.parameters(), 2e-3)
        for _ in range(epochs):
            self.epoch(self.model)

    def loss(self, model: nn.Module, some: torch.Tensor) -> Any:
        return nn.functional.cross_entropy(model(self.x[some]), self.y[some].flatten())

    def epoch(self, model: nn.Module) -> None:
        order = torch.randperm(len(self.y), generator=torch.Generator().manual_seed(7))
        for some in order.split(64):
            self.optimizer.zero_grad()
            self.loss(model, some).backward()
            self.optimizer.step()

    def evaluate(self, model: nn.Module) -> float:
        with torch.no_grad():
            return float(nn.functional.cross_entropy(model(self.test_x), self.test_y.flatten()))

    def score(self, model: nn.Module) -> None:
        for some in torch.arange(len(self.y)).split(8):  # gradients of large batches cancel
            self.loss(model, some).backward()
        self.optimizer.zero_grad()


class Gpt(nn.Module):
    """A decoder of characters."""

    def __init__(self, characters: int) -> None:
        super().__init__()
        self.enter = nn.Embedding(characters, 64)
        self.places = nn.Parameter(torch.randn(CONTEXT, 64) * 0.1)
        self.blocks = nn.Sequential(Block(64), Block(64))
        self.leave = nn.Linear(64, characters)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        values: torch.Tensor = self.leave(self.blocks(self.enter(tokens) + self.places))
        return values.flatten(0, 1)


class Text(Task):
    """The next character of the license; the last fifth of it is for judging."""

    def __init__(self) -> None:
        text = LICENSE.read_text("utf-8")
        letters = sorted(set(text))
        codes = torch.tensor([letters.index(one) for one in text])
        windows = codes.unfold(0, CONTEXT + 1, 5)
        train, test = windows[: len(windows) * 4 // 5], windows[len(windows) * 4 // 5 :]
        self.take(train[:, :-1], train[:, 1:], test[:, :-1], test[:, 1:])
        self.begin(lambda: Gpt(len(letters)), epochs=10)


def pruned(
    task: Task,
    by: Any,
    step: float,
    epochs: int,
    pace: Any = "even",
    *,
    block: tuple[int, int] = (1, 4),
    what: Any = "*",
) -> float:
    """Return the loss of a copy of the task's model, pruned and retrained."""
    task = copy.deepcopy(task)

    def retrain(model: nn.Module) -> None:
        for _ in range(epochs):
            task.epoch(model)

    policy = compress.Policy(
        compress.Prune(what, by=by, block=block, to=DEGREE),
        process=compress.Progressive(step=step, retrain=retrain, pace=pace),
    )
    compress.run(task.model, policy, task.optimizer, score=task.score, progress=False)
    return task.evaluate(task.model)


def pruned_by_torch(task: Task, block: tuple[int, int] = (1, 4)) -> float:
    """torch.ao.pruning: norms of blocks, a cubic schedule, as many steps and epochs."""
    from torch.ao.pruning import CubicSL, WeightNormSparsifier

    task = copy.deepcopy(task)
    found = [
        {"tensor_fqn": f"{name}.weight"}
        for name, module in task.model.named_modules()
        if isinstance(module, nn.Linear)
    ]
    sparsifier = WeightNormSparsifier(DEGREE, block, block[0] * block[1])
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
