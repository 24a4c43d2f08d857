"""torch tensors in the arena, where peers access them without a copy.

`import rdmatensor` is enough to call `rdmatensor.torch.empty()`. Do not write `from rdmatensor
import torch`, which would hide torch itself.
"""

from __future__ import annotations

import operator
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast

import torch

from rdmatensor._backend.extension import load_extension, tie_to_context
from rdmatensor.context import Context, default_context

__all__ = [
    "ArenaAllocations",
    "Request",
    "adopt",
    "empty",
    "empty_like",
    "has_allocator",
    "is_in_arena",
    "ones",
    "registered_memory",
    "requests",
    "zeros",
    "zeros_like",
]

MIN_BYTES = 4096  # a page: below it a copy costs less than a place of its own in the arena
_KEPT = 256  # requests that describe() lists; bounded, as a program may adopt forever


@dataclass(frozen=True, slots=True)
class Request:
    """One call of adopt().

    Attributes:
        name: Dtype and shape of the tensor.
        tensor: A weak reference to it.
        size_bytes: Its bytes.
        refusal: Why it was refused, or empty.
    """

    name: str
    tensor: weakref.ref[torch.Tensor]
    size_bytes: int
    refusal: str


_requests: deque[Request] = deque(maxlen=_KEPT)


def requests() -> list[Request]:
    """Return the last calls of adopt().

    Returns:
        At most 256 calls, the oldest first.

    Example:
        >>> adopt(torch.ones(2048))
        tensor(...)
        >>> requests()[-1].size_bytes
        8192
    """
    return list(_requests)


def empty(
    *size: int | Sequence[int],
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    requires_grad: bool = False,
    context: Context | None = None,
) -> torch.Tensor:
    """Return a tensor in the arena, with undefined content, as torch.empty() does elsewhere.

    The tensor is an ordinary one: resizable, and freed with its last view. It stays valid after the
    context was closed. In a forked child it is the parent's memory: do not write it there. torch's
    own functions write into it by `out=`.

    Args:
        size: Sizes of the dims, one by one or as one sequence; zero-size is legal.
        dtype: None takes torch's default.
        device: None or the CPU: the arena is CPU memory.
        requires_grad: Whether autograd records operations on it.
        context: None takes the process's own.

    Returns:
        The tensor.

    Raises:
        torch.OutOfMemoryError: The arena has no room; the message has the line that lifts the
            limit.
        ValueError: Another device.
        TypeError: A size is not an integer.

    Example:
        >>> empty(2, 3, dtype=torch.bfloat16).shape
        torch.Size([2, 3])
    """
    if device is not None and torch.device(device).type != "cpu":
        raise ValueError(
            f"device={str(device)!r}: the arena is CPU memory; allocate GPU tensors with torch, "
            "and send them by the NCCL backend"
        )
    chosen = default_context() if context is None else context
    c10d = load_extension()
    tie_to_context(c10d, chosen)
    kind = torch.get_default_dtype() if dtype is None else dtype
    made = cast("torch.Tensor", c10d.empty(chosen._c_addr, _dims(size), kind))
    return made.requires_grad_() if requires_grad else made


def _dims(size: tuple[int | Sequence[int], ...]) -> list[int]:
    sizes = size[0] if len(size) == 1 and isinstance(size[0], Sequence) else size
    try:
        return [operator.index(dim) for dim in cast("Sequence[int]", sizes)]
    except TypeError:
        raise TypeError(
            f"sizes {sizes!r} are not all integers: give a dtype by name, dtype=torch.float32"
        ) from None


def zeros(
    *size: int | Sequence[int],
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    requires_grad: bool = False,
    context: Context | None = None,
) -> torch.Tensor:
    """Return a tensor in the arena, filled with zeros.

    Args:
        size: As for empty().
        dtype: As for empty().
        device: As for empty().
        requires_grad: As for empty().
        context: As for empty().

    Returns:
        The tensor.

    Raises:
        torch.OutOfMemoryError: The arena has no room. The other exceptions are those of empty().

    Example:
        >>> zeros(3)
        tensor([0., 0., 0.])
    """
    made = empty(*size, dtype=dtype, device=device, context=context).zero_()
    return made.requires_grad_(requires_grad)


def ones(
    *size: int | Sequence[int],
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    requires_grad: bool = False,
    context: Context | None = None,
) -> torch.Tensor:
    """Return a tensor in the arena, filled with ones.

    Args:
        size: As for empty().
        dtype: As for empty().
        device: As for empty().
        requires_grad: As for empty().
        context: As for empty().

    Returns:
        The tensor.

    Raises:
        torch.OutOfMemoryError: The arena has no room. The other exceptions are those of empty().

    Example:
        >>> ones(2, dtype=torch.int32)
        tensor([1, 1], dtype=torch.int32)
    """
    made = empty(*size, dtype=dtype, device=device, context=context).fill_(1)
    return made.requires_grad_(requires_grad)


def empty_like(
    tensor: torch.Tensor,
    *,
    dtype: torch.dtype | None = None,
    requires_grad: bool = False,
    context: Context | None = None,
) -> torch.Tensor:
    """Return a row-major tensor in the arena with another one's shape, and undefined content.

    `empty_like(tensor).copy_(tensor)` is a copy of a tensor in the arena.

    Args:
        tensor: A tensor of any device.
        dtype: None takes the tensor's.
        requires_grad: As for empty().
        context: As for empty().

    Returns:
        The tensor.

    Raises:
        torch.OutOfMemoryError: The arena has no room.

    Example:
        >>> empty_like(torch.ones(2, 3)).shape
        torch.Size([2, 3])
    """
    kind = tensor.dtype if dtype is None else dtype
    return empty(tensor.shape, dtype=kind, requires_grad=requires_grad, context=context)


def zeros_like(
    tensor: torch.Tensor,
    *,
    dtype: torch.dtype | None = None,
    requires_grad: bool = False,
    context: Context | None = None,
) -> torch.Tensor:
    """Return a row-major tensor in the arena with another one's shape, filled with zeros.

    Args:
        tensor: As for empty_like().
        dtype: As for empty_like().
        requires_grad: As for empty().
        context: As for empty().

    Returns:
        The tensor.

    Raises:
        torch.OutOfMemoryError: The arena has no room.

    Example:
        >>> zeros_like(torch.ones(2))
        tensor([0., 0.])
    """
    made = empty_like(tensor, dtype=dtype, context=context).zero_()
    return made.requires_grad_(requires_grad)


@dataclass(slots=True)
class ArenaAllocations:
    """A thread's allocations in registered_memory().

    Attributes:
        count: Tensors allocated in the arena.
        size_bytes: Their bytes.
        missed: Tensors for which the arena had no room.
        missed_bytes: Their bytes.
    """

    count: int = 0
    size_bytes: int = 0
    missed: int = 0
    missed_bytes: int = 0


def has_allocator() -> bool:
    """Return whether torch's allocator of CPU memory is rdmatensor's.

    Returns:
        False if another library has replaced it: then registered_memory() cannot work.

    Example:
        >>> has_allocator()
        True
    """
    return bool(load_extension().take_allocator())


@contextmanager
def registered_memory(
    *, min_bytes: int = MIN_BYTES, context: Context | None = None
) -> Iterator[ArenaAllocations]:
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

    Example:
        >>> with registered_memory() as counts:
        ...     model = torch.nn.Linear(256, 256)
        >>> is_in_arena(model.weight), counts.count
        (True, 1)
    """
    chosen = default_context() if context is None else context
    c10d = load_extension()
    tie_to_context(c10d, chosen)
    before = c10d.arena_allocations()
    counts = ArenaAllocations()
    c10d.enter_arena(chosen._c_addr, min_bytes)
    try:
        yield counts
    finally:
        c10d.leave_arena()
        news = [
            after - first for after, first in zip(c10d.arena_allocations(), before, strict=True)
        ]
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

    Example:
        >>> is_in_arena(adopt(torch.ones(2048)))
        True
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
    """Return whether the tensor's memory is in an arena of this process.

    Args:
        tensor: Any tensor.

    Returns:
        True if its storage lies in an arena.

    Example:
        >>> is_in_arena(torch.ones(3)), is_in_arena(zeros(3))
        (False, True)
    """
    return bool(load_extension().is_in_arena(tensor))
