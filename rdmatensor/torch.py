"""torch tensors that are born in the arena, where peers reach them without a copy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch

from rdmatensor.context import Context, default_context
from rdmatensor.distributed import load_extension, tie_to_context


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
