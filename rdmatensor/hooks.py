"""Gradients of DistributedDataParallel sent as bfloat16.

torch has both functions, and refuses to register them, by their names, wherever there is no NCCL or
XCCL. No annotation here is a string: torch compares them with its types.
"""

from collections.abc import Callable
from typing import TypeVar, cast

import torch
from torch._C._distributed_c10d import GradBucket, ProcessGroup
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

Reduced = torch.futures.Future[torch.Tensor]
State = TypeVar("State")  # of the hook, which alone knows it


def bf16_hook(group: ProcessGroup | None, bucket: GradBucket) -> Reduced:
    """Do what torch's bf16_compress_hook() does; for DistributedDataParallel.register_comm_hook().

    group: None is the default group. Half of a float32 bucket's bytes leave; sums are rounded to
        eight bits of mantissa, and returned in the bucket's own dtype.
    """
    return default_hooks.bf16_compress_hook(cast("ProcessGroup", group), bucket)


def bf16_wrapper(
    hook: Callable[[State, GradBucket], Reduced],
) -> Callable[[State, GradBucket], Reduced]:
    """Do what torch's bf16_compress_wrapper() does: give the hook its buckets in bfloat16."""
    wrapped = default_hooks.bf16_compress_wrapper(hook)

    def bf16_wrapped(state: State, bucket: GradBucket) -> Reduced:
        return wrapped(state, bucket)

    return bf16_wrapped
