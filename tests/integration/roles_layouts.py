"""Every operation on tensors that are not row-major, and that differ in strides among the ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import rdmatensor.distributed

TIMEOUT = timedelta(seconds=60)
SHAPE = (2, 4, 3, 5)
Op = dist.ReduceOp
Make = Callable[[], torch.Tensor]


def _gaps() -> torch.Tensor:
    return torch.zeros(2, 8, 3, 5)[:, ::2]


def _channels_last() -> torch.Tensor:
    return torch.zeros(SHAPE).to(memory_format=torch.channels_last)


def _permuted() -> torch.Tensor:
    return torch.zeros(5, 3, 4, 2).permute(3, 2, 1, 0)


def _rows() -> torch.Tensor:
    return torch.zeros(SHAPE)


LAYOUTS: dict[str, Make] = {"channels_last": _channels_last, "permuted": _permuted, "gaps": _gaps}


def filled(make: Make, number: int) -> torch.Tensor:
    """Return such a tensor with the values of a rank."""
    values = torch.arange(120.0).reshape(SHAPE) + 1000 * number
    return make().copy_(values)


def all_of(rank: int, world: int) -> dict[str, Any]:
    """Compare each operation with what it is for row-major tensors, elementwise."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    wrong: list[str] = []
    checked = 0
    for name, layout in LAYOUTS.items():
        for is_alike in (True, False):
            make = layout if is_alike or rank % 2 == 0 else _rows
            for call, found, wanted in operations(rank, world, make):
                checked += 1
                if found.shape != wanted.shape or not torch.equal(found, wanted):
                    wrong.append(f"{call}, {name}, alike: {is_alike}")
    counted: Any = rdmatensor.distributed.describe()["collectives"]
    dist.destroy_process_group()
    return {"wrong": wrong, "checked": checked, "counted": counted["rearranged_bytes"]}


def operations(
    rank: int, world: int, make: Make
) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    """Yield each operation's name, what it left here, and what it has to be."""
    everyone = [filled(_rows, number) for number in range(world)]
    total = torch.stack(everyone).sum(0)
    summed, waited, reduced, told = (filled(make, rank) for _ in range(4))
    dist.all_reduce(summed)
    yield "all_reduce", summed, total
    work = dist.all_reduce(waited, async_op=True)
    assert work is not None
    work.wait()
    yield "all_reduce, asynchronous", waited, total
    dist.reduce(reduced, 0)
    yield "reduce", reduced if rank == 0 else total, total
    dist.broadcast(told, world - 1)
    yield "broadcast", told, everyone[-1]
    packed = [filled(make, rank) for _ in range(2)]
    with dist._coalescing_manager():
        for tensor in packed:
            dist.all_reduce(tensor, Op.MAX)
    yield "coalesced", packed[1], everyone[-1]
    yield from _gathered(rank, world, make, everyone)
    yield from _scattered(rank, world, make, everyone)
    yield from _messages(rank, world, make, everyone)


def _gathered(
    rank: int, world: int, make: Make, everyone: list[torch.Tensor]
) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    mine = filled(make, rank)
    blocks = [make() for _ in range(world)]
    dist.all_gather(blocks, mine)
    for number, block in enumerate(blocks):
        yield "all_gather", block, everyone[number]
    whole = torch.zeros(world * SHAPE[0], *SHAPE[1:]).to(memory_format=torch.channels_last)
    dist.all_gather_into_tensor(whole, mine)
    yield "all_gather_into_tensor", whole, torch.cat(everyone)
    blocks = [make() for _ in range(world)]
    dist.gather(mine, blocks if rank == 0 else None)
    for number, block in enumerate(blocks if rank == 0 else ()):
        yield "gather", block, everyone[number]
    wide = torch.zeros(3)
    dist.all_gather(list(torch.zeros(world, 3).unbind()), wide[:1].expand(3))
    dist.all_reduce(wide)  # the expanded input was none of an output


def _scattered(
    rank: int, world: int, make: Make, everyone: list[torch.Tensor]
) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    out, scattered, whole_out = make(), make(), make()
    lists = [filled(make, number) for number in range(world)]
    dist.reduce_scatter(out, lists)
    yield "reduce_scatter", out, world * everyone[rank]
    dist.reduce_scatter_tensor(whole_out, torch.cat(everyone).to(memory_format=torch.channels_last))
    yield "reduce_scatter_tensor", whole_out, world * everyone[rank]
    dist.scatter(scattered, lists if rank == 0 else None)
    yield "scatter", scattered, everyone[rank]
    received = [make() for _ in range(world)]
    dist.all_to_all(received, [filled(make, rank) for _ in range(world)])
    for number, block in enumerate(received):
        yield "all_to_all", block, everyone[number]
    source = torch.zeros(3, 2 * world).t()
    source.copy_(torch.arange(6.0 * world).reshape(2 * world, 3) + 100 * rank)
    target = torch.zeros(3, 2 * world).t()
    dist.all_to_all_single(target, source)
    rows = torch.arange(6.0 * world).reshape(2 * world, 3)[2 * rank : 2 * rank + 2]
    yield "all_to_all_single", target, torch.cat([rows + 100 * other for other in range(world)])


def _messages(
    rank: int, world: int, make: Make, everyone: list[torch.Tensor]
) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    ahead, behind = (rank + 1) % world, (rank - 1) % world
    got, mine = make(), filled(make, rank)
    work = dist.irecv(got, behind)
    dist.send(mine, ahead)
    assert work is not None
    work.wait()
    yield "send, irecv", got, everyone[behind]
    any_source = make()
    works = dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, mine, ahead), dist.P2POp(dist.irecv, any_source, behind)]
    )
    for one in works:
        one.wait()
    yield "batch_isend_irecv", any_source, everyone[behind]


def refused(rank: int, world: int) -> dict[str, Any]:
    """What cannot be received into, on one rank; and a work that nobody waits for."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    text = "no error"
    try:
        dist.all_reduce(torch.zeros(1).expand(4))
    except ValueError as error:
        text = str(error)
    dropped = _channels_last()
    dropped += rank
    dist.all_reduce(dropped, async_op=True)
    dist.barrier()
    with torch.no_grad():
        leaf = nn.Parameter(filled(_permuted, rank))
    dist.all_reduce(leaf)  # requires gradients, and is no leaf of a graph
    dist.destroy_process_group()
    return {
        "text": text,
        "dropped": float(dropped.sum()),
        "leaf": leaf.is_leaf and torch.equal(leaf.detach(), _sum_of(world)),
    }


def _sum_of(world: int) -> torch.Tensor:
    return torch.stack([filled(_rows, number) for number in range(world)]).sum(0)


def averaged_by_hand(rank: int, world: int) -> dict[str, Any]:
    """Gradients of channels_last parameters, averaged without DistributedDataParallel; and Gloo."""
    torch.set_num_threads(1)
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    gloo = dist.new_group(backend="gloo", timeout=TIMEOUT)
    torch.manual_seed(3)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3))
    model = model.to(memory_format=torch.channels_last)
    x = torch.randn(2, 3, 10, 10, generator=torch.Generator().manual_seed(rank))
    model(x.to(memory_format=torch.channels_last)).square().mean().backward()
    same = []
    for parameter in model.parameters():
        assert parameter.grad is not None
        ours, theirs = parameter.grad.clone(), parameter.grad.clone()
        dist.all_reduce(ours)
        dist.all_reduce(theirs, group=gloo)
        same.append(torch.equal(ours, theirs))
    dist.destroy_process_group()
    return {"same": same, "world": world}
