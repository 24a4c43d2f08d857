"""Ranks of a parameter server with replicas, of which some are killed."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import torch

from rdmatensor import errors, ps

STEPS, ROWS, FATAL = 12, 50, 5
SEEDING = threading.Lock()  # of torch's generator, where workers are threads


def kill(w: ps.Worker, server: int, after_s: float = 0.0) -> None:
    """Kill the process of a server, now or a little later."""
    servers: Any = w.describe()["servers"]
    pid = servers[server]["pid"]
    if after_s == 0:
        os.kill(pid, signal.SIGKILL)
    else:
        threading.Timer(after_s, os.kill, (pid, signal.SIGKILL)).start()


def train(w: ps.Worker, dies: Callable[[str, int], None] = lambda *_: None) -> dict[str, Any]:
    """Train dense models, tables and keys, and change named tensors; return all that came out.

    dies(phase, step) is called at each phase of a step.
    """
    with SEEDING:
        torch.manual_seed(1)
        model = torch.nn.Sequential(torch.nn.Linear(6, 40), torch.nn.Tanh(), torch.nn.Linear(40, 3))
    dense = w.dense(model, ps.Adam(0.01, lazy=False), split_bytes=256)
    rows = w.table("rows", 6, rows=ROWS, rule=ps.Adagrad(0.1), init=ps.normal())
    keys = w.table(
        "keys", 3, keys=ps.Keys(admit_after=2), rule=ps.Adam(0.1), init=ps.uniform(-1, 1)
    )
    embedding = ps.Embedding(rows)
    draw = torch.Generator().manual_seed(w.rank)
    if w.rank == 0:
        w.kv.put("count", torch.zeros(5, dtype=torch.int64))
    w.kv.get("count", wait=20)
    for step in range(STEPS):
        dies("begins", step)
        ids = torch.randint(ROWS, (16,), generator=draw)
        loss = (model(embedding(ids)) ** 2).sum()
        dies("has pulled", step)
        loss.backward()
        dies("has pushed rows", step)
        some = torch.randint(20, (8,), generator=draw) << 40
        keys.push(some, keys.pull(some) - 1)
        dies("has pushed keys", step)
        w.kv.add("count", torch.ones(5, dtype=torch.int64))
        dies("in clock", step)
        dense.step()
        dies("has ended", step)
    wanted = torch.arange(20) << 40
    values, is_there = keys.find(wanted)
    return {
        "parameters": torch.cat([one.detach().flatten() for one in model.parameters()]),
        "rows": rows.pull(range(ROWS)),
        "keys": values,
        "is_there": is_there,
    }


def _as_lists(found: dict[str, Any]) -> dict[str, Any]:
    return {name: one.tolist() for name, one in found.items()}


def primary_dies(
    _rank: int, _world: int, servers: int, server: int, phase: str, folder: str
) -> dict[str, Any]:
    """Worker 0 kills a server in its sixth step, and another one in its tenth."""
    result: dict[str, Any] = {}

    def main(w: ps.Worker) -> None:
        def dies(now: str, step: int) -> None:
            if w.rank == 0 and step == FATAL and now == phase:
                result["since"] = time.monotonic()
                kill(w, server, 0.0005 if phase == "in clock" else 0.0)
            if step == FATAL and now == "has ended":
                result["late_s"] = time.monotonic() - result.get("since", time.monotonic())

        result.update(_as_lists(train(w, dies)))
        result["count"] = w.kv.get("count").tolist()
        result["names"] = w.kv.names()
        if w.rank == 0:
            w.save(folder).wait()
        described = w.describe()
        result["lost"], result["steps"] = described["lost"], w.steps

    ps.run(main, servers=servers, replicas=1)
    return result


def both_die(_rank: int, _world: int) -> dict[str, Any]:
    """Worker 0 kills all servers: none has the rows."""
    result: dict[str, Any] = {}

    def main(w: ps.Worker) -> None:
        def dies(now: str, step: int) -> None:
            if w.rank == 0 and step == FATAL and now == "begins":
                kill(w, 0)
            if w.rank == 0 and step == FATAL + 2 and now == "begins":
                result["since"] = time.monotonic()
                kill(w, 0)

        train(w, dies)

    try:
        ps.run(main, servers=2, replicas=1)
    except errors.PeerError as error:
        result["error"] = str(error)
        result["late_s"] = time.monotonic() - result.get("since", time.monotonic())
    return result


def worker_and_server_die(rank: int, _world: int, mode: str) -> dict[str, Any]:
    """Worker 1 dies within a step, and then a server: each sample counts once."""
    result: dict[str, Any] = {}
    samples = torch.arange(120)

    def main(w: ps.Worker) -> None:
        counts = w.table("counts", 1, rows=120, rule=ps.Add())
        for step, (ids,) in enumerate(w.batches([samples], batch_size=3)):
            counts.push(ids, torch.ones(len(ids), 1))
            if w.rank == 1 and step == 3:
                os.kill(os.getpid(), signal.SIGKILL)
            if w.rank == 0 and step == 3:
                kill(w, 0)
            time.sleep(0.002)  # each worker gets some of the batches
            w.clock()
        result["counts"] = counts.pull(range(120)).flatten().tolist()

    ps.run(
        main,
        servers=2,
        replicas=1,
        mode=ps.SSP(1) if mode == "ssp" else mode,
        on_worker_death="continue",
    )
    return result
