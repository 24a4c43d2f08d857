"""What the ranks of a training group found: whether they arrived where Gloo's did, and how fast."""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Any, cast

import torch

from bench.workers.trainers import Job

SAMPLE_ELEMENTS = 512  # of each parameter
# Of how far the parameters may be from Gloo's, in parts of how far they moved.
FARTHEST = 0.001


def sampled(model: torch.nn.Module) -> list[torch.Tensor]:
    """Return some elements of each parameter, evenly spread."""
    flats = [parameter.detach().reshape(-1) for parameter in model.parameters()]
    return [flat[:: max(1, flat.numel() // SAMPLE_ELEMENTS)].clone() for flat in flats]


def bits_of(model: torch.nn.Module) -> str:
    """Return a digest of all parameters' bytes."""
    digest = hashlib.blake2b()
    for parameter in model.parameters():
        digest.update(parameter.detach().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def held_bytes(pid: int | None = None) -> int:
    """Return the memory of a process, this one by default (Pss): its part of what it shares."""
    rollup = Path("/proc") / str(pid or "self") / "smaps_rollup"
    for line in rollup.read_text(encoding="utf-8").splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) << 10
    raise RuntimeError("the kernel does not show how much memory is held")


def found_by(job: Job) -> list[dict[str, Any]]:
    """Return what each rank of a group that has ended found."""
    paths = [job.folder / f"rank{rank}" for rank in range(job.ranks)]
    return [cast("dict[str, Any]", json.loads(path.read_text(encoding="utf-8"))) for path in paths]


def distance(mine: Path, reference: Path) -> float:
    """How far the parameters are from others, in parts of how far those moved."""
    _, now = torch.load(mine)
    before, wanted = torch.load(reference)
    off = sum(float((a - b).double().square().sum()) for a, b in zip(now, wanted, strict=True))
    moved = sum(float((a - b).double().square().sum()) for a, b in zip(before, wanted, strict=True))
    return float((off / moved) ** 0.5)


def check(job: Job, found: list[dict[str, Any]], reference: Path) -> float:
    """Compare parameters after the first steps; return their distance from Gloo's."""
    far = distance(job.folder / "sampled", reference)
    if job.name in ("floor", "planned_floor"):
        return far
    if len({one["bits"] for one in found}) != 1:
        raise RuntimeError(f"{job.model}, {job.name}: the ranks have other parameters")
    if not far < FARTHEST:
        raise RuntimeError(f"{job.model}, {job.name}: {far:.2g} away from Gloo's parameters")
    return far


def figures_of(job: Job, found: list[dict[str, Any]], far: float) -> dict[str, Any]:
    """Return what a group that has ended is about; blocks_ns: of each step, by blocks."""
    by_rank = [one["blocks"] for one in found]
    blocks = list(zip(*by_rank, strict=True))  # of each the ranks' figures
    steps = job.steps * len(blocks)
    parts = [one["parts"] for block in blocks for one in block]
    return {
        "blocks_ns": [
            [max(of) for of in zip(*(one["took_ns"] for one in block), strict=True)]
            for block in blocks
        ],
        "cpu_ns": sum(one["spent_ns"] for block in blocks for one in block) // steps,
        "memory_bytes": sum(one["held_bytes"] for one in found),
        "arena_bytes": sum(one["arena_bytes"] for one in found),
        "parts": {
            name: sum(one[name] for one in parts) / job.ranks / steps
            for name in (parts[0] if parts else {})
        },
        "distance": far,
    }


def curve_of(job: Job, found: list[dict[str, Any]], reference: Path) -> dict[str, Any]:
    """Return the mean loss before each step, and how long steps took; the losses are Gloo's."""
    losses = [sum(of) / job.ranks for of in zip(*(one["losses"] for one in found), strict=True)]
    ends_ns = [max(of) for of in zip(*(one["at_ns"] for one in found), strict=True)]
    if len({one["bits"] for one in found}) != 1:
        raise RuntimeError(f"{job.model}, {job.name}: the ranks have other parameters")
    if not reference.exists():
        reference.write_text(json.dumps(losses), encoding="utf-8")
    wanted = json.loads(reference.read_text(encoding="utf-8"))
    if not all(map(math.isfinite, losses)):
        raise RuntimeError(f"{job.model}, {job.name}: a loss is not finite")
    off = max(abs(loss - other) for loss, other in zip(losses, wanted, strict=True)) / wanted[0]
    if not off < FARTHEST:
        raise RuntimeError(f"{job.model}, {job.name}: losses are {off:.2g} off Gloo's")
    raw_ns = [after - before for before, after in zip([0, *ends_ns], ends_ns, strict=False)]
    return {"raw_ns": raw_ns, "losses": losses, "off": off}
