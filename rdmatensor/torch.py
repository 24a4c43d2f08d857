"""torch tensors in the arena, where peers access them without a copy."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast

import torch

from rdmatensor._backend.extension import load_extension, tie_to_context
from rdmatensor.context import Context, default_context

MIN_BYTES = 4096  # a page: below it a copy costs less than a place of its own in the arena
_KEPT = 256  # requests that describe() lists; bounded, as a program may adopt forever


@dataclass(frozen=True, slots=True)
class Request:
    """One adopt(). refusal: why it was refused, or empty."""

    name: str
    tensor: weakref.ref[torch.Tensor]
    size_bytes: int
    refusal: str


_requests: deque[Request] = deque(maxlen=_KEPT)


def requests() -> list[Request]:
    """Return the last calls of adopt(), the oldest first."""
    return list(_requests)


def empty(
    shape: int | Sequence[int],
    dtype: torch.dtype | None = None,
    *,
    context: Context | None = None,
) -> torch.Tensor:
    """Return a tensor in the arena, with undefined content.

    The tensor is an ordinary one: resizable, and freed with its last view. It stays valid after the
    context was closed. In a forked child it is the parent's memory: do not write it there.

    Args:
        shape: Any shape; zero-size is legal.
        dtype: None takes torch's default.
        context: None takes the process's own.

    Returns:
        The tensor.

    Raises:
        torch.OutOfMemoryError: The arena has no room; the message has the line that lifts the
            limit.
    """
    chosen = default_context() if context is None else context
    c10d = load_extension()
    tie_to_context(c10d, chosen)
    dims = [shape] if isinstance(shape, int) else list(shape)
    kind = torch.get_default_dtype() if dtype is None else dtype
    return cast("torch.Tensor", c10d.empty(chosen._c_addr, dims, kind))


def zeros(
    shape: int | Sequence[int],
    dtype: torch.dtype | None = None,
    *,
    context: Context | None = None,
) -> torch.Tensor:
    """Return a tensor in the arena, filled with zeros; see empty()."""
    return empty(shape, dtype, context=context).zero_()


@dataclass(slots=True)
class Births:
    """A thread's allocations in registered_memory(): in the arena, and those without room there."""

    count: int = 0
    size_bytes: int = 0
    missed: int = 0
    missed_bytes: int = 0


def has_allocator() -> bool:
    """Whether torch's allocator of CPU memory is rdmatensor's; another library may replace it."""
    return bool(load_extension().take_allocator())


@contextmanager
def registered_memory(
    *, min_bytes: int = MIN_BYTES, context: Context | None = None
) -> Iterator[Births]:
    """Allocate the tensors that this thread makes inside in the arena.

    Applies to every CPU storage of at least min_bytes that torch allocates on this thread: an
    optimiser's state, a model's parameters, DDP's buckets. Storages of other threads are torch's as
    before. If the arena has no room, the memory is torch's own, and counted. Ownership is as of
    empty(); a tensor that is resized later gets memory of torch's own again.

    Args:
        min_bytes: Smaller storages are torch's own.
        context: None takes the process's own.

    Yields:
        The counts, complete when the block ends.

    Raises:
        RuntimeError: Another library has replaced torch's allocator.
    """
    chosen = default_context() if context is None else context
    c10d = load_extension()
    tie_to_context(c10d, chosen)
    before = c10d.births()
    counts = Births()
    c10d.enter_arena(chosen._c_addr, min_bytes)
    try:
        yield counts
    finally:
        c10d.leave_arena()
        news = [after - first for after, first in zip(c10d.births(), before, strict=True)]
        counts.count, counts.size_bytes, counts.missed, counts.missed_bytes = news


def adopt(tensor: torch.Tensor, *, context: Context | None = None) -> torch.Tensor:
    """Move a tensor's storage, with all its views, into the arena.

    For tensors that live long and are sent often: parameters, optimiser state. It is copied once,
    now. describe()["not_adopted"] lists what was refused, or has left the arena since. Ownership is
    as of empty(). The old memory is freed: no other code (a NumPy view, a pointer in C) may hold
    its address.

    Args:
        tensor: A dense CPU tensor.
        context: None takes the process's own.

    Returns:
        The tensor.

    Raises:
        ValueError: torch did not allocate the memory, or it is shared with processes.
    """
    chosen = default_context() if context is None else context
    c10d = load_extension()
    tie_to_context(c10d, chosen)
    try:
        c10d.adopt(chosen._c_addr, tensor)
    except ValueError as error:
        _requests.append(_request(tensor, str(error).splitlines()[0].removeprefix("adopt: ")))
        raise
    _requests.append(_request(tensor, ""))
    return tensor


def _request(tensor: torch.Tensor, refusal: str) -> Request:
    name = f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"
    size_bytes = tensor.numel() * tensor.element_size()
    return Request(name, weakref.ref(tensor), size_bytes, refusal)


def is_in_arena(tensor: torch.Tensor) -> bool:
    """Whether the tensor's memory is in an arena of this process."""
    return bool(load_extension().is_in_arena(tensor))
