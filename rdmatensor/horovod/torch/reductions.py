"""Reductions: allreduce, reducescatter, and their grouped, asynchronous and in-place forms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from rdmatensor.horovod.basics import Average, Sum
from rdmatensor.horovod.process_sets import ProcessSet, global_process_set
from rdmatensor.horovod.torch import _calls, _gradients, _submit
from rdmatensor.horovod.torch.compression import Compression, Compressor
from rdmatensor.horovod.torch.handles import synchronize

CompressorLike = type[Compressor] | Compressor


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
    chosen = _submit.op_of(op, average)
    factors = (prescale_factor, postscale_factor)
    given, ctx = compression.compress(tensor)
    if _gradients.is_needed(given):
        (reduced,) = _gradients.applied(
            _gradients.Allreduce, name, chosen, factors, process_set, given
        )
    else:
        reduced = synchronize(_calls.allreduce([given], None, name, chosen, factors, process_set))
    return compression.decompress(reduced, ctx)


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
    chosen = _submit.op_of(op, average)
    return _calls.allreduce(
        [tensor], None, name, chosen, (prescale_factor, postscale_factor), process_set
    )


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
    chosen = _submit.op_of(op, average)
    factors = (prescale_factor, postscale_factor)
    synchronize(_calls.allreduce([tensor], [tensor], name, chosen, factors, process_set))
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
    chosen = _submit.op_of(op, average)
    factors = (prescale_factor, postscale_factor)
    return _calls.allreduce([tensor], [tensor], name, chosen, factors, process_set)


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
    chosen = _submit.op_of(op, average)
    factors = (prescale_factor, postscale_factor)
    given, contexts = _compressed(compression, tensors)
    if _gradients.is_needed(*given):
        reduced = _gradients.applied(
            _gradients.Allreduce, name, chosen, factors, process_set, *given
        )
    else:
        reduced = synchronize(
            _calls.allreduce(given, None, name, chosen, factors, process_set, is_list=True)
        )
    return _decompressed(compression, reduced, contexts)


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
    chosen = _submit.op_of(op, average)
    factors = (prescale_factor, postscale_factor)
    return _calls.allreduce(tensors, None, name, chosen, factors, process_set, is_list=True)


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
    chosen = _submit.op_of(op, average)
    factors = (prescale_factor, postscale_factor)
    places = list(tensors)
    synchronize(_calls.allreduce(places, places, name, chosen, factors, process_set, is_list=True))
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
    chosen = _submit.op_of(op, average)
    factors = (prescale_factor, postscale_factor)
    places = list(tensors)
    return _calls.allreduce(places, places, name, chosen, factors, process_set, is_list=True)


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


def reducescatter(
    tensor: torch.Tensor,
    name: str | None = None,
    compression: CompressorLike = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> torch.Tensor:
    """Reduce a tensor over the ranks, and keep this rank's rows; differentiable.

    Args:
        tensor: This rank's tensor; the same dtype and shape on all ranks.
        name: On which ranks agree; None numbers the calls, which must then have one order.
        compression: What is sent in place of the tensor.
        op: Average, Sum, Min, Max or Product; None is Average.
        process_set: The ranks that take part.
        prescale_factor: Multiplies the tensor before.
        postscale_factor: Multiplies the result.

    Returns:
        This rank's rows of the result. Rows are divided as evenly as possible; the first ranks
        have one more.

    Raises:
        ValueError: What this rank alone can see is wrong: an argument, the tensor's device, dtype
            or strides, or the name of an operation that is in flight.
        HorovodInternalError: Ranks disagree on the operation, a rank died or left.

    Example:
        >>> reducescatter(torch.ones(2))
        tensor([1., 1.])
    """
    chosen = _submit.check_op(op)
    factors = (prescale_factor, postscale_factor)
    given, ctx = compression.compress(tensor)
    if _gradients.is_needed(given):
        (kept,) = _gradients.applied(
            _gradients.Reducescatter, name, chosen, factors, process_set, given
        )
    else:
        kept = synchronize(_calls.reducescatter([given], name, chosen, factors, process_set))
    return compression.decompress(kept, ctx)


def reducescatter_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Start to reduce a tensor, of which this rank keeps its rows.

    Args:
        tensor: This rank's tensor; the same dtype and shape on all ranks.
        name: On which ranks agree; None numbers the calls, which must then have one order.
        op: Average, Sum, Min, Max or Product; None is Average.
        process_set: The ranks that take part.
        prescale_factor: Multiplies the tensor before.
        postscale_factor: Multiplies the result.

    Returns:
        A handle for poll() and synchronize().

    Raises:
        ValueError: What this rank alone can see is wrong: an argument, the tensor's device, dtype
            or strides, or the name of an operation that is in flight.
        HorovodInternalError: A rank died or left, or shutdown() was called.

    Example:
        >>> synchronize(reducescatter_async(torch.ones(2)))
        tensor([1., 1.])
    """
    return _calls.reducescatter(
        [tensor], name, _submit.check_op(op), (prescale_factor, postscale_factor), process_set
    )


def grouped_reducescatter(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    compression: CompressorLike = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[torch.Tensor]:
    """Reduce tensors over the ranks, and keep this rank's rows; differentiable.

    Args:
        tensors: This rank's tensors, of one dtype; the same dtypes and shapes on all ranks.
        name: On which ranks agree; None numbers the calls, which must then have one order.
        compression: What is sent in place of the tensor.
        op: Average, Sum, Min, Max or Product; None is Average.
        process_set: The ranks that take part.
        prescale_factor: Multiplies the tensor before.
        postscale_factor: Multiplies the result.

    Returns:
        This rank's rows of each result, divided as by reducescatter().

    Raises:
        ValueError: What this rank alone can see is wrong: an argument, the tensor's device, dtype
            or strides, or the name of an operation that is in flight.
        HorovodInternalError: Ranks disagree on the operation, a rank died or left.

    Example:
        >>> grouped_reducescatter([torch.ones(2)])
        [tensor([1., 1.])]
    """
    chosen = _submit.check_op(op)
    factors = (prescale_factor, postscale_factor)
    given, contexts = _compressed(compression, tensors)
    if _gradients.is_needed(*given):
        kept = _gradients.applied(
            _gradients.Reducescatter, name, chosen, factors, process_set, *given
        )
    else:
        kept = synchronize(
            _calls.reducescatter(given, name, chosen, factors, process_set, is_list=True)
        )
    return _decompressed(compression, kept, contexts)


def grouped_reducescatter_async(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Start to reduce tensors, of which this rank keeps its rows.

    Args:
        tensors: This rank's tensors, of one dtype; the same dtypes and shapes on all ranks.
        name: On which ranks agree; None numbers the calls, which must then have one order.
        op: Average, Sum, Min, Max or Product; None is Average.
        process_set: The ranks that take part.
        prescale_factor: Multiplies the tensor before.
        postscale_factor: Multiplies the result.

    Returns:
        A handle for poll() and synchronize().

    Raises:
        ValueError: What this rank alone can see is wrong: an argument, the tensor's device, dtype
            or strides, or the name of an operation that is in flight.
        HorovodInternalError: A rank died or left, or shutdown() was called.

    Example:
        >>> synchronize(grouped_reducescatter_async([torch.ones(2)]))
        [tensor([1., 1.])]
    """
    chosen = _submit.check_op(op)
    factors = (prescale_factor, postscale_factor)
    return _calls.reducescatter(tensors, name, chosen, factors, process_set, is_list=True)


def _compressed(
    compression: CompressorLike, tensors: Sequence[torch.Tensor]
) -> tuple[list[torch.Tensor], list[Any]]:
    pairs = [compression.compress(tensor) for tensor in tensors]
    return [given for given, _ in pairs], [ctx for _, ctx in pairs]


def _decompressed(
    compression: CompressorLike, results: Sequence[torch.Tensor], contexts: list[Any]
) -> list[torch.Tensor]:
    return [
        compression.decompress(result, ctx) for result, ctx in zip(results, contexts, strict=True)
    ]
