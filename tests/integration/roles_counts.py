"""What a step costs by the library's own counters, and by witnesses that know nothing of them."""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import struct
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from births_cases import Moves
from device_witness import of_device
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import rdmatensor.distributed
import rdmatensor.plan
from graph_analysis import DataParallel, analyze
from rdmatensor.context import default_context

TIMEOUT = timedelta(seconds=60)
WARM = 4  # the buckets move before the second step, the cycle is found at the end of the third
STEPS = 5
SIZES = (2, 16384, 262144, 1048576)  # elements of 4 bytes
SETTLE_S = 0.2  # for what the kernel has yet to see acknowledged
TCP_BYTES = (120, 136)  # of struct tcp_info: bytes acknowledged and received
COUNTED = (
    *("writes", "moved_bytes", "copied_bytes", "control_messages", "credits_alone"),
    *("registrations", "wire_bytes"),
)


def mlp() -> nn.Module:
    torch.manual_seed(2)
    return nn.Sequential(*(nn.Linear(512, 512) for _ in range(4)))


class Last(nn.Module):
    """What an LSTM has put out at the end."""

    def forward(self, found: tuple[torch.Tensor, Any]) -> torch.Tensor:
        return found[0][:, -1]


# Name -> the model, and the shape of its batch; all of its buckets are large enough for a place.
MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (mlp, (4, 512)),
    "cnn": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 64, 3),
            nn.ReLU(),
            nn.Conv2d(64, 256, 3),
            nn.AdaptiveAvgPool2d(4),
            nn.Flatten(),
            nn.Linear(256 * 16, 128),
        ),
        (4, 3, 12, 12),
    ),
    "lstm": (
        lambda: nn.Sequential(nn.LSTM(128, 256, batch_first=True), Last(), nn.Linear(256, 512)),
        (4, 6, 128),
    ),
    "gpt": (
        lambda: nn.TransformerEncoderLayer(256, 4, 512, 0.0, batch_first=True, norm_first=True),
        (4, 8, 256),
    ),
}


@contextlib.contextmanager
def witnessed(found: dict[str, Any], group: object) -> Iterator[None]:
    """Take what counters and witnesses say between here and the end; the group is for this only."""
    preloaded = ctypes.CDLL(None)
    has_witness = hasattr(preloaded, "witnessed_bytes")
    if has_witness:
        preloaded.witnessed_bytes.restype = ctypes.c_uint64

    def look() -> dict[str, int]:
        dist.barrier(group=group)
        time.sleep(SETTLE_S)
        counters = default_context().counters()
        said = {name: int(getattr(counters, name)) for name in COUNTED}
        said["kernel_sent"], said["kernel_received"] = kernel_bytes()
        if has_witness:
            said["copied_by_rdmatensor"] = int(preloaded.witnessed_bytes(1))
            said["copied_by_all"] = int(preloaded.witnessed_bytes(0))
        said.update(of_device(dist.get_rank()))
        dist.barrier(group=group)  # nobody leaves, and closes sockets, before all have looked
        return said

    before = look()
    yield
    found.update({name: after - before[name] for name, after in look().items()})


def passes() -> dict[str, float]:
    """Return how long this rank's sums and copies have taken so far."""
    collectives: Any = rdmatensor.distributed.describe()["collectives"]
    return {name: collectives[name] for name in ("summing_s", "copying_s")}


def kernel_bytes() -> tuple[int, int]:
    """Return what the kernel sent and received for this process's TCP sockets to other ranks."""
    sent = received = 0
    store = int(os.environ["MASTER_PORT"])
    for entry in list(Path("/proc/self/fd").iterdir()):
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(int(entry.name))) as peer:
            is_stream = peer.family in (socket.AF_INET, socket.AF_INET6)
            if not is_stream or peer.type != socket.SOCK_STREAM:
                continue
            if store in (peer.getsockname()[1], peer.getpeername()[1]):
                continue
            info = peer.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
            parts = struct.unpack("QQ", info[slice(*TCP_BYTES)])
            sent, received = sent + parts[0], received + parts[1]
    return sent, received


def train(
    module: Any, optimizer: torch.optim.Optimizer, rank: int, steps: int, *, is_anew: bool
) -> None:
    for step in range(steps):
        generator = torch.Generator().manual_seed(100 * step + rank)
        optimizer.zero_grad(set_to_none=is_anew)
        module(torch.randn(4, 512, generator=generator)).square().mean().backward()
        optimizer.step()


def script(rank: int, _world: int, *, is_anew: bool = True) -> dict[str, Any]:
    """A script with DistributedDataParallel, and nothing in it that knows of plans.

    is_anew: with zero_grad() as torch has it by default, else with set_to_none=False.
    """
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    beside = dist.new_group(timeout=TIMEOUT)
    dist.barrier(group=beside)
    module = DistributedDataParallel(mlp(), gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    train(module, optimizer, rank, WARM, is_anew=is_anew)
    described = rdmatensor.distributed.describe()["plan"]
    found: dict[str, Any] = {"bytes": sum(p.nbytes for p in module.parameters())}
    found["gradients"] = len(list(module.parameters()))
    before = passes()
    with witnessed(found, beside):
        train(module, optimizer, rank, STEPS, is_anew=is_anew)
    found["took"] = {name: after_s - before[name] for name, after_s in passes().items()}
    after = rdmatensor.distributed.describe()["plan"]
    found["before"], found["after"] = described, after
    found["moved_by_torch"] = moved_by_torch(module, optimizer, is_anew=is_anew)
    found["told"] = sum(
        entry["bytes"]
        for entry in rdmatensor.distributed.describe()["not_adopted"]
        if "until torch has moved them" in entry["what"]
    )
    plan = rdmatensor.plan.recorded()
    assert plan is not None
    found["buckets"] = [bucket.payload_bytes for bucket in plan.buckets]
    dist.destroy_process_group()
    return found


def moved_by_torch(module: nn.Module, optimizer: torch.optim.Optimizer, *, is_anew: bool) -> int:
    """How many gradients DistributedDataParallel moves into their buckets, by its own calls."""
    optimizer.zero_grad(set_to_none=is_anew)
    with Moves() as moves:
        module(torch.ones(4, 512)).square().mean().backward()
    return moves.moved(module.parameters())


def collectives(rank: int, world: int) -> dict[str, Any]:
    """Tensors of the script itself, in private memory: summed, spread and gathered, many times."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    beside = dist.new_group(timeout=TIMEOUT)
    dist.barrier(group=beside)
    tensors = [torch.zeros(size, dtype=torch.int32) for size in SIZES]
    parts = torch.zeros(world, SIZES[-1], dtype=torch.int32)

    def round_of(number: int) -> None:
        for tensor in tensors:
            tensor.fill_(rank + number)
            dist.all_reduce(tensor)
            assert tensor.eq(world * number + world * (world - 1) // 2).all()
            tensor.fill_(rank + number)
            dist.broadcast(tensor, src=number % world)
            assert tensor.eq(number % world + number).all()
        tensors[-1].fill_(rank + number)
        dist.all_gather_into_tensor(parts.view(-1), tensors[-1])
        assert all(parts[other].eq(other + number).all() for other in range(world))

    warm = 3 * world  # with each root three times
    for number in range(warm):
        round_of(number)
    found: dict[str, Any] = {}
    with witnessed(found, beside):
        for number in range(STEPS):
            round_of(warm + number)
    dist.destroy_process_group()
    return found


def planned(rank: int, world: int, *, model: str = "mlp") -> dict[str, Any]:
    """A model by apply(); gradients are allocated again in each step."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    beside = dist.new_group(timeout=TIMEOUT)
    dist.barrier(group=beside)
    torch.manual_seed(2)
    build, shape = MODELS[model]
    inner = build()
    plan = analyze(inner, (torch.randn(shape),), strategy=DataParallel(world))
    optimizer = torch.optim.SGD(inner.parameters(), lr=0.01)
    module = rdmatensor.plan.apply(inner, plan, optimizer)
    said = []
    for step in range(WARM + STEPS):
        generator = torch.Generator().manual_seed(100 * step + rank)
        optimizer.zero_grad()
        output: Any = module(torch.randn(shape, generator=generator))
        output.square().mean().backward()
        optimizer.step()
        said.append(module.describe()["last_step"])
    found: dict[str, Any] = {"steps": said, "bytes": sum(p.nbytes for p in inner.parameters())}
    found["buckets"] = [bucket.flat.nbytes for bucket in module._memory.buckets]
    before = passes()
    with witnessed(found, beside):
        began_s, held_s = time.monotonic(), _held_s(module)
        for _ in range(STEPS):
            optimizer.zero_grad()
            output = module(torch.ones(shape))
            output.square().mean().backward()
            optimizer.step()
        found["held_s"] = _held_s(module) - held_s
        found["steps_s"] = time.monotonic() - began_s
    found["took"] = {name: after_s - before[name] for name, after_s in passes().items()}
    found["persistent"] = rdmatensor.distributed.describe()["collectives"]["persistent"]
    module.close()
    found["left"] = rdmatensor.distributed.describe()["collectives"]["persistent"]
    dist.destroy_process_group()
    return found


def _held_s(module: rdmatensor.plan.PlannedModel) -> float:
    """How long backward's thread was held for communication so far."""
    said = module.describe()
    return said["posting_s"] + said["ending_s"]
