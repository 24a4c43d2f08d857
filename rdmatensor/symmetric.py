"""Additions to torch's SymmetricMemory that its interface lacks.

For example::

    import torch.distributed._symmetric_memory as symm_mem
    symm_mem.set_backend("rdmatensor")  # after init_process_group("rdmatensor")
    tensor = symm_mem.empty(1024, device="cpu")
    handle = symm_mem.rendezvous(tensor, dist.group.WORLD)

If all members share a host, handle.get_buffer(peer, ...) is the peer's memory itself; put() and
get() reach it over every path. handle.barrier(), put_signal() and wait_signal() order both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from rdmatensor._backend.extension import load_extension

__all__ = ["get", "is_mapped", "put"]

if TYPE_CHECKING:
    import torch
    from torch._C._distributed_c10d import Work, _SymmetricMemory


def put(handle: _SymmetricMemory, src: torch.Tensor, peer: int, *, offset_bytes: int = 0) -> Work:
    """Start to write a whole tensor into a peer's buffer.

    Args:
        handle: The handle that symm_mem.rendezvous() returned.
        src: Contiguous, of any dtype. It is kept alive and must not change until the Work is done.
        peer: A rank of the group of the rendezvous; this rank's own is legal.
        offset_bytes: Where the bytes go, from the start of the buffer.

    Returns:
        The operation. When it is done, the bytes are in place; a later handle.put_signal() or
        handle.barrier() notifies the peer.

    Raises:
        ValueError: The tensor or the rank is wrong, or the range leaves the buffer.
        DistBackendError: The group was shut down, or the peer died or freed its tensor and handle.
            Work.wait() may raise it too.

    Example:
        >>> put(handle, torch.ones(4), peer=0).wait()
        True
    """
    return cast("Work", load_extension().put(handle, src, peer, offset_bytes))


def get(handle: _SymmetricMemory, dst: torch.Tensor, peer: int, *, offset_bytes: int = 0) -> Work:
    """Start to read a peer's buffer into a whole tensor.

    Args:
        handle: As for put().
        dst: Contiguous, of any dtype. It is kept alive and must not be used until the Work is done.
        peer: As for put().
        offset_bytes: Where to read, from the start of the buffer.

    Returns:
        The operation. When it is done, the bytes are in the tensor.

    Raises:
        ValueError: As put().
        DistBackendError: As put().

    Example:
        >>> get(handle, torch.zeros(4), peer=0).wait()
        True
    """
    return cast("Work", load_extension().get(handle, dst, peer, offset_bytes))


def is_mapped(handle: _SymmetricMemory, peer: int) -> bool:
    """Return whether a peer's buffer is mapped here: then get_buffer(peer, ...) is its memory.

    get_buffer() and the lists of pointers fail, naming a peer, unless all members are mapped.

    Args:
        handle: As for put().
        peer: As for put().

    Returns:
        True if the buffer can be read and written as local memory.

    Example:
        >>> is_mapped(handle, peer=0)
        True
    """
    return bool(load_extension().is_mapped(handle, peer))
