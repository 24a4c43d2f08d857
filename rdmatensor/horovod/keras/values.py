"""Operations on values: numbers and arrays, as Horovod's API for Keras has them."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import torch

import rdmatensor.horovod.torch as hvd
from rdmatensor.horovod.torch.compression import Compression, Compressor

Value: TypeAlias = Any  # numpy's, of a shape that is not known


def _tensor(value: object) -> torch.Tensor:
    if isinstance(value, torch.Tensor):
        return value.detach().contiguous()
    return torch.from_numpy(np.array(value))  # a copy: operations may write into it


def _array(tensor: torch.Tensor) -> Value:
    array = tensor.numpy()
    return array[()] if array.ndim == 0 else array


def allreduce(
    value: object,
    name: str | None = None,
    average: bool | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: int | None = None,
    compression: type[Compressor] = Compression.none,
) -> Value:
    """Reduce a value over all ranks.

    Args:
        value: A number, an array or a tensor.
        name: By which ranks agree; None: the next number.
        average: Deprecated: op=Average or op=Sum.
        prescale_factor: Multiplies before the sum.
        postscale_factor: Multiplies after it.
        op: A reduction; None: Average.
        compression: What travels.

    Returns:
        An array, or a number of numpy's.

    Raises:
        ValueError: average and op are given.
        HorovodInternalError: Ranks disagree, or one died.

    Example:
        >>> float(allreduce(3.0, name="loss"))
        3.0
    """
    tensor = _tensor(value)
    reduced = hvd.allreduce(
        *(tensor, average, name, compression, op, prescale_factor, postscale_factor)
    )
    return _array(reduced)


def allgather(value: object, name: str | None = None) -> Value:
    """Join the values of all ranks along the first dimension.

    Args:
        value: A number, an array or a tensor.
        name: By which ranks agree; None: the next number.

    Returns:
        An array.

    Raises:
        HorovodInternalError: Ranks disagree, or one died.

    Example:
        >>> allgather([1, 2], name="ids")
        array([1, 2])
    """
    return _array(hvd.allgather(_tensor(value), name))


def broadcast(value: object, root_rank: int, name: str | None = None) -> Value:
    """Return the value of one rank on all ranks.

    Args:
        value: A number, an array or a tensor, of one shape on all ranks.
        root_rank: The rank whose value all get.
        name: By which ranks agree; None: the next number.

    Returns:
        An array, or a number of numpy's.

    Raises:
        HorovodInternalError: Ranks disagree, or one died.

    Example:
        >>> int(broadcast(7, 0, name="seed"))
        7
    """
    return _array(hvd.broadcast(_tensor(value), root_rank, name))


def reducescatter(value: object, name: str | None = None, op: int = hvd.Average) -> Value:
    """Reduce a value over all ranks, and return this rank's rows of the result.

    Args:
        value: An array or a tensor.
        name: By which ranks agree; None: the next number.
        op: Average or Sum.

    Returns:
        An array.

    Raises:
        HorovodInternalError: Ranks disagree, or one died.

    Example:
        >>> reducescatter([1.0, 2.0], name="rows", op=hvd.Sum)
        array([1., 2.])
    """
    return _array(hvd.reducescatter(_tensor(value), name, op=op))


def broadcast_global_variables(root_rank: int) -> None:
    """Raise NotImplementedError: Keras 3 has no global variables.

    Args:
        root_rank: Has no effect.

    Raises:
        NotImplementedError: Always; it names the callback that broadcasts a model's variables.

    Example:
        >>> broadcast_global_variables(0)
        Traceback (most recent call last):
        NotImplementedError: ...
    """
    del root_rank
    raise NotImplementedError(
        "broadcast_global_variables(): Keras 3 has no global variables; pass "
        "hvd.callbacks.BroadcastGlobalVariablesCallback(0) to fit()"
    )
