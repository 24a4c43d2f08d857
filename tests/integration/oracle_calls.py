"""Collectives of objects, functional collectives, and collectives with a gradient."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.nn.functional as differentiated
from oracle import Results, Turn


def thing(rank: int) -> Any:
    """Of another size on each rank, the last one's above what goes in one small message."""
    return {"rank": rank, "text": "x" * (10 ** (2 + 3 * rank)), "tensor": torch.arange(rank + 2)}


def objects(turn: Turn) -> Results:
    mine, last = thing(turn.rank), turn.world - 1
    everybody: list[Any] = [None] * turn.world
    dist.all_gather_object(everybody, mine)
    at_root: list[Any] | None = [None] * turn.world if turn.rank == last else None
    dist.gather_object(mine, at_root, dst=last)
    sent = [mine, turn.rank, None] if turn.rank == 0 else [None, None, None]
    dist.broadcast_object_list(sent, src=0)
    received: list[Any] = [None]
    given = [thing(rank) for rank in range(turn.world)] if turn.rank == last else None
    dist.scatter_object_list(received, given, src=last)
    results = {"all": everybody, "root": at_root, "broadcast": sent, "scattered": received}
    if turn.rank == 0:
        dist.send_object_list([mine, [1, 2]], dst=1)
    elif turn.rank == 1:
        results["message"] = [None, None]
        dist.recv_object_list(results["message"], src=0)
    return results


def functional_calls(turn: Turn) -> Results:
    group: Any = dist.group.WORLD
    world, rank = turn.world, turn.rank
    data = turn.data(6 * world, 3)
    sizes = [2 + (rank + peer) % 2 for peer in range(world)]  # symmetric
    uneven = turn.data(sum(sizes))
    return {
        "all_reduce": functional.all_reduce(data, "sum", group),
        "average": functional.all_reduce(data, "avg", group),
        "all_gather": functional.all_gather_single(data, 1, group),
        "reduce_scatter": functional.reduce_scatter_single(data, "sum", 0, group),
        "broadcast": functional.broadcast(data, 0, group),
        "all_to_all": functional.all_to_all_single(uneven, sizes, sizes, group),
        "permuted": functional.permute_tensor(
            data[:, 0].contiguous(), [(r + 1) % world for r in range(world)], group
        ),
        "reduced": functional.all_reduce_coalesced([data, data * 2], "max", group),
        "gathered": functional.all_gather_into_tensor_coalesced([data, data[0]], group),
        "scattered": functional.reduce_scatter_tensor_coalesced(
            [data, data * 2], "sum", [0, 0], group
        ),
    }


def differentiable(turn: Turn) -> Results:
    """The gradient of a collective is another."""
    world = turn.world
    group: Any = dist.group.WORLD
    sizes = [3] * world
    calls: dict[str, Any] = {
        "all_reduce": lambda x: differentiated.all_reduce(x, group=group),
        "broadcast": lambda x: differentiated.broadcast(x, 0, group),
        "all_gather": lambda x: torch.cat(differentiated.all_gather(x, group)),
        # Elsewhere than at the root the output has no meaning.
        "reduce": lambda x: differentiated.reduce(x, 0, group=group) * float(turn.rank == 0),
        "gather": lambda x: torch.cat(differentiated.gather(x, 0, group)),
        "all_to_all": lambda x: torch.cat(
            differentiated.all_to_all(
                list(torch.empty_like(x).chunk(world)), list(x.chunk(world)), group
            )
        ),
        "all_to_all_single": lambda x: differentiated.all_to_all_single(
            torch.empty_like(x), x, group=group
        ),
        "functional gather": lambda x: functional.all_gather_tensor_autograd(x, 0, group),
        "functional scatter": lambda x: functional.reduce_scatter_tensor_autograd(
            x, "sum", 0, group
        ),
        "functional exchange": lambda x: functional.all_to_all_single_autograd(
            x, sizes, sizes, group
        ),
    }
    results = {}
    for name, call in calls.items():
        x = turn.data(3 * world, 2).requires_grad_()
        result = call(x)
        (result * turn.data(*result.shape, salt=5)).sum().backward()
        results[name] = [result.detach(), x.grad]
    return results
