"""A worker of torchrun that trains, keeps checkpoints, and dies when it is told to.

Usage, under torchrun: elastic_train.py FOLDER STEPS KILL_AT; KILL_AT 0 kills nobody. The last rank
dies before that step, in the first run only. Rank 0 leaves a line per step in FOLDER/curve and a
checkpoint; whoever outlives the other leaves its error in FOLDER/survivor-RANK.
"""

from __future__ import annotations

import os
import signal
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

ROWS, COLUMNS = 8, 16


def train(folder: Path, step_count: int, kill_at: int) -> None:
    """Train from the last checkpoint to the end."""
    rank = dist.get_rank()
    torch.manual_seed(0)
    inner = nn.Sequential(nn.Linear(COLUMNS, 32), nn.Tanh(), nn.Linear(32, 1))
    model = DistributedDataParallel(inner)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    checkpoint = folder / "checkpoint"
    first = 0
    if checkpoint.exists():
        saved = torch.load(checkpoint)
        inner.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first = saved["step"]
    # Nobody writes the next one while another still reads this.
    dist.barrier()
    for step in range(first, step_count):
        if kill_at and step == kill_at and rank == dist.get_world_size() - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        loss = one_step(model, optimizer, rank, step)
        if rank == 0:
            with (folder / "curve").open("a") as curve:
                curve.write(f"{step} {loss.item().hex()}\n")
            part = folder / "checkpoint.part"
            state = {"model": inner.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save({**state, "step": step + 1}, part)
            part.rename(checkpoint)


def one_step(model: nn.Module, optimizer: torch.optim.Optimizer, rank: int, step: int) -> Tensor:
    """Return the mean loss of all ranks."""
    rows = torch.Generator().manual_seed(1000 * step + rank)
    data = torch.randn(ROWS, COLUMNS, generator=rows)
    optimizer.zero_grad()
    loss = (model(data) - data.sum(1, keepdim=True)).square().mean()
    loss.backward()
    optimizer.step()
    mean = loss.detach().clone()
    dist.all_reduce(mean, op=dist.ReduceOp.AVG)
    return mean


def main() -> None:
    """Run as torchrun has started it."""
    folder, step_count, kill_at = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    is_first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    if is_first and kill_at:  # the agent's SIGTERM must not come before the error
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    dist.init_process_group("rdmatensor", timeout=timedelta(seconds=60))
    try:
        train(folder, step_count, kill_at if is_first else 0)
    except RuntimeError as error:
        (folder / f"survivor-{dist.get_rank()}").write_text(f"{type(error).__name__}: {error}")
        raise
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
