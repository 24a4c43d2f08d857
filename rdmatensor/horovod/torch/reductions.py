"""Allreduces, and their grouped, asynchronous and in-place forms."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from rdmatensor.horovod.basics import Average, Sum
from rdmatensor.horovod.process_sets import ProcessSet, global_process_set
from rdmatensor.horovod.torch import _calls, _forms, _submit
from rdmatensor.horovod.torch._forms import CompressorLike
from rdmatensor.horovod.torch.compression import Compression
from rdmatensor.horovod.torch.handles import synchronize


def allreduce(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: CompressorLike = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Reduce a tensor over the ranks; differentiable.

    Args:
        tensor: This rank's tensor; the same dtype and shape on all ranks.
        average: Deprecated: True is op=Average, False op=Sum.
        name: On which ranks agree; None numbers the calls, which must then have one order.
        compression: What is sent in place of the tensor.
        op: Average, Sum, Min, Max or Product; None is Average.
        prescale_factor: Multiplies the tensor before.
        postscale_factor: Multiplies the result.
        process_set: The ranks that take part.

    Returns:
        A new tensor with the result.

    Raises:
        ValueError: What this rank alone can see is wrong: an argument, the tensor's device, dtype
            or strides, or the name of an operation that is in flight.
        HorovodInternalError: Ranks disagree on the operation, a rank died or left.

    Example:
        >>> allreduce(torch.ones(2), op=Sum)
        tensor([1., 1.])
    """
    if average is None and compression is Compression.none:
        found = _submit.reduce_next(
            *(tensor, name, op, prescale_factor, postscale_factor, process_set), is_in_place=False
        )
        if found is not None:
            return found
    factors = (prescale_factor, postscale_factor)
    options = _forms.of_allreduce(average, name, op, factors, process_set)
    return _forms.ALLREDUCE.run([tensor], compression, options)[0]


def allreduce_async(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start to reduce a tensor into a new one.

    Args:
        tensor: This rank's tensor; the same dtype and shape on all ranks.
        average: Deprecated: True is op=Average, False op=Sum.
        name: On which ranks agree; None numbers the calls, which must then have one order.
        op: Average, Sum, Min, Max or Product; None is Average.
        prescale_factor: Multiplies the tensor before.
        postscale_factor: Multiplies the result.
        process_set: The ranks that take part.

    Returns:
        A handle for poll() and synchronize().

    Raises:
        ValueError: What this rank alone can see is wrong: an argument, the tensor's device, dtype
            or strides, or the name of an operation that is in flight.
        HorovodInternalError: A rank died or left, or shutdown() was called.

    Example:
        >>> synchronize(allreduce_async(torch.ones(2)))
        tensor([1., 1.])
    """
    factors = (prescale_factor, postscale_factor)
    options = _forms.of_allreduce(average, name, op, factors, process_set)
    return _forms.ALLREDUCE.start([tensor], options, is_list=False)


def allreduce_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Reduce a tensor over the ranks, in place.

    Args:
        tensor: This rank's tensor; the same dtype and shape on all ranks.
        average: Deprecated: True is op=Average, False op=Sum.
        name: On which ranks agree; None numbers the calls, which must then have one order.
        op: Average, Sum, Min, Max or Product; None is Average.
        prescale_factor: Multiplies the tensor before.
        postscale_factor: Multiplies the result.
        process_set: The ranks that take part.

    Returns:
        The tensor.

    Raises:
        ValueError: What this rank alone can see is wrong: an argument, the tensor's device, dtype
            or strides, or the name of an operation that is in flight.
        HorovodInternalError: Ranks disagree on the operation, a rank died or left.

    Example:
        >>> allreduce_(torch.ones(2))
        tensor([1., 1.])
    """
    if average is None:
        found = _submit.reduce_next(
            *(tensor, name, op, prescale_factor, postscale_factor, process_set), is_in_place=True
        )
        if found is not None:
            return tensor
    factors = (prescale_factor, postscale_factor)
    options = _forms.of_allreduce(average, name, op, factors, process_set)
    synchronize(_forms.start_in_place([tensor], options, is_list=False))
    return tensor


def allreduce_async_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start to reduce a tensor, in place.

    Args:
        tensor: This rank's tensor; the same dtype and shape on all ranks.
        average: Deprecated: True is op=Average, False op=Sum.
        name: On which ranks agree; None numbers the calls, which must then have one order.
        op: Average, Sum, Min, Max or Product; None is Average.
        prescale_factor: Multiplies the tensor before.
        postscale_factor: Multiplies the result.
        process_set: The ranks that take part.

    Returns:
        A handle for poll() and synchronize().

    Raises:
        ValueError: What this rank alone can see is wrong: an argument, the tensor's device, dtype
            or strides, or the name of an operation that is in flight.
        HorovodInternalError: A rank died or left, or shutdown() was called.

    Example:
        >>> synchronize(allreduce_async_(torch.ones(2)))
        tensor([1., 1.])
    """
    factors = (prescale_factor, postscale_factor)
    options = _forms.of_allreduce(average, name, op, factors, process_set)
    return _forms.start_in_place([tensor], options, is_list=False)


def grouped_allreduce(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: CompressorLike = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """Reduce tensors over the ranks, all together; differentiable.

    Args:
        tensors: This rank's tensors, of one dtype; the same dtypes and shapes on all ranks.
        average: Deprecated: True is op=Average, False op=Sum.
        name: On which ranks agree; None numbers the calls, which must then have one order.
        compression: What is sent in place of the tensor.
        op: Average, Sum, Min, Max or Product; None is Average.
        prescale_factor: Multiplies the tensor before.
        postscale_factor: Multiplies the result.
        process_set: The ranks that take part.

    Returns:
        New tensors with the results.

    Raises:
        ValueError: What this rank alone can see is wrong: an argument, the tensor's device, dtype
            or strides, or the name of an operation that is in flight.
        HorovodInternalError: Ranks disagree on the operation, a rank died or left.

    Example:
        >>> grouped_allreduce([torch.ones(1), torch.zeros(2)])
        [tensor([1.]), tensor([0., 0.])]
    """
    factors = (prescale_factor, postscale_factor)
    options = _forms.of_allreduce(average, name, op, factors, process_set)
    return _forms.ALLREDUCE.run(tensors, compression, options)


def grouped_allreduce_async(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start to reduce tensors into new ones, all together.

    Args:
        tensors: This rank's tensors, of one dtype; the same dtypes and shapes on all ranks.
        average: Deprecated: True is op=Average, False op=Sum.
        name: On which ranks agree; None numbers the calls, which must then have one order.
        op: Average, Sum, Min, Max or Product; None is Average.
        prescale_factor: Multiplies the tensor before.
        postscale_factor: Multiplies the result.
        process_set: The ranks that take part.

    Returns:
        A handle for poll() and synchronize().

    Raises:
        ValueError: What this rank alone can see is wrong: an argument, the tensor's device, dtype
            or strides, or the name of an operation that is in flight.
        HorovodInternalError: A rank died or left, or shutdown() was called.

    Example:
        >>> synchronize(grouped_allreduce_async([torch.ones(1)]))
        [tensor([1.])]
    """
    factors = (prescale_factor, postscale_factor)
    options = _forms.of_allreduce(average, name, op, factors, process_set)
    return _forms.ALLREDUCE.start(tensors, options, is_list=True)


def grouped_allreduce_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """Reduce tensors over the ranks, all together, in place.

    Args:
        tensors: This rank's tensors, of one dtype; the same dtypes and shapes on all ranks.
        average: Deprecated: True is op=Average, False op=Sum.
        name: On which ranks agree; None numbers the calls, which must then have one order.
        op: Average, Sum, Min, Max or Product; None is Average.
        prescale_factor: Multiplies the tensor before.
        postscale_factor: Multiplies the result.
        process_set: The ranks that take part.

    Returns:
        The tensors.

    Raises:
        ValueError: What this rank alone can see is wrong: an argument, the tensor's device, dtype
            or strides, or the name of an operation that is in flight.
        HorovodInternalError: Ranks disagree on the operation, a rank died or left.

    Example:
        >>> grouped_allreduce_([torch.ones(1)])
        [tensor([1.])]
    """
    factors = (prescale_factor, postscale_factor)
    options = _forms.of_allreduce(average, name, op, factors, process_set)
    places = list(tensors)
    synchronize(_forms.start_in_place(places, options, is_list=True))
    return places


def grouped_allreduce_async_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start to reduce tensors, all together, in place.

    Args:
        tensors: This rank's tensors, of one dtype; the same dtypes and shapes on all ranks.
        average: Deprecated: True is op=Average, False op=Sum.
        name: On which ranks agree; None numbers the calls, which must then have one order.
        op: Average, Sum, Min, Max or Product; None is Average.
        prescale_factor: Multiplies the tensor before.
        postscale_factor: Multiplies the result.
        process_set: The ranks that take part.

    Returns:
        A handle for poll() and synchronize().

    Raises:
        ValueError: What this rank alone can see is wrong: an argument, the tensor's device, dtype
            or strides, or the name of an operation that is in flight.
        HorovodInternalError: A rank died or left, or shutdown() was called.

    Example:
        >>> synchronize(grouped_allreduce_async_([torch.ones(1)]))
        [tensor([1.])]
    """
    factors = (prescale_factor, postscale_factor)
    options = _forms.of_allreduce(average, name, op, factors, process_set)
    return _forms.start_in_place(list(tensors), options, is_list=True)


def sparse_allreduce_async(
    tensor: torch.Tensor,
    name: str,
    op: int,
    process_set: ProcessSet = global_process_set,
) -> Callable[[], torch.Tensor]:
    """Start to sum a sparse tensor over the ranks, by two allgathers.

    Args:
        tensor: A sparse tensor in COO form; the same shape on all ranks.
        name: On which ranks agree.
        op: Sum or Average.
        process_set: The ranks that take part.

    Returns:
        A function that waits, and returns the sparse result.

    Raises:
        ValueError: As allreduce(), or another op.
        HorovodInternalError: A rank died or left, or shutdown() was called.

    Example:
        >>> result = sparse_allreduce_async(torch.eye(2).to_sparse(), "eye", Sum)
        >>> result().to_dense()
        tensor([[1., 0.],
                [0., 1.]])
    """
    if op not in (Average, Sum):
        raise ValueError(f"op={op!r}: sparse tensors are summed or averaged only")
    rows = tensor._indices().t().contiguous()
    of_rows = _calls.allgather([rows], f"{name}.indices", process_set)
    of_values = _calls.allgather([tensor._values().contiguous()], f"{name}.values", process_set)
    size = process_set.size()

    def result() -> torch.Tensor:
        values, indices = synchronize(of_values), synchronize(of_rows)
        if op == Average:
            values = values / size
        return torch.sparse_coo_tensor(indices.t(), values, tensor.shape, check_invariants=False)

    return result
