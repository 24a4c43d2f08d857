"""Ranks of a driver's job, as processes."""

from __future__ import annotations

import os
import random
import signal
import time
from typing import Any

import torch

from rdmatensor import errors, ps

SAMPLES = 60
_done = 0


def _count(w: ps.Worker, ids: torch.Tensor, mode: str) -> int:
    """Count a sample; workers 1 and 2 are killed in their third batch, at different places."""
    global _done
    _done += 1
    ends = w.rank in (1, 2) and _done == 3
    counts = w.table("counts", 1, rows=SAMPLES, rule=ps.Add())
    counts.push(ids, torch.ones(len(ids), 1))
    if ends and w.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if ends:
        if mode == "async":
            w.clock()  # the step is applied, and its result is lost
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.002)
    return int(ids[0])


def victims(rank: int, _world: int, mode: str, on_worker_death: str) -> dict[str, Any]:
    """Two of three workers die; the driver counts."""
    result: dict[str, Any] = {}

    def main(d: ps.Driver) -> None:
        for sample in range(SAMPLES):
            d.schedule(_count, torch.tensor([sample]), mode)
        result["results"] = d.gather()
        counts = d.worker.table("counts", 1, rows=SAMPLES, rule=ps.Add())
        result["counts"] = counts.pull(range(SAMPLES)).flatten().tolist()

    ps.drive(main, servers=2, mode=mode, on_worker_death=on_worker_death)
    return result


def _die_if(w: ps.Worker, who: str, server: int) -> int:
    if who == "server" and w.rank == 0:
        os.kill(server, signal.SIGKILL)
    if who == "worker" and w.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return os.getpid()


def dies(rank: int, _world: int, who: str, on_worker_death: str = "stop") -> dict[str, Any]:
    """A process of this role is killed while batches run; what do the others get?"""
    result: dict[str, Any] = {"error": None}

    def main(d: ps.Driver) -> None:
        servers: Any = d.worker.describe()["servers"]
        for _ in range(2):
            d.schedule(_die_if, "none", 0)
        d.join()
        if who == "driver":
            os.kill(os.getpid(), signal.SIGKILL)
        draw = random.Random(1)
        for _ in range(40):
            d.schedule(_die_if, who, servers[0]["pid"])
            time.sleep(draw.random() * 0.002)
        d.join()

    try:
        ps.drive(main, servers=1, on_worker_death=on_worker_death)
    except errors.PeerError as error:
        result["error"] = f"PeerError {error}"
    return result
