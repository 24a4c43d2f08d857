"""What is born or moved in the arena, seen from a rank."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import io
from datetime import timedelta
from pathlib import Path
from typing import Any

import roles_plan
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import rdmatensor
import rdmatensor.distributed
import rdmatensor.torch

TIMEOUT = timedelta(seconds=60)
MODES: dict[str, dict[str, bool]] = {
    "views": {"gradient_as_bucket_view": True},
    "copies": {"gradient_as_bucket_view": False},
    "static": {"gradient_as_bucket_view": True, "static_graph": True},
    "unused": {"gradient_as_bucket_view": True, "find_unused_parameters": True},
}


def model() -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 256), nn.Linear(256, 8))


def train(
    module: DistributedDataParallel, steps: int, rank: int
) -> tuple[list[list[bool]], list[list[int]], list[float]]:
    """Return, per step, where the gradients are and their addresses, and the losses."""
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    places, addresses, losses = [], [], []
    for step in range(steps):
        generator = torch.Generator().manual_seed(step * 100 + rank)
        x = torch.randn(16, 32, generator=generator)
        optimizer.zero_grad(set_to_none=True)
        loss = module(x).square().mean()
        loss.backward()
        grads = [p.grad for p in module.parameters() if p.grad is not None]
        places.append([rdmatensor.torch.is_in_arena(grad) for grad in grads])
        addresses.append([grad.data_ptr() for grad in grads])
        optimizer.step()
        losses.append(float(loss.detach()))
    return places, addresses, losses


def buckets(rank: int, world: int, mode: str) -> dict[str, Any]:
    """Train in one mode of DDP over both backends."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    gloo = dist.new_group(backend="gloo", timeout=TIMEOUT)
    ours = DistributedDataParallel(model(), **MODES[mode])
    places, addresses, losses = train(ours, 6, rank)
    theirs = DistributedDataParallel(model(), process_group=gloo, **MODES[mode])
    gloo_places, _, gloo_losses = train(theirs, 6, rank)
    found = {
        "places": places,
        "addresses": addresses,
        "losses": losses,
        "gloo_losses": gloo_losses,
        "gloo_places": gloo_places,
        "adopted": rdmatensor.distributed.describe()["adopted"],
        "not_adopted": rdmatensor.distributed.describe()["not_adopted"],
        "has_same_weights": all(
            torch.equal(a, b) for a, b in zip(ours.parameters(), theirs.parameters(), strict=True)
        ),
    }
    # Before the group: DDP gives its Gloo group up with Python's lock held, and Gloo's threads,
    # which the group's end waits for, may want that lock (torch 2.13). The group's own object
    # releases it.
    del theirs
    gc.collect()
    dist.destroy_process_group()
    return found


def allocator_taken(rank: int, world: int, when: str, by: str) -> dict[str, Any]:
    """Train by DDP or by a plan where another library has torch's allocator of CPU memory."""
    c10 = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
    default = c10._ZN3c1022GetDefaultCPUAllocatorEv
    default.restype = ctypes.c_void_p
    take = c10._ZN3c1015SetCPUAllocatorEPNS_9AllocatorEh
    take.argtypes = [ctypes.c_void_p, ctypes.c_uint8]
    if when == "after":
        rdmatensor.torch.has_allocator()
    take(default(), 255)
    if by == "plan":
        return roles_plan.against_gloo(rank, world, "mlp")
    return buckets(rank, world, "views")


def on_request(rank: int, world: int) -> dict[str, bool]:
    """adopt() and registered_memory(), with everything that moves a storage afterwards."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    is_in = rdmatensor.torch.is_in_arena
    weight = torch.arange(4096, dtype=torch.float32)
    view = weight[1024:]
    before = weight.clone()
    checks = {"torch's own is outside": not is_in(weight)}
    rdmatensor.torch.adopt(weight)
    checks["adopted with its views"] = is_in(weight) and is_in(view)
    checks["same bytes"] = torch.equal(weight, before) and torch.equal(view, before[1024:])
    address = weight.data_ptr()
    rdmatensor.torch.adopt(weight)
    checks["again is nothing"] = weight.data_ptr() == address
    dist.all_reduce(weight)
    checks["reduced in place"] = torch.equal(weight, before * world)
    file = io.BytesIO()
    torch.save(weight, file)
    file.seek(0)
    loaded = torch.load(file)
    checks["saved and loaded"] = torch.equal(loaded, weight) and not is_in(loaded)
    weight.resize_(8192)
    checks["resized in the arena"] = is_in(weight) and torch.equal(weight[:4096], before * world)
    weight[4096:] = 1.0
    dist.all_reduce(weight)
    checks["reduced after that"] = bool((weight[4096:] == world).all())
    shared = rdmatensor.torch.adopt(torch.ones(2048))
    shared.share_memory_()
    checks["shared outside"] = not is_in(shared) and bool((shared == 1).all())
    dist.all_reduce(shared)
    checks["reduced when shared"] = bool((shared == world).all())
    checks.update(_given_other_contents(world))
    for name, foreign in {
        "shared": torch.ones(2048).share_memory_(),
        "numpy": torch.from_numpy(before.numpy()),
        "empty": torch.empty(0),
        "meta": torch.empty(8, device="meta"),
    }.items():
        try:
            rdmatensor.torch.adopt(foreign)
            checks[f"{name} is refused"] = False
        except ValueError as error:
            checks[f"{name} is refused"] = "adopt: " in str(error)
    checks.update(_in_registered_memory(world))
    dist.destroy_process_group()
    return checks


def _given_other_contents(world: int) -> dict[str, bool]:
    """Adopted parameters that a checkpoint is loaded into, or that are pointed elsewhere."""
    is_in = rdmatensor.torch.is_in_arena
    states = {}
    for way, is_assigned in {
        "load_state_dict": False,
        "load_state_dict(assign=True)": True,
    }.items():
        layer = nn.Linear(64, 32, bias=False)
        address = rdmatensor.torch.adopt(layer.weight.data).data_ptr()
        layer.load_state_dict({"weight": torch.full((32, 64), 3.0)}, assign=is_assigned)
        weight = layer.weight.data
        states[f"{way}: where it should be"] = (
            is_in(weight) != is_assigned and (weight.data_ptr() == address) != is_assigned
        )
        dist.all_reduce(weight)
        states[f"{way}: reduced"] = bool((layer.weight == 3 * world).all())
    adopted, other = rdmatensor.torch.adopt(torch.ones(2048)), torch.full((2048,), 5.0)
    kept = adopted[:8]  # a view of what it was keeps the memory
    adopted.set_(other)
    states["set_: moved out"] = not is_in(adopted) and is_in(kept)
    dist.all_reduce(adopted)
    states["set_: the new storage is reduced"] = bool((other == 5 * world).all())
    states["set_: the old one is as it was"] = bool((kept == 1).all())
    return states


def _in_registered_memory(world: int) -> dict[str, bool]:
    is_in = rdmatensor.torch.is_in_arena
    with rdmatensor.torch.registered_memory(min_bytes=1024) as births:
        large, small = torch.empty(1 << 16), torch.empty(8)
        # These ask for memory as an address alone, and give it back so.
        conv = nn.Conv2d(3, 8, 3)
        conv(torch.randn(2, 3, 32, 32)).sum().backward()
    outside = torch.empty(1 << 16)
    states = {
        "born inside": is_in(large),
        "small stays outside": not is_in(small),
        "outside again": not is_in(outside),
        "counted": births.count >= 1 and births.size_bytes >= (1 << 18),
        "none missed": births.missed == 0,
    }
    large.fill_(2.0)
    dist.all_reduce(large)
    states["reduced where it was born"] = bool((large == 2 * world).all()) and is_in(large)
    return states


def arena_full(rank: int, world: int) -> dict[str, Any]:
    """Buckets that the arena has no room for: training goes on, and it is told."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    module = DistributedDataParallel(
        nn.Linear(2048, 2048, bias=False), gradient_as_bucket_view=True
    )
    module(torch.ones(4, 2048)).sum().backward()
    grad = module.module.weight.grad
    assert grad is not None
    found = {
        "is_in_arena": rdmatensor.torch.is_in_arena(grad),
        "is_right": bool((grad == 4.0).all()),
        "adopted": rdmatensor.distributed.describe()["adopted"],
        "not_adopted": rdmatensor.distributed.describe()["not_adopted"],
    }
    dist.destroy_process_group()
    return found


def named(kind: str, *layers: nn.Module) -> nn.Module:
    """A model whose class has a name of its own, by which describe() tells of it."""
    return type(kind, (nn.Sequential,), {})(*layers)


def trained(
    module: nn.Module, x: torch.Tensor, *, is_anew: bool = True, **mode: bool
) -> DistributedDataParallel:
    """With its gradients as they are after two steps: the buckets are made again between them."""
    wrapped = DistributedDataParallel(module, **mode)
    for _ in range(2):
        wrapped.zero_grad(set_to_none=is_anew)
        wrapped(x).sum().backward()
    return wrapped


def reasons(rank: int, world: int) -> list[Any]:
    """Return what describe() says of tensors that are outside for each reason there is."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    views = {"gradient_as_bucket_view": True}
    x = torch.ones(4, 64)
    two = [nn.Linear(64, 64), nn.Linear(64, 64, bias=False)]
    ignoring = named("Ignoring", nn.Linear(64, 64), nn.Linear(64, 64))
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(ignoring, ["0.weight"])
    indices = torch.arange(4)
    kept = [
        trained(named("Small", nn.Linear(64, 2)), x, **views),
        trained(named("Copying", nn.Linear(64, 64)), x, gradient_as_bucket_view=False),
        trained(ignoring, x, **views),
        trained(named("Sparse", nn.Embedding(512, 64, sparse=True)), indices, **views),
        trained(named("Adding", nn.Linear(64, 64)), x, is_anew=False, **views),
        trained(named("Shared", nn.Linear(64, 64)), x, **views),
        trained(named("Replaced", *two), x, **views),
    ]
    shared, replaced = (module.module for module in kept[-2:])
    assert shared[0].bias.grad is not None
    assert replaced[1].weight.grad is not None
    shared[0].bias.grad.share_memory_()  # with all of its bucket
    replaced[1].weight.grad = replaced[1].weight.grad.clone()
    rdmatensor.torch.adopt(replaced[0].weight)
    moved, given = (rdmatensor.torch.adopt(torch.ones(2048)) for _ in range(2))
    moved.share_memory_()
    given.data = torch.ones(4096)
    with contextlib.suppress(ValueError):
        rdmatensor.torch.adopt(torch.empty(0))
    found = rdmatensor.distributed.describe()["not_adopted"]
    text = rdmatensor.distributed.describe_text(verbose=True)
    assert "gradient_as_bucket_view=False" in text
    assert "1.weight" in text
    del kept, shared, replaced, ignoring
    gc.collect()
    left = rdmatensor.distributed.describe()["not_adopted"]
    dist.destroy_process_group()
    return [found, left]


def stages_that_come_late(rank: int, world: int) -> dict[str, Any]:
    """A program that imports pipelining when its group is there; its buffers are born as others."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    from torch.distributed import pipelining

    stage = pipelining.PipelineStage(nn.Linear(64, 64), rank, world, torch.device("cpu"))
    schedule = pipelining.ScheduleGPipe(stage, 2, loss_fn=nn.functional.mse_loss)
    x = torch.randn(64, 64)
    schedule.step(*([x] if rank == 0 else []), **({"target": x} if rank == world - 1 else {}))
    found = {"adopted": rdmatensor.distributed.describe()["adopted"]}
    dist.barrier()
    dist.destroy_process_group()
    return found
