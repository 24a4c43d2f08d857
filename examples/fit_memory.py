"""Train a model whose saved tensors do not fit: recompute some, and lend others to a peer.

torchrun --nproc-per-node 2 examples/fit_memory.py --out build/memory

Rank 0 trains. Rank 1 only lends memory.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import rdmatensor

ROWS, WIDTH, BLOCKS = 8192, 128, 6


def make_model() -> nn.Module:
    """Return a model that saves about 140 MiB for its backward pass."""
    torch.manual_seed(0)
    blocks = [
        nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))
        for _ in range(BLOCKS)
    ]
    return nn.Sequential(*blocks)


def squares(output: torch.Tensor, *_: object) -> torch.Tensor:
    """Return the loss."""
    return output.square().mean()


def train(lent: rdmatensor.budget.Lent, out: Path) -> None:
    """Train under three budgets, and compare the gradients."""
    model, x = make_model(), torch.randn(ROWS, WIDTH)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def fit(size: int | str, *tiers: str) -> rdmatensor.budget.Budget:
        return rdmatensor.budget.fit(
            model, (x,), size, loss_fn=squares, optimizer=optimizer, tiers=tiers, lent=lent
        )

    # What a step takes
    whole = fit("1GiB", "recompute")
    size = (whole.least_bytes + whole.peak_bytes) // 2
    print(whole.text(), flush=True)

    # Two ways to take less
    budgets = {"recomputed": fit(size, "recompute"), "lent": fit(size, "peer")}
    squares(model(x)).backward()
    wanted = [parameter.grad.clone() for parameter in model.parameters()]
    for name, budget in budgets.items():
        print(budget.text(), flush=True)
        budget.picture(out / f"{name}.svg")  # live bytes over the step
        with budget.apply(model, lent=lent) as applied:
            optimizer.zero_grad()
            squares(model(x)).backward()
            same = all(map(torch.equal, wanted, (one.grad for one in model.parameters())))
            print(f"{name}: gradients equal to the bit: {same}, {applied.describe()}", flush=True)

    # What memory does over a step
    lives = {"kept": whole.timelines["kept"]}
    lives.update((name, budget.timelines["chosen"]) for name, budget in budgets.items())
    (out / "memory.json").write_text(json.dumps({"budget": size, **lives}), encoding="utf-8")
    print(f"written to {out}", flush=True)


def main() -> None:
    """Run the program."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("build/memory"))
    out: Path = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    dist.init_process_group("rdmatensor")
    is_lender = dist.get_rank() == 1
    with rdmatensor.budget.lend("256MiB" if is_lender else 0) as lent:
        if is_lender:
            lent.serve()
        else:
            train(lent, out)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
