"""Ranks that sum by lossy wires, against the arithmetic in numpy, and what goes wrong."""

from __future__ import annotations

import hashlib
import os
import signal
import threading
import time
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from lossy_oracle import Floats, Oracle
from roles_counts import kernel_bytes

import rdmatensor.distributed
from rdmatensor import compress

TIMEOUT = timedelta(seconds=60)
STEPS = 3
# Wire, block, elements, whether it is an average, whether residuals are kept.
CASES = (
    ("q8", 128, 0, False, True),
    ("q8", 128, 1, True, True),
    ("q8", 128, 129, False, False),
    ("q8", 32, 5000, True, True),
    ("q8", 1024, 20001, False, True),
    ("bf16", 128, 777, True, True),
    ("bf16", 128, 40000, False, False),
    ("q8", 128, 300001, True, True),
)


def values_of(rank: int, count: int, salt: int) -> Floats:
    """Values of many magnitudes, with a NaN and an infinity in long tensors."""
    generator = np.random.default_rng(1000 * salt + rank)
    scales = np.array([1e-9, 1e-5, 0.0, 1.0, 3e4], np.float32)
    values = generator.standard_normal(count).astype(np.float32)
    values *= scales[np.arange(count) // 32 % len(scales)]
    if count > 10000 and rank == 1:
        values[7000] = np.nan
    if count > 10000 and rank == 0 and salt == 1:
        values[9999] = np.inf
    return values


def check(what: str, got: torch.Tensor, want: Floats) -> str:
    """Compare bits, but for those of NaNs; return a digest that all ranks should have."""
    found = got.numpy()
    is_nan = np.isnan(want)
    assert (np.isnan(found) == is_nan).all(), f"{what}: NaNs"
    same = found.view(np.uint32)[~is_nan] == want.view(np.uint32)[~is_nan]
    assert same.all(), f"{what}: {np.count_nonzero(~same)} of {len(want)} differ"
    return hashlib.sha256(found.tobytes()).hexdigest()


def residuals(world: int, count: int, *, is_kept: bool) -> list[Floats] | None:
    return [np.zeros(count, np.float32) for _ in range(world)] if is_kept else None


def sums(rank: int, world: int) -> list[str]:
    """All three collectives by all wires, several times each."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    digests = []
    for wire, block, count, is_average, is_kept in CASES:
        op = dist.ReduceOp.AVG if is_average else dist.ReduceOp.SUM
        options: dict[str, Any] = {"wire": wire, "block": block}
        granule = block if wire == "q8" else 128
        whole = count * world
        kinds = {"all_reduce": count, "reduce_scatter": whole, "all_gather": count}
        for kind, sent_count in kinds.items():
            oracle = Oracle(
                wire, granule, is_average, residuals(world, sent_count, is_kept=is_kept)
            )
            lost = torch.zeros(sent_count) if is_kept else None
            for step in range(STEPS):
                sent = [values_of(each, sent_count, step) for each in range(world)]
                tensor = torch.from_numpy(sent[rank].copy())
                if kind == "all_reduce":
                    want = oracle.all_reduce(sent)
                    work = compress.all_reduce(
                        tensor, op=op, residual=lost, async_op=step == 1, **options
                    )
                    got = tensor
                elif kind == "reduce_scatter":
                    want = oracle.reduce_scatter(sent)[rank]
                    got = torch.empty(count)
                    work = compress.reduce_scatter(
                        got, tensor, op=op, residual=lost, async_op=step == 1, **options
                    )
                else:
                    want = oracle.all_gather(sent)
                    got = torch.empty(whole)
                    work = compress.all_gather(
                        got, tensor, residual=lost, async_op=step == 1, **options
                    )
                assert (work is not None) == (step == 1)
                if work is not None:
                    work.wait()
                digest = check(f"{kind} {wire} of {count}, step {step}", got, want)
                if kind != "reduce_scatter":
                    digests.append(digest)
                if lost is not None and oracle.residuals is not None:
                    check(f"{kind} {wire} of {count}, residual", lost, oracle.residuals[rank])
    dist.destroy_process_group()
    return digests


def mixed(rank: int, world: int) -> dict[str, Any]:
    """Exact and lossy sums in flight at once, in groups that overlap; then what describe() says."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    half = dist.new_group([0, 1], timeout=TIMEOUT)
    works = []
    tensors = [torch.full((5000 + 100 * i,), float(rank + 1)) for i in range(6)]
    for i, tensor in enumerate(tensors):
        if i % 2 == 0:
            works.append(dist.all_reduce(tensor, async_op=True))
        else:
            works.append(compress.all_reduce(tensor, wire="q8", async_op=True))
    for work in works:
        assert work is not None
        work.wait()
    for tensor in tensors:
        assert torch.allclose(tensor, torch.tensor(world * (world + 1) / 2), rtol=0.01)
    if rank < 2:
        tensor = torch.ones(300)
        compress.all_reduce(tensor, wire="bf16", group=half)
        assert tensor.eq(2).all()
    exact = torch.full((3,), 1.0000001)
    dist.all_reduce(exact)  # never compressed
    assert exact.eq(torch.tensor(1.0000001) * world).all()
    compress.all_reduce(exact, wire="exact", op=dist.ReduceOp.AVG)
    alone = dist.new_group([rank], use_local_synchronization=True, timeout=TIMEOUT)
    single = torch.tensor([1.2345678])
    compress.all_reduce(single, wire="q8", group=alone)
    assert single.item() == torch.tensor(1.2345678).item()
    described: Any = rdmatensor.distributed.describe()["collectives"]
    dist.destroy_process_group()
    return dict(described["wire"])


def refusals(rank: int, world: int) -> dict[str, str]:
    """What is refused on the rank that asks for it, before anything is sent; then all agree."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    floats = torch.ones(8)
    asked: dict[str, Any] = {
        "integers": lambda: compress.all_reduce(torch.ones(8, dtype=torch.int64)),
        "halves": lambda: compress.all_reduce(torch.ones(8, dtype=torch.float16), wire="bf16"),
        "max": lambda: compress.all_reduce(floats, op=dist.ReduceOp.MAX),
        "wire": lambda: compress.all_reduce(floats, wire="q4"),  # type: ignore[arg-type]
        "block": lambda: compress.all_reduce(floats, block=100),
        "residual": lambda: compress.all_reduce(floats, residual=torch.zeros(7)),
        "own residual": lambda: compress.all_reduce(floats, residual=floats),
        "exact residual": lambda: compress.all_reduce(
            floats, wire="exact", residual=torch.zeros(8)
        ),
        "strides": lambda: compress.all_reduce(torch.ones(4, 4).t()[:2]),
        "parts": lambda: compress.reduce_scatter(torch.ones(3), floats),
        "list": lambda: compress.all_reduce([1.0]),  # type: ignore[arg-type]
    }
    seen = {}
    for name, call in asked.items():
        if rank != 0:
            continue
        try:
            call()
            seen[name] = "no error"
        except (TypeError, ValueError) as error:
            seen[name] = f"{type(error).__name__}: {error}"
    tensor = torch.ones(8)
    compress.all_reduce(tensor, wire="q8")
    assert torch.allclose(tensor, torch.tensor(float(world)), rtol=0.01)
    dist.destroy_process_group()
    return seen


def disagreement(rank: int, _world: int, *, options: dict[str, Any]) -> str:
    """Rank 1 asks for another wire than the others."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    dist.barrier()
    try:
        compress.all_reduce(torch.ones(100000), **(options if rank == 1 else {"wire": "q8"}))
    except RuntimeError as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def late(rank: int, _world: int) -> float:
    """A sum that lasts longer than a call may spin: it is there when the call returns."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    tensor = torch.full((100000,), float(rank + 1))
    dist.barrier()
    if rank == 1:
        time.sleep(0.5)
    assert compress.all_reduce(tensor, wire="q8") is None
    found = float(tensor.mean())
    dist.destroy_process_group()
    return found


def death(rank: int, _world: int) -> dict[str, Any]:
    """Rank 1 dies while long sums are on their way."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    tensor, lost = torch.ones(8 << 20), torch.zeros(8 << 20)
    compress.all_reduce(tensor, wire="q8", residual=lost)
    if rank == 1:
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGKILL)).start()
    start_s = time.monotonic()
    try:
        while True:
            compress.all_reduce(tensor, wire="q8", residual=lost, op=dist.ReduceOp.AVG)
    except RuntimeError as error:
        return {"text": str(error), "took_s": time.monotonic() - start_s}


def traffic(_rank: int, _world: int) -> dict[str, int]:
    """Bytes that the kernel sends for one sum of 16 MiB: exact, then by each wire."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    aside = dist.new_group(timeout=TIMEOUT)
    tensor = torch.randn(4 << 20)
    found = {}
    for wire in ("exact", "bf16", "q8"):
        for is_counted in (False, True):
            dist.barrier(group=aside)
            time.sleep(0.2)
            before, _ = kernel_bytes()
            compress.all_reduce(tensor.clone(), wire=wire)  # type: ignore[arg-type]
            dist.barrier(group=aside)
            time.sleep(0.2)
            if is_counted:
                found[wire] = kernel_bytes()[0] - before
    dist.destroy_process_group()
    return found


def repeated(rank: int, world: int) -> float:
    """The same tensors again and again: how far the sum of all averages is off, in units of 1/127.

    Without residuals most of these values would never arrive.
    """
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    sent = [values_of(each, 4000, 3) * np.float32(1e-3) for each in range(world)]
    tensor, lost = torch.from_numpy(sent[rank]), torch.zeros(4000)
    total, steps = torch.zeros(4000, dtype=torch.float64), 300
    for _ in range(steps):
        got = tensor.clone()
        compress.all_reduce(got, wire="q8", residual=lost, op=dist.ReduceOp.AVG)
        total += got
    exact = torch.from_numpy(np.mean(np.array(sent, np.float64), axis=0)) * steps
    largest = max(float(np.abs(values).max()) for values in sent)
    dist.destroy_process_group()
    return float((total - exact).abs().max()) / (largest / 127)
