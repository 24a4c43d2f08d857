"""Ranks of a parameter server, as processes."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import torch

from rdmatensor import errors, ps


def _train(w: ps.Worker) -> None:
    table = w.table("t", 4, rows=100, rule=ps.SGD(0.5), init=ps.uniform(-1, 1))
    embedding = ps.Embedding(table)
    for step in range(30):
        ids = (torch.arange(20) * 7 + step + w.rank) % 100
        (embedding(ids) ** 2).sum().backward()
        w.clock()
    rows = table.pull(range(100))
    assert float(rows.abs().max()) < 0.2, "training shrinks all rows"


def train(_rank: int, _world: int, mode: str) -> None:
    """Run as the documentation says."""
    ps.run(_train, servers=2, mode=ps.SSP(2) if mode == "ssp" else mode)


def victim(rank: int, _world: int, on_worker_death: str) -> dict[str, Any]:
    """Worker 1 is killed in its third step; worker 0 goes on, or fails."""
    result: dict[str, Any] = {"error": None, "rank": None}

    def main(w: ps.Worker) -> None:
        table = w.table("t", 1, rows=1, rule=ps.Add())
        for step in range(10):
            if w.rank == 1 and step == 2:
                table.push([0], torch.full((1, 1), 1000.0))
                os.kill(os.getpid(), signal.SIGKILL)
            table.push([0], torch.ones(1, 1))
            result["since"] = time.monotonic()
            w.clock()
        result["value"] = float(table.pull([0]))

    try:
        ps.run(main, servers=1, on_worker_death=on_worker_death)
    except errors.PeerError as error:
        result["error"], result["rank"] = str(error), error.rank
        result["late_s"] = time.monotonic() - result.get("since", time.monotonic())
    return result


def server_dies(rank: int, world: int) -> dict[str, Any]:
    """The last server is killed in the workers' third step."""
    result: dict[str, Any] = {}

    def main(w: ps.Worker) -> None:
        w.table("u", 1, rows=5, rule=ps.Add())
        table = w.table("t", 1, rows=1025, rule=ps.Add())
        try:
            for step in range(1000):
                table.push([0, 1], torch.ones(2, 1))
                result["since"] = time.monotonic()
                w.clock()
                if step == 2 and w.rank == 0:
                    servers: Any = w.describe()["servers"]
                    os.kill(servers[-1]["pid"], signal.SIGKILL)
        except errors.PeerError as error:
            result["error"], result["rank"] = str(error), error.rank
            result["late_s"] = time.monotonic() - result["since"]
            raise

    if rank < world - 2:
        try:
            ps.run(main, servers=2)
        except errors.PeerError:
            return result
        raise AssertionError("the server's death was not noticed")
    try:
        ps.run(main, servers=2)
    except errors.PeerError as error:
        result["error"] = str(error)
    return result
