"""Distributed checkpoints: saved by one arrangement of ranks and loaded by another."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from oracle import TIMEOUT, Results, Turn
from oracle_ddp import WIDTH, loss_of
from oracle_sharded import sharded, train
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_state_dict,
    set_model_state_dict,
    set_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor


def trained(turn: Turn) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = sharded(init_device_mesh("cpu", (turn.world,)), has_group_memory=False)
    train(turn, model, lambda: torch.tensor(0.0))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    loss_of(model, turn.data(8, WIDTH, salt=50)).backward()
    optimizer.step()
    optimizer.zero_grad()
    return model, optimizer


def saved_and_loaded(turn: Turn) -> Results:
    """A sharded model and its optimizer, then a DTensor with other placements."""
    model, optimizer = trained(turn)
    names = ("model", "optimizer")
    state: dict[str, Any] = dict(zip(names, get_state_dict(model, optimizer), strict=True))
    checkpoint.save({**state, "step": 7}, checkpoint_id=turn.folder / "training")

    other = sharded(init_device_mesh("cpu", (turn.world,)), has_group_memory=False)
    other_optimizer = torch.optim.AdamW(other.parameters(), lr=0.5)
    loaded = dict(zip(names, get_state_dict(other, other_optimizer), strict=True))
    loaded["step"] = 0
    checkpoint.load(loaded, checkpoint_id=turn.folder / "training")
    set_state_dict(
        other,
        other_optimizer,
        model_state_dict=loaded["model"],
        optim_state_dict=loaded["optimizer"],
    )
    losses = [
        float(loss_of(some, turn.data(8, WIDTH, salt=60)).detach()) for some in (model, other)
    ]
    if losses[0] != losses[1]:
        raise AssertionError(f"what was loaded is not what was saved: {losses}")
    rates = [group["lr"] for group in other_optimizer.param_groups]
    return {"losses": losses, "step": loaded["step"], "rates": rates, **resharded(turn)}


def resharded(turn: Turn) -> dict[str, Any]:
    mesh = init_device_mesh("cpu", (turn.world,))
    whole = turn.data(7, 6, rank=0)
    by_rows, by_columns = (distribute_tensor(whole, mesh, [Shard(dim)]) for dim in (0, 1))
    checkpoint.save({"tensor": by_rows}, checkpoint_id=turn.folder / "placed")
    state = {"tensor": torch.zeros_like(by_columns)}
    checkpoint.load(state, checkpoint_id=turn.folder / "placed")
    return {"resharded": state["tensor"].full_tensor(), "part": state["tensor"].to_local()}


def saved_meanwhile(turn: Turn) -> Results:
    """Training goes on, on the default group, while a thread saves over a group of its own."""
    model, _ = trained(turn)
    group = dist.new_group(timeout=TIMEOUT)
    before = float(loss_of(model, turn.data(8, WIDTH, salt=60)).detach())
    response = checkpoint.async_save(
        {"model": get_model_state_dict(model)},
        checkpoint_id=turn.folder / "meanwhile",
        process_group=group,
    )
    losses = train(turn, model, lambda: torch.tensor(0.0))
    assert isinstance(response, Future)
    response.result(timeout=TIMEOUT.total_seconds())

    other = sharded(init_device_mesh("cpu", (turn.world,)), has_group_memory=False)
    state = {"model": get_model_state_dict(other)}
    checkpoint.load(state, checkpoint_id=turn.folder / "meanwhile")
    set_model_state_dict(other, state["model"])
    after = float(loss_of(other, turn.data(8, WIDTH, salt=60)).detach())
    if after != before:
        raise AssertionError(f"saved while it trained: {after} for {before}")
    return {"losses": losses, "loaded": after}
