"""Ranks of a parameter server under other launchers, and servers within workers."""

from __future__ import annotations

import json
import os
import signal
from typing import Any

import torch

from rdmatensor import errors, ps

LAUNCHER = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE")


def _count(result: dict[str, Any]) -> Any:
    """Return a main that adds up steps, and says who it was."""

    def main(w: ps.Worker) -> None:
        table = w.table("t", 1, rows=10, rule=ps.Add())
        for _ in range(5):
            table.push(range(10), torch.ones(10, 1))
            w.clock()
        result.setdefault("sums", []).append(table.pull(range(10)).flatten().tolist())
        result["who"] = [w.rank, w.workers, w.servers]

    return main


def _without_torchrun() -> None:
    for name in LAUNCHER:
        os.environ.pop(name, None)


def tensorflow(rank: int, world: int, ports: list[int]) -> dict[str, Any]:
    """The first is the chief, the last two are servers."""
    _without_torchrun()
    every = [f"127.0.0.1:{port}" for port in ports]
    cluster = {"chief": every[:1], "worker": every[1 : world - 2], "ps": every[world - 2 :]}
    kinds = [("chief", 0), *(("worker", i) for i in range(world - 3)), ("ps", 0), ("ps", 1)]
    kind, index = kinds[rank]
    task = {"type": kind, "index": index}
    os.environ["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": task})
    result: dict[str, Any] = {}
    ps.run(_count(result), mode="sync")
    ps.run(_count(result), servers=2)
    return result


def ps_lite(rank: int, world: int, ports: list[int]) -> dict[str, Any]:
    """The first is the scheduler, the last a server; the store numbers the workers."""
    _without_torchrun()
    os.environ |= {
        "DMLC_ROLE": "scheduler" if rank == 0 else "server" if rank == world - 1 else "worker",
        "DMLC_NUM_WORKER": str(world - 2),
        "DMLC_NUM_SERVER": "1",
        "DMLC_PS_ROOT_URI": "127.0.0.1",
        "DMLC_PS_ROOT_PORT": str(ports[0]),
    }
    result: dict[str, Any] = {}
    ps.run(_count(result), mode=ps.SSP(1))
    ps.run(_count(result), mode="sync")
    return result


def colocated(rank: int, world: int, mode: str) -> dict[str, Any]:
    """Each process has a worker and a server."""
    result: dict[str, Any] = {}
    ps.run(_count(result), servers="colocated", mode=mode)
    return result


def colocated_dies(rank: int, world: int) -> dict[str, Any]:
    """The last process is killed, with its server."""
    result: dict[str, Any] = {}

    def main(w: ps.Worker) -> None:
        table = w.table("t", 1, rows=2000, rule=ps.Add())
        for step in range(1000):
            if w.rank == w.workers - 1 and step == 3:
                os.kill(os.getpid(), signal.SIGKILL)
            table.push(range(2000), torch.ones(2000, 1))
            w.clock()

    try:
        ps.run(main, servers="colocated")
    except errors.PeerError as error:
        result["error"] = str(error)
    return result


def colocated_raises(rank: int, world: int) -> dict[str, Any]:
    """The program of worker 1 raises: no process hangs."""
    result: dict[str, Any] = {}

    def main(w: ps.Worker) -> None:
        table = w.table("t", 1, rows=2000, rule=ps.Add())
        for step in range(1000):
            if w.rank == 1 and step == 3:
                raise KeyError("of the program")
            table.push(range(2000), torch.ones(2000, 1))
            w.clock()

    try:
        ps.run(main, servers="colocated")
    except (errors.PeerError, KeyError) as error:
        result["error"] = f"{type(error).__name__}: {error}"
    return result


def disagrees(rank: int, world: int) -> dict[str, Any]:
    """The program and the launcher name other numbers of servers."""
    _without_torchrun()
    cluster = {"worker": ["127.0.0.1:1"], "ps": ["127.0.0.1:2"]}
    task = {"type": "worker", "index": 0}
    os.environ["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": task})
    found = []
    for servers in (2, "colocated"):
        try:
            ps.run(print, servers=servers)  # type: ignore[arg-type]
        except errors.InvalidArgumentError as error:
            found.append(str(error))
    return {"errors": found}
