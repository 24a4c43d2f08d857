"""Beside torch's SymmetricMemory: what its interface has no place for.

    import torch.distributed._symmetric_memory as symm_mem
    symm_mem.set_backend("rdmatensor")  # after init_process_group("rdmatensor")
    tensor = symm_mem.empty(1024, device="cpu")
    handle = symm_mem.rendezvous(tensor, dist.group.WORLD)

handle.get_buffer(peer, ...) is the peer's memory itself, where all members share a host; put() and
get() reach it over every path. handle.barrier(), put_signal() and wait_signal() order both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from rdmatensor.distributed import load_extension

if TYPE_CHECKING:
    import torch
    from torch._C._distributed_c10d import Work, _SymmetricMemory


def put(handle: _SymmetricMemory, src: torch.Tensor, peer: int, *, offset_bytes: int = 0) -> Work:
    """Start to write a whole tensor into a peer's buffer.

    Shapes: src is contiguous, of any dtype; its bytes land offset_bytes after the buffer's begin.
    peer: a rank of the group of the rendezvous; one's own is legal.
    Ownership: src is kept alive and must not change until the Work is done. Done means that the
        bytes are in place; the peer learns of it by handle.put_signal() or handle.barrier() after.
    Raises: ValueError (tensor, rank, a range that leaves the buffer), DistBackendError (the group
        was shut down, the peer died or freed its tensor and handle). The same from Work.wait().
    """
    return cast("Work", load_extension().put(handle, src, peer, offset_bytes))


def get(handle: _SymmetricMemory, dst: torch.Tensor, peer: int, *, offset_bytes: int = 0) -> Work:
    """Start to read a peer's buffer into a whole tensor; as put(), the other way."""
    return cast("Work", load_extension().get(handle, dst, peer, offset_bytes))


def is_mapped(handle: _SymmetricMemory, peer: int) -> bool:
    """Whether a peer's buffer has an address here: then get_buffer(peer, ...) is its memory.

    get_buffer() and the lists of pointers fail, naming a peer, unless all members are mapped.
    """
    return bool(load_extension().is_mapped(handle, peer))
