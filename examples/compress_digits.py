"""Compress a small CNN to a tenth of its bytes, on the 8x8 digits of scikit-learn.

python examples/compress_digits.py --out build/compress
torchrun --nproc-per-node 2 examples/compress_digits.py     two processes get the same model
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn

from rdmatensor import compress


def make_model() -> nn.Module:
    """Return a CNN whose weights are mostly in one Linear layer."""
    torch.manual_seed(0)
    features = (nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1))
    head = (nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(512, 128), nn.ReLU())
    return nn.Sequential(*features, *head, nn.Linear(128, 10))


def digits() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return images and labels to train with, then those to test with."""
    found: Any = load_digits()
    images = torch.tensor(found.images, dtype=torch.float32)[:, None] / 16
    labels = torch.tensor(found.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    train, test = order[:1400], order[1400:]
    return images[train], labels[train], images[test], labels[test]


class Task:
    """The model, its images, and how it is trained, judged and scored."""

    def __init__(self, rank: int, world: int) -> None:
        x, y, self.test_x, self.test_y = digits()
        self.x, self.y = x[rank::world], y[rank::world]
        self.net = make_model()
        self.model = self.net if world == 1 else nn.parallel.DistributedDataParallel(self.net)
        self.optimizer = torch.optim.Adam(self.model.parameters(), 2e-3)

    def train(self, model: nn.Module, epochs: int = 2) -> None:
        """Train as before compression; what is pruned stays zero."""
        model.train()
        for epoch in range(epochs):
            order = torch.randperm(len(self.y), generator=torch.Generator().manual_seed(epoch))
            for some in order.split(64):
                self.optimizer.zero_grad()
                nn.functional.cross_entropy(model(self.x[some]), self.y[some]).backward()
                self.optimizer.step()

    def evaluate(self, _: nn.Module) -> float:
        """Return the loss on the test images, of all of them on every rank."""
        self.net.eval()
        return float(nn.functional.cross_entropy(self.net(self.test_x), self.test_y).item())

    @torch.no_grad()
    def accuracy(self) -> float:
        """Return the share of the test images that are read right."""
        self.net.eval()
        return float((self.net(self.test_x).argmax(1) == self.test_y).float().mean())

    def score(self, model: nn.Module) -> None:
        """Run the backward passes from which contributions are measured."""
        for some in torch.arange(len(self.y)).split(8):
            nn.functional.cross_entropy(model(self.x[some]), self.y[some]).backward()
        self.optimizer.zero_grad()


def main() -> None:
    """Train, measure what each layer bears, compress, and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("build/compress"), help="folder to write")
    parser.add_argument("--epochs", type=int, default=8, help="before compression (default: 8)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rank, world = 0, 1
    if "RANK" in os.environ:
        dist.init_process_group("rdmatensor")
        rank, world = dist.get_rank(), dist.get_world_size()
    task = Task(rank, world)
    task.train(task.model, arguments.epochs)
    before = task.accuracy()
    # What may be compressed, and how
    policy = compress.Policy(
        compress.Prune("2", by="contribution", block=(1, 9)),
        compress.Prune("6", by="contribution", block=(1, 4)),
        compress.Quantize("2", points="uniform", bits=8),
        compress.Quantize("6", points="clustered", bits=5),
        total=compress.Target(bytes=0.1),
        process=compress.Progressive(step=0.1, retrain=task.train),
    )
    curve = compress.sensitivity(task.model, policy, task.evaluate, score=task.score)
    result = compress.run(
        task.model, policy, task.optimizer, evaluate=task.evaluate, curve=curve, score=task.score
    )
    # What came of it
    if rank == 0:
        arguments.out.mkdir(parents=True, exist_ok=True)
        curve.picture(arguments.out / "sensitivity.svg")
        draw(result, arguments.out)
        torch.save(result.export("codebook"), arguments.out / "small.pt")
        print(result.table())
        print(f"test images read right: {before:.1%} before, {task.accuracy():.1%} after")
        print(f"written to {arguments.out}")
    if world > 1:
        dist.destroy_process_group()


def draw(result: compress.Result, out: Path) -> None:
    """Write the loss against the size, round by round, as data and as a picture."""
    from matplotlib.figure import Figure

    kept = [entry for entry in result.history if entry.is_accepted]
    sizes = [1.0, *(entry.size_bytes / result.dense_bytes for entry in kept)]
    losses = [result.base, *(entry.loss for entry in kept)]
    (out / "size.json").write_text(json.dumps({"bytes": sizes, "loss": losses}))
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    axes.plot(sizes, losses, marker="o")
    axes.set(xlabel="share of the dense model's bytes", ylabel="test loss", xlim=(1.02, 0))
    figure.savefig(out / "size.svg")


if __name__ == "__main__":
    main()
