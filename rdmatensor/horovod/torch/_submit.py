"""Operations of torch tensors: what this rank can check alone, and the handles."""

from __future__ import annotations

import functools
import itertools
import warnings
from collections.abc import Sequence
from typing import Any

import torch

from rdmatensor.horovod import _lane, _runtime
from rdmatensor.horovod._entry import (
    ADASUM,
    AVERAGE,
    OP_NAMES,
    SUM,
    Entry,
    Kind,
    Signature,
    dtype_name,
    lane_key_of,
)
from rdmatensor.horovod.process_sets import ProcessSet

_SUPPORTED = frozenset(
    getattr(torch, name)
    for name in (
        *("uint8", "int8", "int16", "int32", "int64", "bool"),
        *("float16", "bfloat16", "float32", "float64"),
    )
)
_handles: dict[int, Entry] = {}
_numbers = itertools.count(1)
_singles: Any = _lane.singles  # a key with None finds nothing


def submit(entry: Entry) -> int:
    """Submit an operation; return its handle."""
    _runtime.controller().submit(entry)
    handle = next(_numbers)
    _handles[handle] = entry
    return handle


def pop(handle: object) -> Entry | None:
    """Forget a handle, and return its operation."""
    return _handles.pop(handle, None) if isinstance(handle, int) else None


def entry_of(handle: int) -> Entry | None:
    """Return a handle's operation."""
    return _handles.get(handle)


def forget_all() -> None:
    """Forget the handles of an earlier init()."""
    _handles.clear()


def set_id_of(process_set: ProcessSet) -> int:
    """Return the number of a set that this rank is in; ValueError otherwise."""
    found = process_set.process_set_id
    if found == 0:
        return 0
    ranks = _runtime.controller().ranks.get(-1 if found is None else found)
    if found is None or ranks is None:
        raise ValueError(
            f"{process_set} is not registered: give it to hvd.init() or hvd.add_process_set()"
        )
    if _runtime.controller().rank not in ranks:
        raise ValueError(f"rank {_runtime.controller().rank} is not in the process set {ranks}")
    return found


def check(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor if it can be sent; ValueError otherwise."""
    if tensor.device.type != "cpu":
        raise ValueError(
            f"the tensor is on {tensor.device}: only tensors of the CPU are supported; call "
            ".cpu(), or use torch.distributed with NCCL for GPUs"
        )
    if tensor.layout != torch.strided or tensor.dtype not in _SUPPORTED:
        raise ValueError(f"Tensor type {tensor.type()} is not supported")
    if not tensor.is_contiguous():
        raise ValueError("the tensor must be contiguous: call .contiguous()")
    return tensor.detach() if tensor.requires_grad else tensor


def op_of(op: int | None, average: bool | None) -> int:
    """Return the op of the two arguments, of which `average` is the older."""
    if average is not None:
        if op is not None:
            raise ValueError("op supersedes average: give only one of them")
        warnings.warn(
            "Parameter `average` has been replaced with `op`", DeprecationWarning, stacklevel=4
        )
        return AVERAGE if average else SUM
    if op is None:
        return AVERAGE
    return check_op(op)


def check_op(op: int) -> int:
    """Return the op if there is such a one."""
    if op == ADASUM:
        raise NotImplementedError(
            "Adasum is not implemented: use op=hvd.Average, with a learning rate for the larger "
            "batch"
        )
    if op not in range(len(OP_NAMES)):
        raise ValueError(f"op={op!r}: expected hvd.Average, Sum, Min, Max or Product")
    return op


@functools.lru_cache(maxsize=4096)
def reduction(
    dtypes: tuple[torch.dtype, ...],
    shapes: tuple[torch.Size, ...],
    op: int,
    prescale: float,
    postscale: float,
) -> tuple[Signature, tuple[object, ...]]:
    """Return the signature of a reduction, and its lane key."""
    signature: Signature = {
        **_tensors(dtypes, shapes),
        "op": op,
        "prescale": prescale,
        "postscale": postscale,
    }
    return signature, lane_key_of(signature)


def _tensors(dtypes: Sequence[torch.dtype], shapes: Sequence[torch.Size]) -> Signature:
    return {
        "dtypes": [dtype_name(dtype) for dtype in dtypes],
        "shapes": [list(shape) for shape in shapes],
    }


def reduction_entry(
    kind: Kind,
    tensors: Sequence[torch.Tensor],
    outputs: list[torch.Tensor],
    name: str | None,
    op: int,
    factors: tuple[float, float],
    process_set: ProcessSet,
    *,
    is_list: bool,
) -> Entry:
    """Return an allreduce or a reducescatter that is not submitted."""
    set_id = set_id_of(process_set)
    inputs = [check(tensor) for tensor in tensors]
    if len({tensor.dtype for tensor in inputs}) > 1:
        raise ValueError("the tensors of a group must have one dtype")
    signature, lane_key = reduction(
        tuple([tensor.dtype for tensor in inputs]),
        tuple([tensor.shape for tensor in inputs]),
        op,
        *factors,
    )
    return Entry(
        set_id,
        _runtime.full_name(set_id, kind, name),
        kind,
        inputs,
        outputs,
        signature,
        lane_key if kind == "allreduce" else None,
        is_list,
    )


def reduce_next(
    tensor: torch.Tensor,
    name: str | None,
    op: int | None,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
    *,
    is_in_place: bool,
) -> torch.Tensor | None:
    """Reduce a tensor at once if it is the next of a fast lane; None: it is to be submitted."""
    single = _singles.get((process_set.process_set_id, name))
    if (
        single is None
        or tensor.dtype is not single.dtype
        or tensor.shape != single.shape
        or (AVERAGE if op is None else op) != single.op
        or prescale != single.prescale
        or postscale != single.postscale
        or tensor.requires_grad
        or tensor.layout is not torch.strided
        or not tensor.is_cpu
        or not tensor.is_contiguous()
    ):
        return None
    output = tensor if is_in_place else tensor.clone()
    return output if single.reduce_next(single, output) else None


def move(
    kind: Kind,
    tensors: Sequence[torch.Tensor],
    outputs: list[torch.Tensor],
    name: str | None,
    process_set: ProcessSet,
    more: Signature | None = None,
    *,
    is_list: bool = False,
    has_splits: bool = False,
) -> int:
    """Submit an operation that does not compute."""
    set_id = set_id_of(process_set)
    inputs = [check(tensor) for tensor in tensors]
    signature = _tensors([one.dtype for one in inputs], [one.shape for one in inputs])
    return submit(
        Entry(
            set_id,
            _runtime.full_name(set_id, kind, name),
            kind,
            inputs,
            outputs,
            {**signature, **(more or {})},
            is_list=is_list,
            has_splits=has_splits,
        )
    )
