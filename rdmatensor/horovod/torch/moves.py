"""Operations that move tensors: allgather, broadcast and alltoall."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from rdmatensor.horovod.process_sets import ProcessSet, global_process_set
from rdmatensor.horovod.torch import _calls, _forms
from rdmatensor.horovod.torch.handles import synchronize


def allgather(
    tensor: torch.Tensor,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Concatenate the tensors of all ranks; differentiable.

    Args:
        tensor: This rank's tensor.
        name: On which ranks agree; None numbers the calls, which must then have one order.
        process_set: The ranks that take part.

    Returns:
        The tensors of all ranks, one below the other in the order of the ranks. First dimensions
        may differ; a scalar counts as one row.

    Raises:
        ValueError: What this rank alone can see is wrong: an argument, the tensor's device, dtype
            or strides, or the name of an operation that is in flight.
        HorovodInternalError: Ranks disagree on the operation, a rank died or left.

    Example:
        >>> allgather(torch.ones(2))
        tensor([1., 1.])
    """
    (gathered,) = _forms.ALLGATHER.run(name, process_set, tensor)
    return gathered  # type: ignore[no-any-return]


def allgather_async(
    tensor: torch.Tensor,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start to concatenate the tensors of all ranks.

    Args:
        tensor: This rank's tensor.
        name: On which ranks agree; None numbers the calls, which must then have one order.
        process_set: The ranks that take part.

    Returns:
        A handle for poll() and synchronize().

    Raises:
        ValueError: What this rank alone can see is wrong: an argument, the tensor's device, dtype
            or strides, or the name of an operation that is in flight.
        HorovodInternalError: A rank died or left, or shutdown() was called.

    Example:
        >>> synchronize(allgather_async(torch.ones(2)))
        tensor([1., 1.])
    """
    return _calls.allgather([tensor], name, process_set)


def grouped_allgather(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """Concatenate the tensors of all ranks, for each tensor of a list; differentiable.

    Args:
        tensors: This rank's tensors.
        name: On which ranks agree; None numbers the calls, which must then have one order.
        process_set: The ranks that take part.

    Returns:
        One tensor for each of the list, as of allgather().

    Raises:
        ValueError: What this rank alone can see is wrong: an argument, the tensor's device, dtype
            or strides, or the name of an operation that is in flight.
        HorovodInternalError: Ranks disagree on the operation, a rank died or left.

    Example:
        >>> grouped_allgather([torch.ones(2)])
        [tensor([1., 1.])]
    """
    return list(_forms.ALLGATHER.run(name, process_set, *tensors))


def grouped_allgather_async(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start to concatenate the tensors of all ranks, for each tensor of a list.

    Args:
        tensors: This rank's tensors.
        name: On which ranks agree; None numbers the calls, which must then have one order.
        process_set: The ranks that take part.

    Returns:
        A handle for poll() and synchronize().

    Raises:
        ValueError: What this rank alone can see is wrong: an argument, the tensor's device, dtype
            or strides, or the name of an operation that is in flight.
        HorovodInternalError: A rank died or left, or shutdown() was called.

    Example:
        >>> synchronize(grouped_allgather_async([torch.ones(2)]))
        [tensor([1., 1.])]
    """
    return _forms.ALLGATHER.start(name, process_set, *tensors)


def broadcast(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Copy the tensor of one rank into a new one on all ranks; differentiable.

    Args:
        tensor: This rank's tensor.
        root_rank: The global rank whose tensor all get, also in a process set.
        name: On which ranks agree; None numbers the calls, which must then have one order.
        process_set: The ranks that take part.

    Returns:
        The root's tensor.

    Raises:
        ValueError: What this rank alone can see is wrong: an argument, the tensor's device, dtype
            or strides, or the name of an operation that is in flight.
        HorovodInternalError: Ranks disagree on the operation, a rank died or left.

    Example:
        >>> broadcast(torch.ones(2), 0)
        tensor([1., 1.])
    """
    return _forms.BROADCAST.run(tensor, root_rank, name, process_set)  # type: ignore[no-any-return]


def broadcast_async(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start to copy the tensor of one rank into a new one on all ranks.

    Args:
        tensor: This rank's tensor.
        root_rank: The global rank whose tensor all get, also in a process set.
        name: On which ranks agree; None numbers the calls, which must then have one order.
        process_set: The ranks that take part.

    Returns:
        A handle for poll() and synchronize().

    Raises:
        ValueError: What this rank alone can see is wrong: an argument, the tensor's device, dtype
            or strides, or the name of an operation that is in flight.
        HorovodInternalError: A rank died or left, or shutdown() was called.

    Example:
        >>> synchronize(broadcast_async(torch.ones(2), 0))
        tensor([1., 1.])
    """
    return _forms.BROADCAST.start(tensor, root_rank, name, process_set)


def broadcast_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Copy the tensor of one rank into those of all ranks.

    Args:
        tensor: This rank's tensor.
        root_rank: The global rank whose tensor all get, also in a process set.
        name: On which ranks agree; None numbers the calls, which must then have one order.
        process_set: The ranks that take part.

    Returns:
        The tensor, which is the root's now.

    Raises:
        ValueError: What this rank alone can see is wrong: an argument, the tensor's device, dtype
            or strides, or the name of an operation that is in flight.
        HorovodInternalError: Ranks disagree on the operation, a rank died or left.

    Example:
        >>> broadcast_(torch.ones(2), 0)
        tensor([1., 1.])
    """
    synchronize(_calls.broadcast(tensor, tensor, root_rank, name, process_set))
    return tensor


def broadcast_async_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start to copy the tensor of one rank into those of all ranks.

    Args:
        tensor: This rank's tensor.
        root_rank: The global rank whose tensor all get, also in a process set.
        name: On which ranks agree; None numbers the calls, which must then have one order.
        process_set: The ranks that take part.

    Returns:
        A handle for poll() and synchronize().

    Raises:
        ValueError: What this rank alone can see is wrong: an argument, the tensor's device, dtype
            or strides, or the name of an operation that is in flight.
        HorovodInternalError: A rank died or left, or shutdown() was called.

    Example:
        >>> synchronize(broadcast_async_(torch.ones(2), 0))
        tensor([1., 1.])
    """
    return _calls.broadcast(tensor, tensor, root_rank, name, process_set)


def alltoall(
    tensor: torch.Tensor,
    splits: torch.Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Send rows to each rank, and return the rows from each; differentiable.

    Args:
        tensor: This rank's tensor.
        splits: Rows to each rank of the set, int32; None: equally many.
        name: On which ranks agree; None numbers the calls, which must then have one order.
        process_set: The ranks that take part.

    Returns:
        The rows in the order of the ranks; with splits also the number of rows from each rank,
        int32.

    Raises:
        ValueError: What this rank alone can see is wrong: an argument, the tensor's device, dtype
            or strides, or the name of an operation that is in flight.
        HorovodInternalError: Ranks disagree on the operation, a rank died or left.

    Example:
        >>> alltoall(torch.ones(2), splits=[2])
        (tensor([1., 1.]), tensor([2], dtype=torch.int32))
    """
    output, received = _forms.ALLTOALL.run(tensor, splits, name, process_set)
    return output if splits is None else (output, received)


def alltoall_async(
    tensor: torch.Tensor,
    splits: torch.Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start to send rows to each rank.

    Args:
        tensor: This rank's tensor.
        splits: Rows to each rank of the set, int32; None: equally many.
        name: On which ranks agree; None numbers the calls, which must then have one order.
        process_set: The ranks that take part.

    Returns:
        A handle for poll() and synchronize(), which returns the rows and the number from each.

    Raises:
        ValueError: What this rank alone can see is wrong: an argument, the tensor's device, dtype
            or strides, or the name of an operation that is in flight.
        HorovodInternalError: A rank died or left, or shutdown() was called.

    Example:
        >>> synchronize(alltoall_async(torch.ones(2)))
        (tensor([1., 1.]), tensor([2], dtype=torch.int32))
    """
    return _forms.ALLTOALL.start(tensor, splits, name, process_set)
