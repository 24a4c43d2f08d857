"""Training steps that nobody took, for tests of `rdmatensor bench models`."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2]))

from bench.benchlib.record import Record
from bench.suite import models, samples

ABOUT: Record = {
    "model": "vgg16",
    "divisor": 1,
    "ranks": 2,
    "parameter_bytes": 512 << 20,
    "batch": "2x3x56x56",
}
MS = 1_000_000


def printed(name: str, *took_ms: float, cpu_ms: float = 10.0) -> Record:
    """Return what a worker prints of a trainer that had one block of steps."""
    return {
        "name": name,
        "transport": "",
        "blocks_ns": [[round(ms * MS) for ms in took_ms]],
        "beside": 0,
        "cpu_ns": round(cpu_ms * MS),
        "memory_bytes": 96 << 20,
        "arena_bytes": (32 << 20) if name == "planned" else 0,
        "distance": 2e-6,
    }


def records(
    of_ms: dict[str, float], turns: int = 3, spread: float = 0.01, **about: object
) -> list[Record]:
    """Return the records of all trainers' steps; spread: of the samples of a turn."""
    found = [
        record
        for start in range(turns)
        for who, ms in of_ms.items()
        for record in models.records_of(
            printed(who, ms, (1 + spread) * ms, (1 - spread) * ms),
            {**ABOUT, **about},
            "shm",
            start,
        )
    ]
    return models.with_shares(samples.merge(found))


STEPS_MS = {"planned": 120.0, "copied": 200.0, "gloo": 220.0, "grpc_cpp": 600.0, "floor": 100.0}
