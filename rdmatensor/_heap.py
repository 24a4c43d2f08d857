"""Memory that a training step frees and asks for again: let malloc keep it.

glibc maps each block that is larger than any mapped one that was freed before (up to 32 MiB), and
gives what is free at the end of its heap back to the kernel from twice that size on. A step whose
temporary tensors are the largest blocks so far has their pages taken and zeroed anew each time,
with a fault for each 4 KiB. It takes a larger block that was freed to be spared that, and where
gradients are not malloc's there may be none.
"""

from __future__ import annotations

import functools

import torch

# With its head it is less than what glibc learns from: DEFAULT_MMAP_THRESHOLD_MAX of a 64-bit one.
_BLOCK_BYTES = (32 << 20) - (64 << 10)


@functools.cache
def keep_large_blocks() -> None:
    """Have blocks of up to 32 MiB in the heap from here on, and keep up to 64 MiB that are free.

    For the whole process, once. Nothing happens with another malloc, nor where the user set glibc's
    limits (mallopt(), MALLOC_MMAP_THRESHOLD_), which learns nothing then. No page is touched.
    """
    torch.empty(_BLOCK_BYTES, dtype=torch.uint8)  # mapped, and freed
