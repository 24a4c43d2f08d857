"""One of the ranks that sum float32 by each wire in turn, and train by communication hooks.

A call begins after a barrier; the suite takes the slowest rank. The sums are compared with what
they have to be before they are timed. A training step is one of a linear model whose gradients have
the size of the sums, so that the link bounds it.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

import rdmatensor.hooks
import rdmatensor.torch
from bench.workers import harness
from bench.workers.crossover import wire_bytes
from rdmatensor import compress

OPTIONS: dict[str, object] = {
    "ranks": 2,
    "sizes": [1 << 20],  # bytes of tensors
    "calls": 2,
    "step_bytes": 1 << 20,  # of the gradients of a training step; 0: none is trained
    "has_gloo": False,
}
WIRES: tuple[Literal["exact", "bf16", "q8"], ...] = ("exact", "bf16", "q8")
_PATIENCE = timedelta(seconds=300)
_ROWS = 8  # of a batch
_ROOM = {"exact": 1e-6, "bf16": 0.01, "q8": 0.02}
Act = Callable[[], object]


def timed(acts: dict[str, Act], calls: int, **fields: object) -> None:
    """Print the times of all, which take turns, and the bytes that leave this host for a call."""
    raw_ns: dict[str, list[int]] = {name: [] for name in acts}
    sent: dict[str, int] = dict.fromkeys(acts, 0)
    for act in acts.values():
        act()
    for _ in range(calls):
        for name, act in acts.items():
            dist.barrier()
            before, began_ns = wire_bytes(), time.perf_counter_ns()
            act()
            raw_ns[name].append(time.perf_counter_ns() - began_ns)
            dist.barrier()
            sent[name] += sum(wire_bytes()[1:]) - sum(before[1:])
    for name, all_ns in raw_ns.items():
        harness.emit(name=name, raw_ns=all_ns, rank_bytes=sent[name] / calls, **fields)


def check(tensor: torch.Tensor, wire: Literal["exact", "bf16", "q8"], ranks: int) -> None:
    """Compare one sum with what it has to be."""
    summed = tensor * (dist.get_rank() + 1)
    compress.all_reduce(summed, wire=wire)
    wanted = tensor * (ranks * (ranks + 1) / 2)
    error = torch.linalg.vector_norm(summed - wanted) / torch.linalg.vector_norm(wanted)
    if not error < _ROOM[wire]:
        raise RuntimeError(f"the sum by {wire} is off by {float(error):.3g}")


def sums(size: int, ranks: int, calls: int) -> None:
    """All wires, with residuals where there are any."""
    generator = torch.Generator().manual_seed(1)
    tensor = torch.randn(size // 4, generator=generator)
    acts: dict[str, Act] = {}
    for wire in WIRES:
        check(tensor, wire, ranks)
        lost = None if wire == "exact" else torch.zeros_like(tensor)
        acts[wire] = functools.partial(
            compress.all_reduce, tensor, wire=wire, residual=lost, op=dist.ReduceOp.AVG
        )
    timed(acts, calls, op="all_reduce", size=size)


def step(
    model: DistributedDataParallel, optimizer: torch.optim.Optimizer, batch: torch.Tensor
) -> None:
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()


def training(size: int, calls: int, *, has_gloo: bool) -> None:
    """One step of DistributedDataParallel by each hook."""
    width = max(1, round((size / 4) ** 0.5))
    groups: dict[str, Any] = {"exact": None, "q8": None}
    if has_gloo:
        gloo = dist.new_group(backend="gloo", timeout=_PATIENCE)
        groups |= {"gloo": gloo, "gloo fp16": gloo}
    batch = torch.randn(_ROWS, width)
    acts: dict[str, Act] = {}
    for name, group in groups.items():
        model = DistributedDataParallel(
            torch.nn.Linear(width, width, bias=False),
            process_group=group,
            gradient_as_bucket_view=True,
        )
        if name == "q8":
            model.register_comm_hook(*rdmatensor.hooks.q8())
        elif name == "gloo fp16":
            model.register_comm_hook(group, default_hooks.fp16_compress_hook)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

        acts[name] = functools.partial(step, model, optimizer, batch)
        acts[name]()  # its buckets are made again after the first step
    timed(acts, calls, op="training step", size=width * width * 4)


def main(arguments: SimpleNamespace) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "rdmatensor",
        store=FileStore(str(arguments.folder / "c10d"), arguments.ranks),
        rank=arguments.rank,
        world_size=arguments.ranks,
        timeout=_PATIENCE,
    )
    for size in arguments.sizes:
        sums(size, arguments.ranks, arguments.calls)
    if arguments.step_bytes:
        training(arguments.step_bytes, arguments.calls, has_gloo=arguments.has_gloo)
    dist.destroy_process_group()
