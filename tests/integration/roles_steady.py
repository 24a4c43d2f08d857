"""What a rank holds after many operations, and how much more than before them that is."""

from __future__ import annotations

import ctypes
import gc
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

TIMEOUT = timedelta(seconds=60)
SELF = Path("/proc/self")
WARM_SHARE = 5  # of the operations, one in so many goes before they are measured
WARM_LEAST = 500
LOOKS = 20  # a thread of torch's or of ours has a file open for a moment now and then
BETWEEN_LOOKS_S = 0.05

libc = ctypes.CDLL(None)


class Mallinfo2(ctypes.Structure):
    """glibc's struct of that name."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks"),
            *("fordblks", "keepcost"),
        )
    ]


libc.mallinfo2.restype = Mallinfo2
libc.malloc.restype = ctypes.c_void_p


def held() -> dict[str, int]:
    """Return what this process holds; objects of Python's have memory next to the heap."""
    gc.collect()
    rollup = (SELF / "smaps_rollup").read_text(encoding="ascii").splitlines()[1:]
    kib = {line.split(":")[0]: int(line.split()[1]) for line in rollup}
    heap = libc.mallinfo2()
    return {
        "heap_bytes": heap.uordblks + heap.hblkhd,
        "python_blocks": sys.getallocatedblocks(),
        "rss_kib": kib["Rss"],
        "pss_kib": kib["Pss"],
        "mappings": len((SELF / "maps").read_text(encoding="utf-8").splitlines()),
        "descriptors": len(list((SELF / "fd").iterdir())),
        "threads": len(list((SELF / "task").iterdir())),
    }


def growth_since(before: dict[str, int], limits: dict[str, int]) -> dict[str, int]:
    """Return how much more it is by now, looked at again while that is more than it may be."""
    for _ in range(LOOKS):
        dist.barrier()
        now = held()
        growth = {name: now[name] - before[name] for name in before}
        words = torch.tensor([growth[name] - limit for name, limit in limits.items()])
        dist.all_reduce(words, op=dist.ReduceOp.MAX)  # both look again, or none
        if words.max() <= 0:
            break
        time.sleep(BETWEEN_LOOKS_S)
    return growth


def sums(count: int, elements: int, lost_bytes: int) -> None:
    """Sum so often, waiting at once and later in turn; lose some bytes each time."""
    tensor = torch.zeros(elements)
    for number in range(count):
        if number % 2 == 0:
            dist.all_reduce(tensor)
        else:
            work = dist.all_reduce(tensor, async_op=True)
            assert work is not None
            work.wait()
        if lost_bytes > 0:
            libc.malloc(lost_bytes)


def growth(
    _rank: int, _world: int, count: int, elements: int, limits: dict[str, int], lost_bytes: int
) -> dict[str, Any]:
    """Return what so many sums of so many elements left behind, and how long they took."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    sums(max(count // WARM_SHARE, WARM_LEAST), elements, 0)
    growth_since(held(), limits)  # itself warm
    dist.barrier()
    before = held()
    dist.barrier()
    began_s = time.monotonic()
    sums(count, elements, lost_bytes)
    took_s = time.monotonic() - began_s
    grown = growth_since(before, limits)
    dist.destroy_process_group()
    return {"growth": grown, "took_s": took_s}
