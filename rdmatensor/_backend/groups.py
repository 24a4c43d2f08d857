"""This backend's part of torch's groups: found, checked, and described by types."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypedDict, cast

import torch
import torch.distributed as dist

from rdmatensor._backend import BACKEND_NAME

if TYPE_CHECKING:
    from torch._C import _distributed_c10d as torch_c10d
    from torch._C._distributed_c10d import ProcessGroup

    from rdmatensor.state import BindingState

_LONGEST = timedelta(days=365)  # a longer timeout means none, and would overflow in C++


class LastOperation(TypedDict):
    """One operation of a group, as this rank saw it."""

    number: int  # among all operations of this rank in the group, from 1
    sequence: int | None  # of its last collective: "#3" in errors on all ranks; None: it has none
    collectives: int  # number of collectives: 0 for a message, several for a list of large tensors
    operation: str  # "rdmatensor:recv from rank 3, tag 0"
    bytes: int  # of the inputs
    dtype: torch.dtype
    state: Literal["in flight", "done", "failed"]
    seconds: float  # that it took, or has taken so far


class BackendPart(Protocol):
    """The part of rdmatensor._c10d.Backend that is used here and not declared by torch."""

    number: int

    @property
    def options(self) -> torch_c10d.Backend.Options:
        """Return the group's options, with its present timeout."""

    def name(self) -> str:
        """Return the backend's name."""

    def _set_default_timeout(self, timeout: timedelta) -> None: ...
    def _get_sequence_number_for_group(self) -> int: ...
    def _counters(self) -> dict[str, int]: ...
    def _collectives(self) -> str: ...
    def _bindings(self) -> list[BindingState]: ...
    def _average_bucket(self, bucket: torch.Tensor, label: int) -> torch_c10d.Work: ...
    def _average_init(self, tensor: torch.Tensor) -> object: ...  # _c10d.Persistent

    def _lossy_all_reduce(
        self,
        tensor: torch.Tensor,
        op: torch_c10d.ReduceOp,
        wire: int,
        block: int,
        residual: torch.Tensor | None,
        is_async: bool,
        label: int,
    ) -> torch_c10d.Work | None: ...
    def _lossy_reduce_scatter(
        self,
        output: torch.Tensor,
        tensor: torch.Tensor,
        op: torch_c10d.ReduceOp,
        wire: int,
        block: int,
        residual: torch.Tensor | None,
        is_async: bool,
    ) -> torch_c10d.Work | None: ...
    def _lossy_all_gather(
        self,
        output: torch.Tensor,
        tensor: torch.Tensor,
        wire: int,
        block: int,
        residual: torch.Tensor | None,
        is_async: bool,
    ) -> torch_c10d.Work | None: ...

    def last_operations(self) -> list[LastOperation]:
        """Return the last operations of this rank, oldest first."""

    def recorded(self) -> dict[str, Any]:
        """Return the recorder's report, with the cycle that it found."""

    def rank(self) -> int:
        """Return this process's rank in the group."""

    def everyone(self, what: str, mine: str) -> list[str]:
        """Return every rank's value, in rank order; waits for all."""

    def break_group(self, reason: str) -> None:
        """End the group on all ranks."""

    def get_error(self) -> torch_c10d.ErrorType:
        """Return how the group ended, or success."""


def bounded(timeout: object) -> timedelta:
    """Return the timeout, or the longest that C++ accepts; TypeError for any other type."""
    if not isinstance(timeout, timedelta):
        raise TypeError(f"timeout={timeout!r} is a {type(timeout).__name__}, not a timedelta")
    return min(timeout, _LONGEST)


def group_of(group: ProcessGroup | None) -> ProcessGroup:
    """Return the group, or the default one for None; ValueError if there is none to use."""
    chosen = dist.group.WORLD if group is None else group
    if chosen is None:
        raise ValueError("init_process_group() has not been called")
    if not isinstance(chosen, dist.ProcessGroup):
        raise ValueError("this process is not a member of the group")
    return chosen


def backend_of(group: ProcessGroup) -> BackendPart:
    """Return this backend's part of a group, without the wrapper of TORCH_DISTRIBUTED_DEBUG."""
    part = group._get_backend(torch.device("cpu"))
    backend = cast("BackendPart", getattr(part, "wrapped_pg", part))
    if backend.name() != BACKEND_NAME:
        raise ValueError(f"the group's CPU tensors are {backend.name()}'s, not {BACKEND_NAME}'s")
    return backend
