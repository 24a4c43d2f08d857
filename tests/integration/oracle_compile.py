"""torch.compile over collectives.

Mostly with aot_eager: what is compiled is what matters here, and the code that inductor writes for
it is a C++ compiler's work, half a minute. What needs none of that goes all the way.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from oracle import Results, Turn
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def in_place(x: torch.Tensor, world: int) -> tuple[torch.Tensor, ...]:
    """The classic calls, which the compiler rewrites to functional ones."""
    summed = x * 2
    dist.all_reduce(summed)
    gathered = x.new_empty(world * x.size(0), x.size(1))
    dist.all_gather_single(gathered, summed + 1)
    scattered = torch.empty_like(x)
    dist.reduce_scatter_single(scattered, gathered.sin())
    exchanged = torch.empty_like(x)
    dist.all_to_all_single(exchanged, scattered)
    return summed, gathered, scattered, exchanged


def with_gradient(x: torch.Tensor, world: int) -> torch.Tensor:
    group: Any = dist.group.WORLD
    gathered = functional.all_gather_tensor_autograd(x.sin(), 0, group)
    scattered = functional.reduce_scatter_tensor_autograd(gathered.cos(), "sum", 0, group)
    sizes = [x.size(0) // world] * world
    return functional.all_to_all_single_autograd(scattered, sizes, sizes, group) * x


def collectives(turn: Turn) -> Results:
    results: dict[str, Any] = {}
    for function in (in_place, with_gradient):
        compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
        for rows in (4, 6):  # the second one's graph has a symbol for the size
            x = turn.data(turn.world * rows, 3).requires_grad_(function is with_gradient)
            outputs = compiled(x, turn.world)
            results[f"{function.__name__} {rows}"] = outputs
            if isinstance(outputs, torch.Tensor):
                outputs.square().sum().backward()
                results[f"gradient {rows}"] = x.grad
    return results


def products(x: torch.Tensor, world: int) -> tuple[torch.Tensor, ...]:
    """Nothing but what inductor calls libraries for."""
    square = x @ x
    dist.all_reduce(square)
    gathered = x.new_empty(world * x.size(0), x.size(1))
    dist.all_gather_single(gathered, square @ x)
    scattered = torch.empty_like(x)
    dist.reduce_scatter_single(scattered, gathered @ square)
    exchanged = torch.empty_like(x)
    dist.all_to_all_single(exchanged, scattered @ x)
    return square, gathered, scattered, exchanged @ x


def inductor(turn: Turn) -> Results:
    """Bucketed, reordered and written in place as inductor likes."""
    width = 4 * turn.world
    with torch.no_grad():
        compiled = torch.compile(products, fullgraph=True)
        return {"outputs": compiled(turn.data(width, width), turn.world)}


def ddp(turn: Turn) -> Results:
    """The graph is cut at the buckets, so that they are reduced in the backward pass."""
    torch.manual_seed(4)
    layers = [nn.Linear(512, 512) for _ in range(3)]  # a bucket each
    model = DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=1)
    compiled = torch.compile(model, backend="aot_eager")
    losses = []
    for step in range(3):
        loss = compiled(turn.data(2, 512, salt=step)).square().mean()
        loss.backward()
        losses.append(loss.detach())
    gradients = [parameter.grad for parameter in model.parameters()]
    return {"losses": losses, "gradients": gradients}
