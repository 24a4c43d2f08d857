"""The rate of this machine's time stamp counter, which an emulated machine's is too.

A kernel that has to find the rate by itself compares the counter with an emulated timer. On a busy
machine it is then wrong by any factor, and so is every second of the guest, its deadlines included.
"""

from __future__ import annotations

import ctypes
import mmap
import platform
import time
from collections.abc import Callable

# rdtsc; shl rdx, 32; or rax, rdx; ret
_CODE = bytes.fromhex("0f31 48c1e220 4809d0 c3")
_APART_S = 0.05
_LOOKS = 50  # of which the one that was interrupted least counts


def rate_khz() -> int | None:
    """Return the counter's rate, or None on a CPU without it."""
    if platform.machine() != "x86_64":
        return None
    try:
        code = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    except OSError:  # memory that is both may be forbidden
        return None
    code.write(_CODE)
    place = ctypes.c_char.from_buffer(code)
    read = ctypes.CFUNCTYPE(ctypes.c_uint64)(ctypes.addressof(place))
    begun = _look(read)
    time.sleep(_APART_S)
    ended = _look(read)
    return round((ended[1] - begun[1]) * 1_000_000 / (ended[0] - begun[0]))


def _look(read: Callable[[], int]) -> tuple[float, int]:
    """Return a time in ns and the counter's value then."""
    looks = []
    for _ in range(_LOOKS):
        before_ns = time.monotonic_ns()
        ticks = int(read())
        after_ns = time.monotonic_ns()
        looks.append((after_ns - before_ns, (before_ns + after_ns) / 2, ticks))
    _, at_ns, ticks = min(looks)
    return at_ns, ticks
