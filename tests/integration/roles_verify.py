"""RDMATENSOR_VERIFY under torch: the same bits as without, and corruption as an error."""

from __future__ import annotations

import ctypes
import hashlib
import os
from datetime import timedelta

import torch
import torch.distributed as dist
from meeting import meet
from torch.nn.parallel import DistributedDataParallel

import rdmatensor

LONG = timedelta(seconds=60)
ELEMENTS = 400_000


def digest(tensors: list[torch.Tensor]) -> str:
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(tensor.detach().contiguous().numpy().tobytes())
    return found.hexdigest()


def counted() -> dict[str, int]:
    counters = rdmatensor.default_context().counters()
    return {"verified_bytes": counters.verified_bytes, "mismatches": counters.mismatches}


def trains(rank: int, _world: int) -> dict[str, object]:
    """Every kind of collective, and three steps of DDP."""
    dist.init_process_group("rdmatensor", timeout=LONG)
    torch.manual_seed(rank)
    tensors = []
    for count in (1, 3, 1000, 70_000, ELEMENTS):
        mine = torch.randn(count)
        gathered = [torch.empty(count) for _ in range(2)]
        dist.all_gather(gathered, mine)
        total = mine.clone()
        dist.all_reduce(total)
        given = torch.randn(count)
        dist.broadcast(given, 1)
        swapped = torch.empty(2 * count)
        dist.all_to_all_single(swapped, torch.cat([mine, given]))
        tensors += [*gathered, total, given, swapped]
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(300, 400))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        torch.manual_seed(10 * step + rank)
        optimizer.zero_grad()
        model(torch.randn(8, 300)).square().mean().backward()
        optimizer.step()
    found = {
        "digest": digest([*tensors, *model.parameters()]),
        "setting": rdmatensor.default_context().describe()["verify"],
        **counted(),
    }
    dist.barrier()
    dist.destroy_process_group()
    return found


def a_message_changes(rank: int, _world: int) -> dict[str, object]:
    """What is sent changes between its sum and its move: to the receiver, a corruption."""
    dist.init_process_group("rdmatensor", timeout=LONG)
    dist.all_reduce(torch.ones(1))
    tensor = torch.full((ELEMENTS,), float(rank))
    text = ""
    if rank == 0:
        work = dist.isend(tensor, 1)
        tensor[ELEMENTS // 2] = 5.0
        meet("sent", rank, range(2))
    else:
        meet("sent", rank, range(2))
        work = dist.irecv(tensor, 0)
    try:
        work.wait()
    except dist.DistBackendError as error:
        text = str(error)
    return {"text": text, **counted()}


def an_all_reduce_is_corrupted(rank: int, _world: int) -> dict[str, object]:
    """Rank 1's sockets give a wrong bit, once."""
    dist.init_process_group("rdmatensor", timeout=LONG)
    dist.all_reduce(torch.ones(ELEMENTS))
    if rank == 1:
        ctypes.CDLL(None).corrupt_next()
    text = ""
    try:
        dist.all_reduce(torch.ones(ELEMENTS))
    except dist.DistBackendError as error:
        text = str(error)
    return {"text": text, **counted()}


def settings_differ(rank: int, _world: int) -> dict[str, object]:
    """Rank 0 verifies, rank 1 does not."""
    os.environ["RDMATENSOR_VERIFY"] = "crc32c" if rank == 0 else "off"
    text = ""
    try:
        dist.init_process_group("rdmatensor", timeout=LONG)
        dist.all_reduce(torch.ones(1))
    except (dist.DistBackendError, rdmatensor.RdmaTensorError, RuntimeError) as error:
        text = str(error)
    return {"text": text}
