"""Allocations of torch that go to the arena without a request, and the list of them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from rdmatensor._backend import BACKEND_NAME
from rdmatensor.context import Context
from rdmatensor.state import AdoptionState, GradientsState
from rdmatensor.torch import ArenaAllocations, has_allocator, registered_memory

NO_ROOM = "the arena has no room: raise RDMATENSOR_ARENA_MAX_MIB"
_KEPT = 256  # lines of describe(); bounded, as a program may make modules forever


@dataclass(slots=True)
class _Process:
    """context: of the groups, whose arena is used; None until one is made with hooks."""

    context: Context | None = None


process = _Process()
_adoptions: list[AdoptionState] = []
gradient_sources: list[Callable[[], Iterable[GradientsState]]] = []  # other than modules


def adoptions() -> list[AdoptionState]:
    """Return what was adopted so far, oldest first."""
    return list(_adoptions)


def context_of_groups() -> Context:
    """Return the context, for the wrappers, which are installed after it is set."""
    assert process.context is not None
    return process.context


@contextlib.contextmanager
def adopting(context: Context) -> Iterator[ArenaAllocations]:
    """As registered_memory(), but without effect if another library has torch's allocator."""
    if not has_allocator():
        yield ArenaAllocations()  # describe()["not_adopted"] has the reason
        return
    with registered_memory(context=context) as allocations:
        yield allocations


def is_our_group(group: Any) -> bool:  # noqa: ANN401 - torch's class
    """Whether this backend sends the group's CPU tensors."""
    backend = group._get_backend(torch.device("cpu"))
    backend = getattr(backend, "wrapped_pg", backend)  # under TORCH_DISTRIBUTED_DEBUG=DETAIL
    return bool(backend.name() == BACKEND_NAME)


def note(what: str, allocations: ArenaAllocations) -> None:
    """Add an allocation's counts to the list, unless they are all zero."""
    if allocations.count == allocations.missed == 0:
        return
    reason = "" if allocations.missed == 0 else NO_ROOM
    if len(_adoptions) == _KEPT:
        del _adoptions[0]
    _adoptions.append(
        AdoptionState(
            what=what,
            tensors=allocations.count,
            bytes=allocations.size_bytes,
            missed=allocations.missed,
            missed_bytes=allocations.missed_bytes,
            reason=reason,
        )
    )
