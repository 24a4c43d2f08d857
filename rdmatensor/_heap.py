"""Memory that a training step frees and asks for again: let malloc keep it.

glibc maps each block that is larger than any mapped one that was freed before (up to 32 MiB), and
gives what is free at the end of its heap back to the kernel from twice that size on. A step whose
temporary tensors are the largest blocks so far has their pages taken and zeroed anew each time,
with a fault for each 4 KiB. It takes a larger block that was freed to be spared that, and where
gradients are not malloc's there may be none.
"""

from __future__ import annotations

import ctypes
import functools

# The largest that glibc learns from, DEFAULT_MMAP_THRESHOLD_MAX of a 64-bit one, is 32 MiB with the
# block's head, in whole pages.
_BLOCK_BYTES = (32 << 20) - 4096


@functools.cache
def keep_large_blocks() -> None:
    """Have blocks of less than 32 MiB in the heap from here on, and its end kept, up to 64 MiB.

    For the whole process, once, in any thread; no page is touched. Nothing happens where there is
    no memory for the block, with another malloc, or where the user set glibc's limits (mallopt(),
    MALLOC_MMAP_THRESHOLD_ and others), which learns nothing then.
    """
    # Not a tensor: torch may have it elsewhere, filled, or counted as a gradient's.
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    libc.free.restype, libc.free.argtypes = None, [ctypes.c_void_p]
    libc.free(libc.malloc(_BLOCK_BYTES))
