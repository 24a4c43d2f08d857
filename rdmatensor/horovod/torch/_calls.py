"""The operations on tensors without autograd; each returns a handle."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from rdmatensor.horovod import _runtime
from rdmatensor.horovod.process_sets import ProcessSet
from rdmatensor.horovod.torch import _submit

Factors = tuple[float, float]  # before and after the reduction


def allreduce(
    tensors: Sequence[torch.Tensor],
    outputs: list[torch.Tensor] | None,
    name: str | None,
    op: int,
    factors: Factors,
    process_set: ProcessSet,
    *,
    is_list: bool = False,
) -> int:
    """Submit an allreduce; outputs: None makes new ones, the inputs themselves reduce in place."""
    if outputs is None:
        outputs = [torch.empty_like(tensor, requires_grad=False) for tensor in tensors]
    else:
        tensors = outputs = [one.detach() if one.requires_grad else one for one in outputs]
    entry = _submit.reduction_entry(
        "allreduce", tensors, outputs, name, op, factors, process_set, is_list=is_list
    )
    return _submit.submit(entry)


def allgather(
    tensors: Sequence[torch.Tensor],
    name: str | None,
    process_set: ProcessSet,
    *,
    is_list: bool = False,
) -> int:
    """Submit an allgather."""
    given = [tensor.reshape(1) if tensor.dim() == 0 else tensor for tensor in tensors]
    return _submit.move("allgather", given, [], name, process_set, is_list=is_list)


def broadcast(
    tensor: torch.Tensor, output: torch.Tensor, root: int, name: str | None, one: ProcessSet
) -> int:
    """Submit a broadcast; root is a global rank."""
    ranks = _runtime.controller().ranks.get(_submit.set_id_of(one), ())
    if root not in ranks:
        raise ValueError(
            f"root_rank={root}: expected one of the process set's global ranks {ranks}"
        )
    target = output.detach() if output.requires_grad else output
    source = target if output is tensor else tensor
    return _submit.move("broadcast", [source], [target], name, one, {"root": int(root)})


def alltoall(
    tensor: torch.Tensor,
    splits: torch.Tensor | Sequence[int] | None,
    name: str | None,
    one: ProcessSet,
) -> int:
    """Submit an alltoall; its result is the tensor with the rows from each member."""
    size = len(_runtime.controller().ranks[_submit.set_id_of(one)])
    if tensor.dim() == 0:
        raise ValueError("alltoall needs a tensor of at least one dimension")
    rows = tensor.shape[0]
    if splits is None:
        if rows % size:
            raise ValueError(
                f"alltoall without splits: {rows} rows are not divisible by {size} ranks"
            )
        counts = [rows // size] * size
    else:
        counts = _counts(splits)
        if len(counts) != size or min(counts) < 0 or sum(counts) > rows:
            raise ValueError(
                f"splits {counts} must be {size} numbers from 0 with a sum of at most {rows}"
            )
    given = tensor.narrow(0, 0, sum(counts))
    return _submit.move("alltoall", [given], [], name, one, {"splits": counts}, has_splits=True)


def _counts(splits: torch.Tensor | Sequence[int]) -> list[int]:
    if isinstance(splits, torch.Tensor):
        if splits.dtype not in (torch.int32, torch.int64) or splits.dim() != 1:
            raise ValueError(
                f"splits must be one row of int32, not {splits.dtype} of {splits.dim()} dimensions"
            )
        return [int(count) for count in splits.tolist()]
    return [int(count) for count in splits]


def reducescatter(
    tensors: Sequence[torch.Tensor],
    name: str | None,
    op: int,
    factors: Factors,
    process_set: ProcessSet,
    *,
    is_list: bool = False,
) -> int:
    """Submit a reducescatter."""
    if any(tensor.dim() == 0 for tensor in tensors):
        raise ValueError("reducescatter needs tensors of at least one dimension")
    entry = _submit.reduction_entry(
        "reducescatter", tensors, [], name, op, factors, process_set, is_list=is_list
    )
    return _submit.submit(entry)
