"""ZeroRedundancyOptimizer: states of the optimizer spread over the ranks."""

from __future__ import annotations

from typing import Any
from unittest import mock

import torch
from oracle import Results, Turn
from oracle_ddp import WIDTH, loss_of, net, state_of, steps
from torch.distributed.algorithms.ddp_comm_hooks import ddp_zero_hook
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.algorithms.join import Join
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel


def zero_redundancy_optimizer(turn: Turn) -> Results:
    results: dict[str, Any] = {}
    for name, options in {"by parameter": {}, "flat": {"parameters_as_bucket_view": True}}.items():
        model = DistributedDataParallel(net())
        optimizer = ZeroRedundancyOptimizer(
            model.parameters(), optimizer_class=torch.optim.Adam, lr=0.01, **options
        )
        losses = steps(turn, model, optimizer)
        optimizer.consolidate_state_dict(to=0)
        whole = optimizer.state_dict()["state"] if turn.rank == 0 else {}
        with Join([model, optimizer]):
            losses += steps(turn, model, optimizer, 2 + turn.rank)
        results[name] = {"losses": losses, "states": whole, **state_of(model)}
    return results


def overlapped_with_ddp(turn: Turn) -> Results:
    """Each rank updates its buckets in the backward pass and broadcasts them at its end.

    torch refuses Gloo's name, for fear of hangs; this hook has none, as it broadcasts in one order.
    """
    results: dict[str, Any] = {}
    for name, shards in {"whole buckets": False, "parts": True}.items():
        model = DistributedDataParallel(net(), bucket_cap_mb=0.005, gradient_as_bucket_view=True)
        zero = ZeroRedundancyOptimizer(
            model.parameters(),
            optimizer_class=torch.optim.SGD,
            overlap_with_ddp=True,
            lr=0.05,
            momentum=0.9,
        )
        with mock.patch.object(ddp_zero_hook.dist, "get_backend", return_value="any"):
            hook = ddp_zero_hook.hook_with_zero_step(
                allreduce_hook, model, zero, shard_buckets=shards
            )
        model.register_comm_hook(None, hook)
        losses = []
        for step in range(6):  # of which some only warm up
            loss = loss_of(model, turn.data(8, WIDTH, salt=step))
            loss.backward()  # type: ignore[no-untyped-call]
            losses.append(float(loss.detach()))
            model.zero_grad()
        results[name] = {"losses": losses, **state_of(model)}
    return results
