"""A training script of Lightning Fabric, which takes the backend's name and does the rest."""

from __future__ import annotations

import logging
import os
import socket
from typing import Any

import torch
import torch.distributed as dist
from lightning_fabric import Fabric
from lightning_fabric.plugins.environments import LightningEnvironment
from lightning_fabric.strategies import DDPStrategy
from oracle import TIMEOUT, Results, Turn
from oracle_ddp import WIDTH, loss_of, net, state_of
from torch.utils.data import DataLoader, TensorDataset


def agreed_port(turn: Turn) -> str:
    """Return a port that is free on rank 0, where Fabric's rendezvous will be."""
    if turn.rank == 0:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            turn.store.set("port", str(probe.getsockname()[1]))
    return bytes(turn.store.get("port")).decode()


def fabric(turn: Turn) -> Results:
    logging.getLogger("lightning_fabric").setLevel(logging.ERROR)
    os.environ["MASTER_PORT"] = agreed_port(turn)
    fabric = Fabric(
        accelerator="cpu",
        devices=turn.world,
        strategy=DDPStrategy(process_group_backend=turn.backend, timeout=TIMEOUT),
        plugins=[LightningEnvironment()],
    )
    fabric.launch()
    if dist.get_backend() != turn.backend:
        raise AssertionError(f"Fabric took {dist.get_backend()}")
    return script(turn, fabric)


def script(turn: Turn, fabric: Any) -> Results:
    fabric.seed_everything(9)
    model = net()
    model, optimizer = fabric.setup(model, torch.optim.Adam(model.parameters(), lr=0.01))
    data = turn.data(64, WIDTH, rank=0)
    loader = fabric.setup_dataloaders(DataLoader(TensorDataset(data), batch_size=8, shuffle=True))
    losses = []
    for epoch in range(2):
        loader.sampler.set_epoch(epoch)
        for number, (x,) in enumerate(loader):
            is_accumulating = number % 2 == 0
            with fabric.no_backward_sync(model, enabled=is_accumulating):
                loss = loss_of(model, x)
                fabric.backward(loss)
            if not is_accumulating:
                optimizer.step()
                optimizer.zero_grad()
            losses.append(float(fabric.all_reduce(loss.detach(), reduce_op="mean")))
    path = turn.folder / "fabric.ckpt"
    fabric.save(path, {"model": model, "epoch": 2})
    state: dict[str, Any] = {"model": model, "epoch": 0}
    fabric.load(path, state)
    gathered = fabric.all_gather({"rank": torch.tensor(turn.rank)})
    counts = fabric.all_reduce(torch.tensor([3, turn.rank - 5, 1 << 40]), reduce_op="mean")
    return {
        "counts": counts,
        "losses": losses,
        "epoch": state["epoch"],
        "gathered": gathered,
        **state_of(model),
    }
