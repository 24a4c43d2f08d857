"""Train a real model on two ranks over verbs and over Gloo, and compare every bit.

Starts both ranks itself; RDMATENSOR_TRANSPORT=verbs must be set. Sized for an emulated machine.
"""

from __future__ import annotations

import gc
import importlib.util
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import forked  # noqa: F401 - makes the launcher's folder known
import launcher
import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import rdmatensor

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
sys.path.insert(0, str(EXAMPLES))
from models import DigitNet  # noqa: E402

DIGITS = "datasets/data/digits.csv.gz"  # a row for each: 8 x 8 numbers up to 16, and which it is
RANKS = 2
STEPS = 4
BATCH = 32
LIMIT_S = 600  # far above what it takes; the rig has a deadline of its own
BACKENDS = ("rdmatensor", "gloo")


def digits() -> tuple[torch.Tensor, torch.Tensor]:
    """Return as many images as are trained on and their labels, out of scikit-learn's package.

    Not by the package: its import, with scipy's, would take the longest part of this.
    """
    found = importlib.util.find_spec("sklearn")
    assert found is not None
    assert found.submodule_search_locations is not None
    file = Path(found.submodule_search_locations[0]) / DIGITS
    rows = np.loadtxt(file, delimiter=",", dtype=np.float32, max_rows=STEPS * RANKS * BATCH)
    images = torch.from_numpy(rows[:, :-1]).reshape(-1, 1, 8, 8) / 16.0
    return images, torch.from_numpy(rows[:, -1]).to(torch.int64)


def train(
    images: torch.Tensor,
    labels: torch.Tensor,
    before_step: Callable[[int], object] = lambda _number: None,
) -> tuple[list[float], torch.Tensor]:
    """Return this rank's loss of each step and all final weights in a row."""
    torch.manual_seed(0)
    model = DistributedDataParallel(DigitNet())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for step in range(STEPS):
        before_step(step)
        first = (step * RANKS + dist.get_rank()) * BATCH
        loss = nn.functional.cross_entropy(
            model(images[first : first + BATCH]), labels[first : first + BATCH]
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, torch.cat([weights.detach().flatten() for weights in model.parameters()])


def check_path() -> None:
    """Raise unless the peer is reached by verbs."""
    peers = [peer for peer in rdmatensor.describe()["peers"] if peer["rank"] != dist.get_rank()]
    if [peer["path"] for peer in peers] != ["verbs"]:
        raise AssertionError(f"the peer was not reached by verbs: {peers}")
    print(f"rank {dist.get_rank()}: {peers[0]['reason']}", flush=True)


def run_rank(rank: int, folder: str, images: torch.Tensor, labels: torch.Tensor) -> None:
    """Train over each backend, and compare."""
    results = []
    for backend in BACKENDS:
        dist.init_process_group(
            backend, init_method=f"file://{folder}/{backend}", rank=rank, world_size=RANKS
        )
        results.append(train(images, labels))
        if backend == "rdmatensor":
            check_path()
        dist.barrier()
        gc.collect()  # DDP has to go before Gloo's group: roles_adopt.buckets()
        dist.destroy_process_group()
    (losses, weights), (gloo_losses, gloo_weights) = results
    print(f"rank {rank}: loss {losses[0]:.4f} -> {losses[-1]:.4f} in {STEPS} steps", flush=True)
    if losses != gloo_losses or not torch.equal(weights, gloo_weights):
        raise AssertionError(f"rank {rank}: not what Gloo gives: {losses} {gloo_losses}")
    if not losses[-1] < losses[0]:
        raise AssertionError(f"rank {rank}: nothing was learned: {losses}")


def main() -> int:
    """Run both ranks; 0 if both have passed."""
    if os.environ.get("RDMATENSOR_TRANSPORT") != "verbs":
        raise SystemExit("set RDMATENSOR_TRANSPORT=verbs: another path would prove nothing")
    torch.set_num_threads(1)  # before anything is computed: the ranks are forked
    samples = digits()
    # Forked, so that torch and the data are loaded once: an emulated machine takes a minute for it.
    launcher.import_once()
    start = multiprocessing.get_context("fork").Process
    with tempfile.TemporaryDirectory() as folder:
        arguments = [(rank, folder, *samples) for rank in range(RANKS)]
        ranks = [start(target=run_rank, args=each) for each in arguments]
        end_s = time.monotonic() + LIMIT_S
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join(max(0.0, end_s - time.monotonic()))
        for rank in ranks:
            rank.kill()  # nothing, if it has ended
            rank.join()
        statuses = [rank.exitcode for rank in ranks]
    print("train over verbs:", "FAILED" if any(statuses) else "the bits of Gloo")
    return 1 if any(statuses) else 0


if __name__ == "__main__":
    sys.exit(main())
