"""torch tensors that are born in the arena, where peers reach them without a copy."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast

import torch

from rdmatensor.context import Context, default_context
from rdmatensor.distributed import load_extension, tie_to_context

MIN_BYTES = 4096  # a page: below it a copy costs less than a place of its own in the arena
_KEPT = 256  # requests that describe() tells of; a program that adopts for ever must not grow


@dataclass(frozen=True, slots=True)
class Request:
    """One adopt(). refusal: why it was refused, or nothing."""

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
    """Return a tensor in the arena, its content undefined.

    Shapes: any, zero-size is legal. dtype: None takes torch's default.
    Ownership: an ordinary tensor: resizable, and freed with its last view; it stays valid after
        the context was closed. In a forked child it is the parent's memory: do not write it there.
    context: None takes the process's own.
    Raises: torch.OutOfMemoryError with the line that lifts the limit.
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
    """What a thread allocated in registered_memory(): in the arena, and in vain."""

    count: int = 0
    size_bytes: int = 0
    missed: int = 0
    missed_bytes: int = 0


def has_allocator() -> bool:
    """Whether torch's allocator of CPU memory asks us; else another library has its place."""
    return bool(load_extension().take_allocator())


@contextmanager
def registered_memory(
    *, min_bytes: int = MIN_BYTES, context: Context | None = None
) -> Iterator[Births]:
    """Let the tensors that this thread makes inside be born in the arena.

    Every CPU storage of at least min_bytes that torch allocates on this thread: an optimiser's
        state, a model's parameters, DDP's buckets; those of other threads are torch's as before.
        Memory that the arena has no room for is torch's own, and counted.
    Ownership: as of empty(). What a tensor is resized to later is torch's own memory again.
    context: None takes the process's own.
    Returns: the counts, complete when the block ends.
    Raises: RuntimeError if another library has replaced torch's allocator.
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
    """Move a tensor's storage, with all its views, into the arena; return the tensor.

    For what lives long and is sent often: parameters, optimiser state. One copy, now.
        describe()["not_adopted"] tells of what was refused, or has left the arena since.
    Ownership: as of empty(). Whoever holds the old address itself (a NumPy view, a pointer in C)
        loses the memory: there must be nobody.
    Raises: ValueError for memory that torch did not allocate, or that is shared with processes.
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
