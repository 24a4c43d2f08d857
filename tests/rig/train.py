"""Train a real model on two ranks over verbs, as DDP and by a plan, and over Gloo: the same bits.

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
import rdmatensor.plan
from graph_analysis import DataParallel, TransferPlan, analyze

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
sys.path.insert(0, str(EXAMPLES))
from models import DigitNet  # noqa: E402

DIGITS = "datasets/data/digits.csv.gz"  # a row for each: 8 x 8 numbers up to 16, and which it is
RANKS = 2
STEPS = 4
BATCH = 32
LIMIT_S = 600  # far above what it takes; the rig has a deadline of its own
WAYS = {"ddp": "rdmatensor", "plan": "rdmatensor", "gloo": "gloo"}  # -> the backend


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


def plan_of(images: torch.Tensor) -> TransferPlan:
    """Analyse a step of the model."""
    return analyze(DigitNet(), (images[:BATCH],), strategy=DataParallel(RANKS))


def train(
    images: torch.Tensor,
    labels: torch.Tensor,
    before_step: Callable[[int], object] = lambda _number: None,
    plan: TransferPlan | None = None,
) -> tuple[list[float], torch.Tensor]:
    """Return this rank's loss of each step and all final weights in a row.

    plan: by which it trains; without one as DistributedDataParallel.
    """
    torch.manual_seed(0)
    net = DigitNet()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    model = (
        DistributedDataParallel(net)
        if plan is None
        else rdmatensor.plan.apply(net, plan, optimizer)
    )
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
    if isinstance(model, rdmatensor.plan.PlannedModel):
        model.close()
    return losses, torch.cat([weights.detach().flatten() for weights in net.parameters()])


def check_path() -> None:
    """Raise unless the peer is reached by verbs."""
    peers = [
        peer
        for peer in rdmatensor.distributed.describe()["peers"]
        if peer["rank"] != dist.get_rank()
    ]
    if [peer["path"] for peer in peers] != ["verbs"]:
        raise AssertionError(f"the peer was not reached by verbs: {peers}")
    print(f"rank {dist.get_rank()}: {peers[0]['reason']}", flush=True)


def run_rank(
    rank: int, folder: str, images: torch.Tensor, labels: torch.Tensor, plan: TransferPlan
) -> None:
    """Train in each way, and compare."""
    found = {}
    for way, backend in WAYS.items():
        dist.init_process_group(
            backend, init_method=f"file://{folder}/{way}", rank=rank, world_size=RANKS
        )
        found[way] = train(images, labels, plan=plan if way == "plan" else None)
        if backend == "rdmatensor":
            check_path()
        dist.barrier()
        gc.collect()  # DDP has to go before Gloo's group: roles_adopt.buckets()
        dist.destroy_process_group()
    gloo_losses, gloo_weights = found.pop("gloo")
    first, last = gloo_losses[0], gloo_losses[-1]
    print(f"rank {rank}: loss {first:.4f} -> {last:.4f} in {STEPS} steps", flush=True)
    for way, (losses, weights) in found.items():
        if losses != gloo_losses or not torch.equal(weights, gloo_weights):
            raise AssertionError(f"rank {rank}, {way}: not what Gloo gives: {losses} {gloo_losses}")
    if not last < first:
        raise AssertionError(f"rank {rank}: nothing was learned: {gloo_losses}")


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
        plan = plan_of(samples[0])  # once, for both
        arguments = [(rank, folder, *samples, plan) for rank in range(RANKS)]
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
