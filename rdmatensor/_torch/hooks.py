"""Gradients of DistributedDataParallel sent as bfloat16.

torch has both functions, but refuses to register them, by name, without NCCL or XCCL. Annotations
here are not strings: torch compares them with its types.
"""

from collections.abc import Callable
from typing import TypeVar, cast

import torch
from torch._C._distributed_c10d import GradBucket, ProcessGroup
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

Reduced = torch.futures.Future[torch.Tensor]
State = TypeVar("State")  # of the hook, the only code that knows it


def bf16_hook(group: ProcessGroup | None, bucket: GradBucket) -> Reduced:
    """Do what torch's bf16_compress_hook() does; for DistributedDataParallel.register_comm_hook().

    Half of a float32 bucket's bytes are sent. Sums are rounded to eight bits of mantissa.

    Args:
        group: None is the default group.
        bucket: The gradients to sum.

    Returns:
        The future of the sums, in the bucket's own dtype.

    Example:
        >>> model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
        >>> model.register_comm_hook(None, bf16_hook)
    """
    return default_hooks.bf16_compress_hook(cast("ProcessGroup", group), bucket)


def bf16_wrapper(
    hook: Callable[[State, GradBucket], Reduced],
) -> Callable[[State, GradBucket], Reduced]:
    """Do what torch's bf16_compress_wrapper() does: give the hook its buckets in bfloat16.

    Args:
        hook: A hook for DistributedDataParallel.register_comm_hook().

    Returns:
        A hook with the same state.

    Example:
        >>> model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
        >>> model.register_comm_hook(None, bf16_wrapper(default_hooks.allreduce_hook))
    """
    wrapped = default_hooks.bf16_compress_wrapper(hook)

    def bf16_wrapped(state: State, bucket: GradBucket) -> Reduced:
        return wrapped(state, bucket)

    return bf16_wrapped
