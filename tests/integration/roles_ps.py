"""Ranks of a parameter server, as processes."""

from __future__ import annotations

import os
import random
import resource
import signal
import threading
import time
from pathlib import Path
from typing import Any

import torch

from rdmatensor import errors, ps

SAMPLES = 120


def _train(w: ps.Worker) -> None:
    table = w.table("t", 4, rows=100, rule=ps.SGD(0.1), init=ps.uniform(-1, 1))
    embedding = ps.Embedding(table)
    for step in range(30):
        ids = (torch.arange(20) * 7 + step + w.rank) % 100
        (embedding(ids) ** 2).sum().backward()
        w.clock()
    rows = table.pull(range(100))
    assert float(rows.abs().max()) < 0.5, "training shrinks all rows"


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


def full_disk(_rank: int, _world: int, folder: str) -> dict[str, Any]:
    """A server may not write as much as a second checkpoint has."""
    result: dict[str, Any] = {}

    def main(w: ps.Worker) -> None:
        table = w.table("t", 64, rows=8192, rule=ps.Add())
        w.save(folder).wait()
        table.push(range(8192), torch.ones(8192, 64))
        w.clock()
        described: Any = w.describe()["servers"]
        pid = described[1]["pid"]
        before = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (300_000, before[1]))
        try:
            w.save(folder).wait()
        except errors.DeviceError as error:
            result["error"] = str(error)
        result["files"] = sorted(one.name for one in Path(folder).iterdir())
        result["kept"] = float(ps.Checkpoint(folder).table("t")["values"].abs().max())
        resource.prlimit(pid, resource.RLIMIT_FSIZE, before)
        w.clock()
        w.save(folder).wait()
        result["saved"] = float(ps.Checkpoint(folder).table("t")["values"].min())

    ps.run(main, servers=2)
    return result


def server_dies(rank: int, world: int, folder: str | None) -> dict[str, Any]:
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
                if step == 1 and w.rank == 0 and folder is not None:
                    w.save(folder).wait()
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


PLACES = ("leased", "pushed one table", "pushed", "in clock", "after clock", "at some time")


def _die(after_s: float = 0.0) -> None:
    if after_s > 0:
        threading.Timer(after_s, _die).start()
    else:
        os.kill(os.getpid(), signal.SIGKILL)


def victims(rank: int, _world: int, mode: str, seed: int) -> dict[str, Any]:
    """Each worker but 0 dies in one of its steps, at one of the places; samples are counted."""
    draw = random.Random(100 * seed + rank)
    place = PLACES[(seed * 3 + rank) % len(PLACES)]
    fatal = draw.randrange(2, 6)
    result: dict[str, Any] = {}

    def main(w: ps.Worker) -> None:
        counts = w.table("counts", 1, rows=SAMPLES, rule=ps.Add())
        twice = w.table("twice", 1, rows=SAMPLES, rule=ps.Add())
        for step, (ids,) in enumerate(w.batches([torch.arange(SAMPLES)], batch_size=3)):
            ends = place if w.rank > 0 and step == fatal else ""
            if ends == "at some time":
                _die(draw.random() * 0.004)
            elif ends == "leased":
                _die()
            time.sleep(0.002 * (w.rank == 0))  # the others get most of the batches
            counts.push(ids, torch.ones(len(ids), 1))
            if ends == "pushed one table":
                _die()
            twice.push(ids, torch.full((len(ids), 1), 2.0))
            if ends == "pushed":
                _die()
            elif ends == "in clock":
                _die(draw.random() * 0.0005)
            w.clock()
            if ends:
                _die()
        result["counts"] = counts.pull(range(SAMPLES)).flatten().tolist()
        result["twice"] = twice.pull(range(SAMPLES)).flatten().tolist()

    ps.run(main, servers=2, mode=ps.SSP(1) if mode == "ssp" else mode, on_worker_death="continue")
    return result


def _dying(ask: Any, calls: int) -> Any:
    """Pass on so many calls, then die."""
    done = 0

    def call(*args: Any, **kinds: Any) -> Any:
        nonlocal done
        if done == calls:
            _die()
        done += 1
        return ask(*args, **kinds)

    return call


def dies_in_add(rank: int, _world: int) -> dict[str, Any]:
    """Workers 1 and 2 are killed between two parts of a change; worker 0 counts."""
    result: dict[str, Any] = {}

    def main(w: ps.Worker) -> None:
        if w.rank == 0:
            w.kv.put("x", torch.zeros(100_000, dtype=torch.int64))
        w.kv.get("x", wait=20)
        ones = torch.ones(100_000, dtype=torch.int64)
        for step in range(4):
            if w.rank > 0 and step == 3:
                w.kv.put(f"dies {w.rank}", torch.zeros(()))
                w.kv._ask = _dying(w.kv._ask, calls=w.rank)
            w.kv.add("x", ones)
        if w.rank == 0:
            for other in (1, 2):
                w.kv.get(f"dies {other}", wait=20)
            w.kv.add("x", ones)
            result["values"] = w.kv.get("x").unique().tolist()

    ps.run(main, servers=1, on_worker_death="continue", mode="async")
    return result


def _peak_bytes(pid: int) -> int:
    """Return the most memory that a process had resident."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    return int(next(one for one in lines if one.startswith("VmHWM")).split()[1]) * 1024


def spills(rank: int, _world: int, folder: str) -> dict[str, Any]:
    """A table of 200 MiB with 16 MiB in memory; the server says how its memory has grown."""
    result: dict[str, Any] = {}
    dim, rows = 256, 100_000

    def main(w: ps.Worker) -> None:
        small: Any = {"spill": folder, "memory": 16 << 20, "rule": ps.Adagrad(1.0)}
        table = w.table("t", dim, rows=rows, **small)
        pid = w.describe()["servers"][0]["pid"]  # type: ignore[index]
        before = _peak_bytes(pid)
        for first in range(0, rows, 2000):
            table.push(range(first, first + 2000), torch.ones(2000, dim))
            w.clock()
        ids = torch.arange(0, rows, 3)
        right = [bool((table.pull(one) == -1).all()) for one in ids.split(1000)]
        result["grown_bytes"] = _peak_bytes(pid) - before
        state: Any = w.describe()["servers"]
        result["is_right"] = all(right)
        result["file_bytes"] = state[0]["tables"]["t"]["file_bytes"]
        result["memory_bytes"] = state[0]["tables"]["t"]["memory_bytes"]

    ps.run(main, servers=1)
    return result
