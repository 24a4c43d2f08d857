"""Collectives of torch tensors that are sent in fewer bytes.

`torch.distributed`'s own calls never do this: only these functions and the hooks of
`rdmatensor.hooks` do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from rdmatensor._backend import lossy
from rdmatensor._backend.lossy import Wire

if TYPE_CHECKING:
    from torch._C._distributed_c10d import ProcessGroup


def all_reduce(
    tensor: torch.Tensor,
    *,
    wire: Wire = "q8",
    block: int = lossy.BLOCK,
    residual: torch.Tensor | None = None,
    op: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM,
    group: ProcessGroup | None = None,
    async_op: bool = False,
) -> dist.Work | None:
    """Sum a tensor over all ranks, in place, by sending fewer bytes.

    Every rank gets the same bits. Each element is encoded twice: once by each rank other than its
    owner, and once as a sum by its owner. A block with an infinity or a NaN becomes NaN, so that
    `torch.amp.GradScaler` sees it. In a group of one rank nothing is encoded.

    Args:
        tensor: Contiguous float32 tensor, with as many elements on all ranks.
        wire: `"q8"` sends a byte an element and two for each block, `"bf16"` two bytes an element,
            `"exact"` is `torch.distributed.all_reduce()`. The same on all ranks.
        block: Elements of `"q8"` that share a scale: 32, 64, 128, 256, 512 or 1024.
        residual: float32, as many elements as tensor; zeros at first. What encoding lost in the
            last call is added in this one, and it then has what this one lost. Keep one for each
            tensor. None drops what is lost.
        op: SUM or AVG.
        group: None is the default group.
        async_op: Return at once.

    Returns:
        The work of an asynchronous call, else None.

    Raises:
        TypeError: The tensor is not float32, or op is neither SUM nor AVG.
        ValueError: An argument is out of range, the residual belongs to another tensor, or the
            group's backend is not rdmatensor.
        DistBackendError: Ranks disagree on the tensor or the wire, or one of them died.

    Example:
        >>> gradient, lost = torch.ones(1000), torch.zeros(1000)
        >>> all_reduce(gradient, wire="q8", residual=lost, op=dist.ReduceOp.AVG)
    """
    call = "all_reduce"
    fmt = lossy.format_of(wire, block, call)
    lossy.check_tensor(tensor, fmt, call)
    lossy.check_op(op, fmt, call)
    lossy.check_residual(residual, tensor, fmt, call)
    if fmt.wire == "exact":
        work: dist.Work | None = dist.all_reduce(tensor, op=op, group=group, async_op=async_op)
        return work
    return _ended(lossy.all_reduce(tensor, fmt, op, residual, group, is_async=async_op), async_op)


def reduce_scatter(
    output: torch.Tensor,
    tensor: torch.Tensor,
    *,
    wire: Wire = "q8",
    block: int = lossy.BLOCK,
    residual: torch.Tensor | None = None,
    op: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM,
    group: ProcessGroup | None = None,
    async_op: bool = False,
) -> dist.Work | None:
    """Sum a tensor over all ranks; each rank gets its part, which is not encoded again.

    Args:
        output: Contiguous float32 tensor: this rank's part.
        tensor: As many elements as output for each rank.
        wire: As all_reduce().
        block: As all_reduce().
        residual: As many elements as tensor. This rank's own part of it stays as it is.
        op: SUM or AVG.
        group: None is the default group.
        async_op: Return at once.

    Returns:
        The work of an asynchronous call, else None.

    Raises:
        TypeError: As all_reduce().
        ValueError: As all_reduce().
        DistBackendError: As all_reduce().

    Example:
        >>> part = torch.zeros(4)
        >>> reduce_scatter(part, torch.ones(4 * dist.get_world_size()), wire="bf16")
    """
    call = "reduce_scatter"
    fmt = lossy.format_of(wire, block, call)
    lossy.check_tensor(tensor, fmt, call)
    lossy.check_tensor(output, fmt, call)
    lossy.check_op(op, fmt, call)
    lossy.check_residual(residual, tensor, fmt, call)
    if fmt.wire == "exact":
        work: dist.Work | None = dist.reduce_scatter_tensor(
            output, tensor, op=op, group=group, async_op=async_op
        )
        return work
    begun = lossy.reduce_scatter(output, tensor, fmt, op, residual, group, is_async=async_op)
    return _ended(begun, async_op)


def all_gather(
    output: torch.Tensor,
    tensor: torch.Tensor,
    *,
    wire: Wire = "q8",
    block: int = lossy.BLOCK,
    residual: torch.Tensor | None = None,
    group: ProcessGroup | None = None,
    async_op: bool = False,
) -> dist.Work | None:
    """Collect the tensors of all ranks, in rank order; every rank gets the same bits.

    A rank's own part of output, too, is what decoding gives.

    Args:
        output: Contiguous float32 tensor, with as many elements as tensor for each rank.
        tensor: This rank's part.
        wire: As all_reduce().
        block: As all_reduce().
        residual: As many elements as tensor.
        group: None is the default group.
        async_op: Return at once.

    Returns:
        The work of an asynchronous call, else None.

    Raises:
        TypeError: The tensors are not float32.
        ValueError: As all_reduce().
        DistBackendError: As all_reduce().

    Example:
        >>> whole = torch.zeros(4 * dist.get_world_size())
        >>> all_gather(whole, torch.ones(4), wire="q8")
    """
    call = "all_gather"
    fmt = lossy.format_of(wire, block, call)
    lossy.check_tensor(tensor, fmt, call)
    lossy.check_tensor(output, fmt, call)
    lossy.check_residual(residual, tensor, fmt, call)
    if fmt.wire == "exact":
        work: dist.Work | None = dist.all_gather_into_tensor(
            output, tensor, group=group, async_op=async_op
        )
        return work
    begun = lossy.all_gather(output, tensor, fmt, residual, group, is_async=async_op)
    return _ended(begun, async_op)


def _ended(work: dist.Work | None, is_async: bool) -> dist.Work | None:
    """Wait for a call that is not asynchronous: it has a work if it takes long, or failed."""
    if work is None or is_async:
        return work
    work.wait()
    return None
