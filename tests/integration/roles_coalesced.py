"""Coalesced collectives next to the same ones alone: equal bits, in fewer writes."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, cast

import torch
import torch.distributed as dist
from roles_collectives import TIMEOUT
from torch._C._distributed_c10d import AllreduceCoalescedOptions

import rdmatensor.distributed

ALGORITHMS = ["auto", "messages", "ring", "halving-doubling", "tree"]
# Empty, tiny, around cache lines, what a ring cuts unevenly; then the largest that is packed, and
# what is not. Together, packs of more than 64 KiB.
SIZES = [64] * 14 + [0, 1, 63, 65, 333, 1000, 4096, 4096, 4096, 4096, 4097, 50_000]
DTYPES = [torch.float32, torch.bfloat16, torch.int64]


def tensors_of(rank: int, blocks: int = 1) -> list[torch.Tensor]:
    """All sizes in all dtypes, mixed; numbers whose sums show the order that they are made in."""
    generator = torch.Generator().manual_seed(rank)
    made = []
    for i, count in enumerate(SIZES):
        values = torch.randn(count * blocks, generator=generator, dtype=torch.float64)
        values *= 10.0 ** (i % 7)
        made += [values.to(dtype) for dtype in DTYPES]
    return made


def copies(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    return [tensor.clone() for tensor in tensors]


def writes_of(group: dist.ProcessGroup) -> int:
    return counters_of(group)["writes"]


def counters_of(group: dist.ProcessGroup) -> dict[str, int]:
    return cast("dict[str, int]", rdmatensor.distributed.describe(group)["collectives"])


def all_reduce(
    group: dist.ProcessGroup, tensors: list[torch.Tensor], is_coalesced: bool
) -> list[torch.Tensor]:
    if not is_coalesced:
        for tensor in tensors:
            dist.all_reduce(tensor, op=dist.ReduceOp.SUM, group=group)
        return tensors
    options = AllreduceCoalescedOptions()
    options.reduceOp = dist.ReduceOp.SUM
    group.allreduce_coalesced(tensors, options).wait()
    return tensors


def all_reduce_managed(
    group: dist.ProcessGroup, tensors: list[torch.Tensor], is_coalesced: bool
) -> list[torch.Tensor]:
    """The same through torch's manager, with the operations waited for and not."""
    if not is_coalesced:
        return all_reduce(group, tensors, False)
    half = len(tensors) // 2
    with dist._coalescing_manager(group=group):
        for tensor in tensors[:half]:
            dist.all_reduce(tensor, group=group)
    device = torch.device("cpu")
    with dist._coalescing_manager(group=group, device=device, async_ops=True) as manager:
        for tensor in tensors[half:]:
            dist.all_reduce(tensor, group=group)
    manager.wait()
    return tensors


def all_gather(
    group: dist.ProcessGroup, tensors: list[torch.Tensor], is_coalesced: bool
) -> list[torch.Tensor]:
    outputs = [tensor.new_zeros(tensor.numel() * group.size()) for tensor in tensors]
    pairs = list(zip(outputs, tensors, strict=True))
    if is_coalesced:
        with dist._coalescing_manager(group=group):
            for output, tensor in pairs:
                dist.all_gather_into_tensor(output, tensor, group=group)
    else:
        for output, tensor in pairs:
            dist.all_gather_into_tensor(output, tensor, group=group)
    return outputs


def reduce_scatter(
    group: dist.ProcessGroup, tensors: list[torch.Tensor], is_coalesced: bool
) -> list[torch.Tensor]:
    size = group.size()
    inputs = [tensor.repeat(size) * (1 + group.rank()) for tensor in tensors]
    outputs = [torch.zeros_like(tensor) for tensor in tensors]
    pairs = list(zip(outputs, inputs, strict=True))
    if is_coalesced:
        with dist._coalescing_manager(group=group, async_ops=True) as manager:
            for output, tensor in pairs:
                dist.reduce_scatter_tensor(output, tensor, group=group)
        manager.wait()
    else:
        for output, tensor in pairs:
            dist.reduce_scatter_tensor(output, tensor, group=group)
    return outputs


Ways = Callable[[dist.ProcessGroup, list[torch.Tensor], bool], list[torch.Tensor]]


def compare(group: dist.ProcessGroup, way: Ways) -> dict[str, Any]:
    tensors = tensors_of(group.rank())
    dist.barrier(group=group)  # the set-up of a group is not what is counted
    before = counters_of(group)
    together = way(group, copies(tensors), True)
    between = counters_of(group)
    alone = way(group, copies(tensors), False)
    after = counters_of(group)
    different = [
        i
        for i, (ours, wanted) in enumerate(zip(together, alone, strict=True))
        if not torch.equal(ours.view(torch.uint8), wanted.view(torch.uint8))
    ]
    return {
        "different": different,
        "calls": between["calls"] - before["calls"],
        "packs": between["packs"] - before["packs"],
        "packed": between["packed_tensors"] - before["packed_tensors"],
        "writes": between["writes"] - before["writes"],
        "calls alone": after["calls"] - between["calls"],
        "writes alone": after["writes"] - between["writes"],
    }


def many_small(group: dist.ProcessGroup) -> dict[str, Any]:
    """Count the writes of a thousand tensors of 256 B."""
    tensors = [torch.full((64,), float(i)) for i in range(1000)]
    before = writes_of(group)
    all_reduce(group, tensors, True)
    right = all(bool((tensor == float(i * group.size())).all()) for i, tensor in enumerate(tensors))
    return {"right": right, "writes": writes_of(group) - before}


def cut_differently(group: dist.ProcessGroup) -> str:
    """Ranks that give the same numbers in other tensors; the group is broken after it."""
    sizes = [3, 5] if group.rank() == 0 else [5, 3]
    try:
        all_reduce(group, [torch.zeros(size) for size in sizes], True)
    except RuntimeError as error:
        return str(error)
    return "nothing was raised"


def coalesced(rank: int, world: int) -> dict[str, Any]:
    """Every algorithm that can be forced, one group each: what was counted, what differed."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    seen: dict[str, Any] = {}
    for algorithm in ALGORITHMS:
        os.environ["RDMATENSOR_ALGO"] = algorithm  # looked at when a group begins to be used
        group = dist.new_group(timeout=TIMEOUT)
        assert group is not None
        ways: list[Ways] = [all_reduce, all_reduce_managed, all_gather, reduce_scatter]
        seen[algorithm] = {way.__name__: compare(group, way) for way in ways}
        seen[algorithm]["many small"] = many_small(group)
    del os.environ["RDMATENSOR_ALGO"]
    group = dist.new_group(timeout=TIMEOUT)
    assert group is not None
    seen["mismatch"] = cut_differently(group)
    dist.barrier()
    dist.destroy_process_group()
    return seen
