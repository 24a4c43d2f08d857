"""Handles of operations in flight, and the calls that have no tensor."""

from __future__ import annotations

from typing import Any

import torch

from rdmatensor.horovod import _runtime
from rdmatensor.horovod._entry import Entry
from rdmatensor.horovod.process_sets import ProcessSet, global_process_set
from rdmatensor.horovod.torch import _submit


def poll(handle: int) -> bool:
    """Return whether an operation has ended: then synchronize() does not wait.

    Args:
        handle: Of a call whose name ends in _async or _async_.

    Returns:
        True if it has ended, well or not.

    Raises:
        ValueError: The handle is unknown, or was waited for.

    Example:
        >>> handle = allreduce_async(torch.ones(2))
        >>> poll(handle) in (False, True)
        True
        >>> synchronize(handle)
        tensor([1., 1.])
    """
    entry = _submit.entry_of(handle)
    if entry is None:
        raise ValueError(f"handle {handle!r} is unknown, or was waited for")
    return _runtime.controller().poll(entry)


def synchronize(handle: int) -> Any:  # noqa: ANN401 - a tensor or several, as the call says
    """Wait for an operation.

    Args:
        handle: Of a call whose name ends in _async or _async_.

    Returns:
        Its result, a tensor or several; None if the handle is unknown or was waited for.

    Raises:
        HorovodInternalError: Ranks disagree on the operation, a rank died or left.

    Example:
        >>> synchronize(allreduce_async(torch.ones(2)))
        tensor([1., 1.])
    """
    entry = _submit.pop(handle)
    return None if entry is None else _runtime.controller().wait(entry)


def join(device: int = -1) -> int:  # noqa: ARG001 - Horovod's signature
    """Say that this rank has no more data; wait until all ranks have said so.

    Until then this rank takes part in the others' allreduces with zeros. An average still divides
    by the number of all ranks. Other operations of the others fail meanwhile.

    Args:
        device: Has no effect: zeros are on the CPU.

    Returns:
        The rank that joined last.

    Raises:
        HorovodInternalError: A rank died or left.

    Example:
        >>> join()
        0
    """
    found: int = _runtime.agree("join", "join", {})  # type: ignore[assignment]
    _runtime.count_join()
    return found


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Wait until all ranks of a process set have called this.

    Args:
        process_set: The ranks.

    Raises:
        ValueError: This rank is not in the set.
        HorovodInternalError: A rank died or left.

    Example:
        >>> barrier()
    """
    set_id = _submit.set_id_of(process_set)
    name = _runtime.full_name(set_id, "barrier", None)
    nothing: list[torch.Tensor] = [torch.empty(0)]
    entry = Entry(set_id, name, "barrier", [], nothing, {"dtypes": [], "shapes": []})
    _runtime.call(entry)
