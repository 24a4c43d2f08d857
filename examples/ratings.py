"""MovieLens-100K by occupation, out of the wheel of recbole, and the model that is trained on it.

The wheel is fetched with pip at the first run; its terms do not allow to distribute the data.
"""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

WHEEL = "recbole==1.2.1"
INSIDE = "recbole/dataset_example/ml-100k/ml-100k"
BATCH, EPOCHS = 256, 8
Ratings = tuple[Tensor, Tensor, Tensor]  # users, items, ratings


def fetch(folder: Path) -> Path:
    """Return the wheel, which pip puts into the folder if it is not there."""
    if not (found := list(folder.glob("recbole-*.whl"))):
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", WHEEL]
        subprocess.run([*command, "--dest", str(folder)], check=True)
        found = list(folder.glob("recbole-*.whl"))
    return found[0]


def _columns(wheel: Path, suffix: str) -> list[list[str]]:
    with zipfile.ZipFile(wheel) as archive:
        lines = archive.read(f"{INSIDE}.{suffix}").decode().splitlines()
    return [line.split("\t") for line in lines[1:]]


def partition(wheel: Path, occupation: str) -> tuple[Ratings, Ratings]:
    """Return the ratings by users of one occupation: for training, a fifth for validation."""
    users = {row[0] for row in _columns(wheel, "user") if row[3] == occupation}
    rows = [row for row in _columns(wheel, "inter") if row[0] in users]
    rows.sort(key=lambda row: int(row[3]))
    table = torch.tensor([[int(row[0]), int(row[1]), int(float(row[2]))] for row in rows])
    is_held = torch.arange(len(table)) % 5 == 4
    first, second = table[~is_held], table[is_held]
    return (
        (first[:, 0], first[:, 1], first[:, 2].float()),
        (second[:, 0], second[:, 1], second[:, 2].float()),
    )


class Factors(nn.Module):
    """Matrix factorisation with biases: ratings from users and items."""

    def __init__(self, mean: float, dim: int, spread: float) -> None:
        super().__init__()
        self.mean = mean
        self.users, self.items = nn.Embedding(944, dim + 1), nn.Embedding(1683, dim + 1)
        for table in (self.users, self.items):
            nn.init.normal_(table.weight, std=spread)

    def forward(self, users: Tensor, items: Tensor) -> tuple[Tensor, Tensor]:
        """Return the ratings, and what regularisation makes small."""
        u, i = self.users(users), self.items(items)
        rating = self.mean + u[:, 0] + i[:, 0] + (u[:, 1:] * i[:, 1:]).sum(1)
        return rating, u.square().sum(1) + i.square().sum(1)


def error_after(
    data: tuple[Ratings, Ratings], rate: float, decay: float, dim: int, spread: float
) -> float:
    """Train on all ranks of the group and return the root of the mean squared validation error."""
    (users, items, ratings), test = data
    torch.manual_seed(0)
    model = DistributedDataParallel(Factors(float(ratings.mean()), dim, spread))
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    rank, world = dist.get_rank(), dist.get_world_size()
    for _ in range(EPOCHS):
        order = torch.randperm(len(ratings))
        steps = len(order) // (BATCH * world)
        for batch in order[: steps * BATCH * world].view(steps, world, BATCH)[:, rank]:
            optimizer.zero_grad()
            rating, size = model(users[batch], items[batch])
            ((rating - ratings[batch]).square() + decay * size).mean().backward()
            optimizer.step()
    with torch.no_grad():
        rating, _ = model(test[0], test[1])
        return float((rating.clamp(1, 5) - test[2]).square().mean().sqrt())
