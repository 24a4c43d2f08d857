"""Makes malloc keep memory that a training step frees and allocates again.

glibc maps each block that is larger than any mapped block that was freed before (up to 32 MiB), and
returns free memory at the end of its heap to the kernel from twice that size on. If a step's
temporary tensors are the largest blocks so far, or are at that end with more than 64 MiB, the
kernel takes their pages and zeroes them again in each step, with a fault for each 4 KiB. A program
avoids that by a larger block that was freed, and by a live block after them; with gradients that
are not malloc's there may be neither.
"""

from __future__ import annotations

import ctypes
import functools
import os

_MAPPED_FROM_BYTES = 32 << 20  # glibc accepts no larger limit: DEFAULT_MMAP_THRESHOLD_MAX
_BLOCK_BYTES = _MAPPED_FROM_BYTES - (64 << 10)
KEPT_BYTES = 256 << 20
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
# Each of them ends glibc's adaptation: as MALLOC_MMAP_MAX_, and as glibc.malloc.mmap_max.
_LIMITS = ("mmap_max", "mmap_threshold", "top_pad", "trim_threshold")


class _Found(ctypes.Structure):
    """glibc's mallinfo2."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    )


@functools.cache
def keep_large_blocks() -> None:
    """Keep blocks of less than 32 MiB in the heap from now on, and up to 256 MiB of its free end.

    Applies to the whole process, once, in any thread; no page is touched. Has no effect if there is
    no memory for a block, with another malloc, or if the user set glibc's limits (mallopt(),
    MALLOC_TRIM_THRESHOLD_ and others).
    """
    # Not tensors: torch may allocate them elsewhere, fill them, or count them as gradients.
    libc = ctypes.CDLL(None)
    if _has_limits() or not hasattr(libc, "mallinfo2"):
        return
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    libc.free.restype, libc.free.argtypes = None, [ctypes.c_void_p]
    libc.mallinfo2.restype, libc.mallinfo2.argtypes = _Found, []
    libc.mallopt.restype, libc.mallopt.argtypes = ctypes.c_int, [ctypes.c_int, ctypes.c_int]
    if _is_mapped(libc) and _is_mapped(libc):
        return  # by limits that the program set: glibc does not adapt
    if libc.mallopt(_M_MMAP_THRESHOLD, _MAPPED_FROM_BYTES) == 1:  # too large if long has 32 bits
        libc.mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)  # accepts any


def _has_limits() -> bool:
    """Whether the user has set one of glibc's limits."""
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    return any(
        f"MALLOC_{name.upper()}_" in os.environ or f"glibc.malloc.{name}=" in tunables
        for name in _LIMITS
    )


def _is_mapped(libc: ctypes.CDLL) -> bool:
    """Whether a block is mapped by itself, or cannot be allocated.

    The block is freed again; glibc adapts to that if it adapts at all.
    """
    before = libc.mallinfo2().hblkhd
    block = libc.malloc(_BLOCK_BYTES)
    grown = libc.mallinfo2().hblkhd - before
    libc.free(block)
    return bool(grown >= _BLOCK_BYTES or not block)
