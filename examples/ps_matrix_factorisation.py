"""Matrix factorisation of MovieLens-100K on a parameter server, with each kind of clock.

    pip download --no-deps --dest data recbole==1.2.1
    torchrun --nproc-per-node 3 examples/ps_matrix_factorisation.py data/recbole-1.2.1-*.whl

Two workers and one server. The ratings are read from inside the wheel, which is not installed. A
user and a film have a row of 16 numbers each and a bias; a rating is the mean of all, plus the
biases, plus the product of the rows.
"""

from __future__ import annotations

import argparse
import time
import zipfile
from pathlib import Path

import matplotlib as mpl
import torch

import rdmatensor.ps as ps

mpl.use("Agg")
import matplotlib.pyplot as plt

RATINGS = "recbole/dataset_example/ml-100k/ml-100k.inter"
USERS, FILMS, DIM, EPOCHS, BATCH = 944, 1683, 16, 2, 64
MODES: dict[str, ps.Mode] = {"sync": "sync", "async": "async", "SSP(2)": ps.SSP(2)}

Samples = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
Curve = list[tuple[float, float, float]]  # epochs, seconds, test RMSE


# The ratings
def ratings(wheel: Path) -> tuple[Samples, Samples]:
    """Return users, films and ratings, nine tenths to train with and one tenth to test with."""
    with zipfile.ZipFile(wheel) as archive:
        lines = archive.read(RATINGS).decode().splitlines()[1:]
    table = torch.tensor([[float(cell) for cell in line.split("\t")[:3]] for line in lines])
    table = table[torch.randperm(len(table), generator=torch.Generator().manual_seed(0))]
    users, films, stars = table[:, 0].long(), table[:, 1].long(), table[:, 2]
    split = len(table) * 9 // 10
    return (
        (users[:split], films[:split], stars[:split]),
        (users[split:], films[split:], stars[split:]),
    )


# The model
class Factors(torch.nn.Module):
    """Predicts ratings; its rows are on the servers."""

    def __init__(self, w: ps.Worker, mean: torch.Tensor) -> None:
        super().__init__()
        rule, init = ps.Adagrad(lr=0.1), ps.uniform(-0.1, 0.1)
        self.mean = mean
        self.users = ps.Embedding(w.table("user", DIM, rows=USERS, rule=rule, init=init))
        self.films = ps.Embedding(w.table("film", DIM, rows=FILMS, rule=rule, init=init))
        self.user_bias = ps.Embedding(w.table("user bias", 1, rows=USERS, rule=rule))
        self.film_bias = ps.Embedding(w.table("film bias", 1, rows=FILMS, rule=rule))

    def forward(self, users: torch.Tensor, films: torch.Tensor) -> torch.Tensor:
        biases = self.mean + self.user_bias(users) + self.film_bias(films)
        return biases.squeeze(1) + (self.users(users) * self.films(films)).sum(1)


# A worker
def train(w: ps.Worker, samples: Samples, test: Samples, curve: Curve) -> None:
    """Train on this worker's share of the samples; worker 0 tests from time to time."""
    model, begin_s = Factors(w, samples[2].mean()), time.monotonic()

    def test_now() -> None:
        with torch.no_grad():
            rmse = (model(*test[:2]) - test[2]).square().mean().sqrt()
        steps = w.describe()["servers"][0]["ticks"]  # of all workers
        epochs = steps * BATCH / len(samples[2])
        curve.append((epochs, time.monotonic() - begin_s, float(rmse)))

    batches = w.batches(samples, batch_size=BATCH, epochs=EPOCHS)
    for number, (users, films, stars) in enumerate(batches):
        if w.rank == 0 and number % 100 == 0:
            test_now()
        loss = (model(users, films) - stars).square().mean()
        loss.backward()  # pushes the gradients of the rows
        w.clock()
    if w.rank == 0:
        test_now()


# The picture
def draw(curves: dict[str, Curve], path: Path) -> None:
    """Draw the test error over the epochs and over time."""
    figure, panels = plt.subplots(1, 2, figsize=(8, 3.2), sharey=True, layout="constrained")
    for place, (axes, label) in enumerate(zip(panels, ("epochs", "seconds"), strict=True)):
        for name, curve in curves.items():
            axes.plot([one[place] for one in curve], [one[2] for one in curve], label=name)
        axes.set_xlabel(label)
        axes.grid(alpha=0.25)
    panels[0].set_ylabel("test RMSE (stars)")
    panels[1].legend(frameon=False)
    figure.savefig(path)


# Each mode in turn
def main() -> None:
    """Train with each kind of clock; worker 0 prints and draws."""
    parser = argparse.ArgumentParser(description="Matrix factorisation on a parameter server.")
    parser.add_argument("wheel", type=Path, help="the wheel of recbole 1.2.1")
    parser.add_argument("--picture", type=Path, default=Path("curves.svg"), help="file to draw to")
    options = parser.parse_args()
    samples, test = ratings(options.wheel)
    curves: dict[str, Curve] = {}
    for name, mode in MODES.items():
        curve: Curve = []
        ps.run(lambda w, curve=curve: train(w, samples, test, curve), servers=1, mode=mode)
        if curve:
            curves[name] = curve
            print(f"{name}: test RMSE {curve[-1][2]:.3f} after {EPOCHS} epochs", flush=True)
    if curves:
        spread = float((test[2] - samples[2].mean()).square().mean().sqrt())
        print(f"the mean as the prediction: test RMSE {spread:.3f}", flush=True)
        draw(curves, options.picture)


if __name__ == "__main__":
    main()
