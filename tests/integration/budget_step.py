"""Train a few steps of a model that does not fit; see test_budget_cgroup.py.

python budget_step.py BUDGET: a size, or "none". Prints the digest of the weights after the steps.
"""

from __future__ import annotations

import hashlib
import sys

import torch
from torch import nn

from rdmatensor import budget

torch.set_num_threads(1)
torch.manual_seed(0)
ROWS, WIDTH, STEPS = 1 << 16, 64, 2


def block() -> nn.Module:
    layers: list[nn.Module] = []
    for _ in range(3):
        layers += [nn.Linear(WIDTH, WIDTH), nn.GELU()]
    return nn.Sequential(*layers)


def main(size: str) -> None:
    model = nn.Sequential(*(block() for _ in range(6)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    x = torch.randn(ROWS, WIDTH)

    def squares(output: torch.Tensor, *_: object) -> torch.Tensor:
        return output.square().mean()

    if size != "none":
        chosen = budget.fit(model, (x,), size, loss_fn=squares, optimizer=optimizer)
        sys.stderr.write(chosen.text())
        chosen.apply(model)
    for _ in range(STEPS):
        optimizer.zero_grad()
        squares(model(x)).backward()
        optimizer.step()
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().numpy().tobytes())
    sys.stdout.write(digest.hexdigest() + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
