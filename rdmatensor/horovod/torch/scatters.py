"""Reducescatters, and their grouped and asynchronous forms."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from rdmatensor.horovod.basics import Average
from rdmatensor.horovod.process_sets import ProcessSet, global_process_set
from rdmatensor.horovod.torch import _forms
from rdmatensor.horovod.torch._forms import CompressorLike
from rdmatensor.horovod.torch.compression import Compression


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
    factors = (prescale_factor, postscale_factor)
    options = _forms.of_reducescatter(name, op, factors, process_set)
    return _forms.REDUCESCATTER.run([tensor], compression, options)[0]


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
    factors = (prescale_factor, postscale_factor)
    options = _forms.of_reducescatter(name, op, factors, process_set)
    return _forms.REDUCESCATTER.start([tensor], options, is_list=False)


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
    factors = (prescale_factor, postscale_factor)
    options = _forms.of_reducescatter(name, op, factors, process_set)
    return _forms.REDUCESCATTER.run(tensors, compression, options)


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
    factors = (prescale_factor, postscale_factor)
    options = _forms.of_reducescatter(name, op, factors, process_set)
    return _forms.REDUCESCATTER.start(tensors, options, is_list=True)
