"""Ranks that use Horovod's API."""

from __future__ import annotations

from typing import Any

import torch

import rdmatensor.horovod.torch as hvd


def life(rank: int, world: int) -> dict[str, Any]:
    """Init twice; the operations of a first script."""
    hvd.init()
    first = {
        "place": [hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(), hvd.cross_size()],
        "average": hvd.allreduce(torch.full((2,), float(rank))).tolist(),
        "gathered": hvd.allgather(torch.full((rank + 1,), rank)).tolist(),
        "sent": hvd.broadcast(torch.tensor([rank]), root_rank=world - 1).tolist(),
    }
    hvd.shutdown()
    assert not hvd.is_initialized()
    hvd.init()
    first["again"] = hvd.allreduce(torch.full((2,), float(rank)), op=hvd.Sum).tolist()
    hvd.shutdown()
    return first


def steps(rank: int, world: int, ready: str) -> list[int]:
    """Allreduces in a shuffled order, over and over; the control messages after each step."""
    hvd.init()
    order = torch.Generator().manual_seed(rank)
    sent = []
    for step in range(8):
        names = torch.randperm(20, generator=order).tolist() if ready == "shuffled" else range(20)
        handles = {
            name: hvd.allreduce_async(torch.full((5,), float(rank + name + step)), name=str(name))
            for name in names
        }
        for name, handle in handles.items():
            expected = sum(range(world)) / world + name + step
            torch.testing.assert_close(hvd.synchronize(handle), torch.full((5,), expected))
        sent.append(hvd.counters()["control_messages"])
    hvd.shutdown()
    return sent
