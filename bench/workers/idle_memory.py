"""One of two processes that count what a connection takes while nothing is sent.

Rank 0 holds one context and connects it to N contexts of rank 1. It prints, for each connection:
its private memory, and the arena's allocated bytes, which the other process maps. Some
connections are made before the first look: they use up what is there once for all, and memory that
imports have freed.
"""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import rdmatensor
from bench.workers import harness
from bench.workers.harness import Folder

OPTIONS = {"connections": 192}
WARM = 64
_IDLE_S = 0.5  # set-up's buffers are given back by then


def private_bytes() -> int:
    """Return the memory of this process that no other one maps."""
    lines = Path("/proc/self/smaps_rollup").read_text(encoding="utf-8").splitlines()
    found = [line.split() for line in lines if line.startswith(("Private_Clean", "Private_Dirty"))]
    return sum(int(words[1]) << 10 for words in found)


def arena_bytes(context: rdmatensor.Context) -> int:
    """Return the allocated bytes of a context's arena."""
    return cast("dict[str, int]", context.describe()["arena"])["allocated_bytes"]


def main(arguments: SimpleNamespace) -> None:
    folder, count = Folder(arguments.folder, arguments.rank), arguments.connections
    looks: list[tuple[int, int]] = []
    worlds: list[rdmatensor.World] = []
    for number in range(WARM + count):
        store = rdmatensor.FileStore(arguments.folder / f"store{number}")
        if arguments.rank == 1 or not worlds:
            context = rdmatensor.Context()
        worlds.append(rdmatensor.join(store, arguments.rank, 2, job=f"{number}", context=context))
        worlds[-1].endpoint(1 - arguments.rank).wait_ready(60.0)
        if number + 1 in (WARM, WARM + count):
            time.sleep(_IDLE_S)
            looks.append((private_bytes(), arena_bytes(context)))
    if arguments.rank == 0:
        each = [(after - before) / count for before, after in zip(*looks, strict=True)]
        transport = str(worlds[0].endpoint(1).transport)
        harness.emit(transport=transport, private_bytes=each[0], arena_bytes=each[1])
    folder.swap("done", b"")
    for world in worlds:
        world.close()
