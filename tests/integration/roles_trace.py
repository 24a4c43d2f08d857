"""Transfers next to what torch.profiler saw, from a rank."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

import rdmatensor
from rdmatensor import trace

TIMEOUT = timedelta(seconds=60)


def beside_the_profiler(rank: int, world: int, folder: str) -> dict[str, Any]:
    """One all_reduce and one message under the profiler; return both traces' slices of them."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    context = rdmatensor.default_context()
    trace.start(context)
    tensor = torch.ones(1 << 18)
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        dist.all_reduce(tensor)
        if rank == 0:
            dist.send(tensor, 1)
        else:
            dist.recv(tensor, 0)
    theirs = Path(folder, f"torch-{rank}.json")
    both = Path(folder, f"both-{rank}.json")
    profiled.export_chrome_trace(str(theirs))
    trace.write(context, both, profile=theirs)
    dist.destroy_process_group()
    events = json.loads(both.read_text(encoding="utf-8"))["traceEvents"]
    names = ("all_reduce", "send", "receive")
    return {
        "ours": [
            event
            for event in events
            if event.get("cat") == "rdmatensor" and event["name"] in names and is_large(event)
        ],
        "torch": {
            event["name"].removeprefix("rdmatensor:"): event
            for event in events
            if event.get("ph") == "X" and event["name"].startswith("rdmatensor:")
        },
    }


def is_large(event: dict[str, Any]) -> bool:
    """Whether it is of the tensor, and no barrier's."""
    return bool(event["args"]["bytes"] >= 1 << 20)
