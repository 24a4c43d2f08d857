"""Matrix factorisation on a parameter server, over ratings that are generated.

    torchrun --nproc-per-node 3 examples/ps_matrix_factorisation.py

Two workers and one server. Each rating is a rank-4 product plus noise; the test error falls to the
noise.
"""

from __future__ import annotations

import torch

import rdmatensor.ps as ps

USERS, ITEMS, RATINGS, DIM, NOISE = 300, 200, 20_000, 8, 0.1


def ratings(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return users, items and their ratings; the same on all workers."""
    draw = torch.Generator().manual_seed(seed)
    left = torch.randn(USERS, 4, generator=draw)
    right = torch.randn(ITEMS, 4, generator=draw)
    users = torch.randint(0, USERS, (RATINGS,), generator=draw)
    items = torch.randint(0, ITEMS, (RATINGS,), generator=draw)
    noise = NOISE * torch.randn(RATINGS, generator=draw)
    return users, items, (left[users] * right[items]).sum(1) / 2 + noise


def main(w: ps.Worker) -> None:
    """Train on nine tenths of the ratings, and let worker 0 test on the others."""
    rule = ps.Adagrad(lr=0.2)
    users = w.table("user", DIM, rows=USERS, rule=rule, init=ps.uniform(-0.3, 0.3))
    items = w.table("item", DIM, rows=ITEMS, rule=rule, init=ps.uniform(-0.3, 0.3))
    user_rows, item_rows = ps.Embedding(users), ps.Embedding(items)
    data = ratings()
    split = RATINGS * 9 // 10
    for u, i, rating in w.batches([one[:split] for one in data], batch_size=200, epochs=12):
        loss = (((user_rows(u) * item_rows(i)).sum(1) - rating) ** 2).mean()
        loss.backward()
        w.clock()
    if w.rank == 0:
        u, i, rating = (one[split:] for one in data)
        error = (users.pull(u) * items.pull(i)).sum(1) - rating
        print(f"test RMSE {float((error**2).mean().sqrt()):.3f}, noise {NOISE}", flush=True)


if __name__ == "__main__":
    ps.run(main, servers=1, mode=ps.SSP(2))
