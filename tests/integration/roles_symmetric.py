"""torch's SymmetricMemory over the arena: peers' buffers, put and get, signals, and every end."""

from __future__ import annotations

import gc
import os
import signal
import struct
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem
from roles_collectives import TIMEOUT

from rdmatensor import symmetric

COUNT = 1 << 16
_left_to_the_end: list[object] = []  # a tensor and a handle that the process ends with


def error_of(call: Callable[[], object]) -> str:
    try:
        call()
    except (RuntimeError, ValueError, NotImplementedError) as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was raised"


def begin() -> dist.ProcessGroup:
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    symm_mem.set_backend("rdmatensor")  # type: ignore[arg-type]
    assert dist.group.WORLD is not None
    return dist.group.WORLD


def puts_and_gets(rank: int, world: int, tensor: torch.Tensor, handle: Any) -> bool:
    """Each writes a quarter of the next rank's buffer, then reads that of the one before."""
    after, before = (rank + 1) % world, (rank - 1) % world
    quarter = COUNT // 4
    tensor.fill_(-1.0)
    handle.barrier()
    source = torch.full((quarter,), float(rank))
    symmetric.put(handle, source, after, offset_bytes=quarter * 4).wait()
    handle.put_signal(after, channel=3)
    handle.wait_signal(before, channel=3)
    right = bool((tensor[quarter : 2 * quarter] == float(before)).all())
    right &= bool((tensor[:quarter] == -1.0).all() and (tensor[2 * quarter :] == -1.0).all())
    handle.barrier(channel=1)
    seen = torch.zeros(COUNT)
    symmetric.get(handle, seen, after).wait()
    right &= bool((seen[quarter : 2 * quarter] == float(rank)).all())
    symmetric.put(handle, torch.tensor([7.0]), rank).wait()  # oneself
    right &= float(tensor[0]) == 7.0
    handle.barrier()
    return right


def stores_are_seen(rank: int, world: int, tensor: torch.Tensor, handle: Any) -> bool:
    """Plain stores into the peers' memory, and a barrier."""
    right = True
    for step in range(50):
        for peer in range(world):
            handle.get_buffer(peer, (world,), torch.float32)[rank] = float(step * world + rank)
        handle.barrier(channel=step % 3)
        wanted = torch.arange(world, dtype=torch.float32) + step * world
        right &= bool(torch.equal(tensor[:world], wanted))
        handle.barrier(channel=step % 3)
    pad = handle.get_signal_pad(rank)
    return right and not bool(pad.any())


def refusals(rank: int, world: int, tensor: torch.Tensor, handle: Any) -> dict[str, str]:
    return {
        "range": error_of(lambda: symmetric.put(handle, torch.zeros(8), 0, offset_bytes=COUNT * 4)),
        "rank": error_of(lambda: symmetric.get(handle, torch.zeros(8), world)),
        "plain": error_of(lambda: symm_mem.rendezvous(torch.zeros(8), dist.group.WORLD)),
        "device": error_of(lambda: handle.buffer_ptrs_dev),
        "late": error_of(lambda: handle.wait_signal((rank + 1) % world, 9, 300)),
    }


def kept_after_free(rank: int, world: int, group: dist.ProcessGroup) -> bool:
    """A tensor that its owner freed stays where peers have it, while they have their handles."""
    tensor: Any = symm_mem.empty(COUNT, device="cpu").fill_(float(rank))
    handle = symm_mem.rendezvous(tensor, group)
    theirs = handle.get_buffer((rank + 1) % world, (COUNT,), torch.float32)
    dist.barrier()
    if rank == 0:
        tensor = handle = None
        gc.collect()
        for _ in range(20):  # would take its place
            torch.empty(0).new_zeros(COUNT)
            symm_mem.empty(COUNT, device="cpu").fill_(99.0)
    dist.barrier()
    right = rank == 0 or bool((theirs == float((rank + 1) % world)).all())
    dist.barrier()
    return right


def other_sizes(rank: int, group: dist.ProcessGroup) -> str:
    tensor = symm_mem.empty(10 + rank, device="cpu")
    return error_of(lambda: symm_mem.rendezvous(tensor, group))


def works(rank: int, world: int) -> dict[str, Any]:
    """All that must go well, and what is refused, in one job."""
    before = set(Path("/dev/shm").iterdir())
    group = begin()
    tensor: Any = symm_mem.empty(COUNT, dtype=torch.float32, device="cpu")
    handle: Any = symm_mem.rendezvous(tensor, group)
    seen: dict[str, Any] = {
        "again": symm_mem.rendezvous(tensor, group).buffer_size == handle.buffer_size,
        "is one": symm_mem.is_symm_mem_tensor(tensor),
        "rank": [handle.rank, handle.world_size, handle.buffer_size],
        "mapped": [symmetric.is_mapped(handle, peer) for peer in range(world)],
        "moved": puts_and_gets(rank, world, tensor, handle),
        "refused": refusals(rank, world, tensor, handle),
        "sizes": other_sizes(rank, group),
    }
    if all(seen["mapped"]):
        seen["stored"] = stores_are_seen(rank, world, tensor, handle)
        seen["kept"] = kept_after_free(rank, world, group)
    else:
        seen["buffer"] = error_of(lambda: handle.get_buffer(0, (1,), torch.float32))
    pair = dist.new_group([0, world - 1], timeout=TIMEOUT)
    if rank in (0, world - 1):
        assert isinstance(pair, dist.ProcessGroup)
        of_pair: Any = symm_mem.rendezvous(tensor, pair)
        of_pair.barrier()
        seen["pair"] = of_pair.world_size
    dist.barrier()
    # The handle outlives its group.
    dist.destroy_process_group()
    seen["after"] = error_of(handle.barrier)
    seen["put after"] = error_of(lambda: symmetric.put(handle, torch.ones(1), (rank + 1) % world))
    tensor.fill_(1.0)
    handle = tensor = None
    seen["new in /dev/shm"] = [str(path) for path in set(Path("/dev/shm").iterdir()) - before]
    # Another group of the same name, after the first.
    seen["second"] = second_group(rank, world)
    return seen


def second_group(rank: int, world: int) -> bool:
    os.environ["MASTER_PORT"] = str(int(os.environ["MASTER_PORT"]) + 1)
    group = begin()
    tensor = symm_mem.empty(8, device="cpu").fill_(0.0)
    handle: Any = symm_mem.rendezvous(tensor, group)
    symmetric.put(handle, torch.full((8,), float(rank)), (rank + 1) % world).wait()
    handle.barrier()
    right = bool((tensor == float((rank - 1) % world)).all())
    _left_to_the_end.append((tensor, handle))
    dist.destroy_process_group()
    return right


def dies(rank: int, world: int, folder: str) -> dict[str, Any]:
    """The last rank is killed while the others wait for it, and have it mapped."""
    dist.init_process_group("rdmatensor", timeout=timedelta(seconds=20))
    symm_mem.set_backend("rdmatensor")  # type: ignore[arg-type]
    group = dist.group.WORLD
    assert group is not None
    tensor: Any = symm_mem.empty(COUNT, device="cpu").fill_(float(rank))
    handle: Any = symm_mem.rendezvous(tensor, group)
    last = world - 1
    handle.barrier()
    if rank == last:
        time.sleep(0.3)  # the others wait by then
        Path(folder, "died").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    started_s = time.monotonic()
    text = error_of(lambda: handle.wait_signal(last))
    waited_s = time.monotonic() - started_s
    mapped = symmetric.is_mapped(handle, last)
    theirs = handle.get_buffer(last, (COUNT,), torch.float32) if mapped else None
    result = {
        "text": text,
        "waited_s": waited_s,
        # Reads and writes of a dead rank's memory do not crash.
        "read": theirs is not None and bool((theirs[world:] == float(last)).all()),
        "put": error_of(lambda: symmetric.put(handle, torch.ones(1), last).wait()),
        "barrier": error_of(handle.barrier),
        "rendezvous": error_of(lambda: symm_mem.rendezvous(symm_mem.empty(4, device="cpu"), group)),
    }
    if theirs is not None:
        theirs[rank] = 3.0  # the others may still read behind the first
    theirs = handle = tensor = None
    dist.destroy_process_group()
    result["threads"] = threading.active_count()
    return result


# ---- A member that lies ----

CARD = struct.Struct("<4Q64s")  # number, bytes of the buffer and of the pad, offset, region


def gathered(mine: bytes) -> list[bytes]:
    """What the ranks of the group say, of which this one says `mine`."""
    all_said = torch.empty(2 * len(mine), dtype=torch.uint8)
    dist.all_gather_into_tensor(all_said, torch.tensor(list(mine), dtype=torch.uint8))
    return [bytes(said.tolist()) for said in all_said.split(len(mine))]


def with_sum(region: bytes) -> bytes:
    """The region with the check sum of what it says now (wire.md)."""
    total = 0xCBF29CE484222325
    for byte in region[:60]:
        total = (total ^ byte) * 0x100000001B3 % (1 << 64)
    return region[:60] + struct.pack("<I", total >> 32 ^ total & 0xFFFFFFFF)


def lies_about(honest: bytes) -> dict[str, bytes]:
    """Cards that are wrong, made of one that is right but for its owner."""
    number, buffer_bytes, pad_bytes, off_bytes, region = CARD.unpack(honest)
    huge = (1 << 64) - 1

    def cut(len_bytes: int) -> bytes:
        return with_sum(region[:24] + struct.pack("<Q", len_bytes) + region[32:])

    def card(size: int = buffer_bytes, off: int = off_bytes, at: bytes = region) -> bytes:
        return CARD.pack(number, size, pad_bytes, off, at)

    return {
        "zeros": bytes(CARD.size),
        "number": CARD.pack(number + 1, buffer_bytes, pad_bytes, off_bytes, region),
        "nobody's": CARD.pack(huge, buffer_bytes, pad_bytes, 0, bytes(64)),
        "of nobody": CARD.pack(huge, buffer_bytes, pad_bytes, 0, region),
        "size": card(size=huge),
        "pad": CARD.pack(number, buffer_bytes, huge, off_bytes, region),
        "offset": card(off=huge),
        "next offset": card(off=off_bytes + 64),
        "sum": card(at=region[:63] + bytes([region[63] ^ 1])),
        "no region": card(at=bytes(64)),
        "empty": card(at=cut(0)),
        "a byte short": card(at=cut(off_bytes + buffer_bytes + pad_bytes - 1)),
        "of another": card(),
    }


def lies(rank: int, world: int) -> dict[str, str]:
    """Rank 0 meets a rank 1 that says what no library would; rank 1 is a member all the same."""
    assert world == 2
    group = begin()
    seen: dict[str, str] = {}
    names = list(lies_about(CARD.pack(0, 64, 64, 0, bytes(64))))
    if rank == 0:
        tensor = symm_mem.empty(64, device="cpu")
        for name in ["first", *names]:
            seen[name] = error_of(lambda: symm_mem.rendezvous(tensor, group))
    else:
        honest = gathered(bytes(CARD.size))[0]
        for name in names:
            number, *rest = CARD.unpack(honest)
            honest = CARD.pack(number + 1, *rest)
            gathered(lies_about(honest)[name])
        gathered(b"\1")  # who was told of a region that is there tries it, and both vote
    dist.barrier()
    dist.destroy_process_group()
    return seen
