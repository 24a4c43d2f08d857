"""Zero copy without asking: DistributedDataParallel's buckets are born in the arena.

With gradient_as_bucket_view=True the gradients are views of those buckets, so that an all-reduce
works where autograd wrote. torch makes the buckets in two places, which are wrapped here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TypedDict

import torch
from torch.nn.parallel import DistributedDataParallel

from rdmatensor import _record
from rdmatensor._autoload import BACKEND_NAME
from rdmatensor.context import Context
from rdmatensor.torch import Births, registered_memory

_KEPT = 256  # lines of describe(); a program that makes modules for ever must not grow


class Adoption(TypedDict):
    """What was made in the arena at one moment, and what was not, with the reason."""

    what: str
    tensors: int
    bytes: int
    missed: int
    missed_bytes: int
    reason: str


_adoptions: list[Adoption] = []


def adoptions() -> list[Adoption]:
    """Return what was adopted in this process so far, the oldest first."""
    return list(_adoptions)


def install(context: Context) -> None:
    """Wrap the two places, once; the settings of `context` say whether anything is adopted."""
    if getattr(DistributedDataParallel, "_rdmatensor_context", None) is None:
        _wrap("_ddp_init_helper", _makes_first_buckets)
        _wrap("_pre_forward", _may_rebuild_buckets)
    DistributedDataParallel._rdmatensor_context = context  # type: ignore[attr-defined]


def _wrap(name: str, is_wanted: Callable[[DistributedDataParallel], bool]) -> None:
    before = getattr(DistributedDataParallel, name)

    @functools.wraps(before)
    def wrapped(self: DistributedDataParallel, *args: object, **kwargs: object) -> object:
        context: Context = DistributedDataParallel._rdmatensor_context  # type: ignore[attr-defined]
        if is_wanted is _makes_first_buckets and is_ours(self):
            _record.know(self)
        is_off = torch.compiler.is_compiling() or not context.settings.adopt or context.is_closed
        if is_off or not is_wanted(self):
            return before(self, *args, **kwargs)
        with registered_memory(context=context) as births:
            result = before(self, *args, **kwargs)
        _note(f"buckets of {type(self.module).__name__}", births)
        return result

    setattr(DistributedDataParallel, name, wrapped)


def _makes_first_buckets(module: DistributedDataParallel) -> bool:
    return is_ours(module)


def _may_rebuild_buckets(module: DistributedDataParallel) -> bool:
    """Whether this forward pass is one before which the buckets may be made anew, for good."""
    is_settled = bool(getattr(module, "_has_rebuilt_buckets", False))
    is_rebuilding = module.static_graph or not module.find_unused_parameters
    return is_rebuilding and not is_settled and is_ours(module)


def is_ours(module: DistributedDataParallel) -> bool:
    """Whether the module's CPU tensors travel over this backend."""
    if module.device_type != "cpu":
        return False
    backend = module.process_group._get_backend(torch.device("cpu"))
    backend = getattr(backend, "wrapped_pg", backend)  # under TORCH_DISTRIBUTED_DEBUG=DETAIL
    return bool(backend.name() == BACKEND_NAME)


def _note(what: str, births: Births) -> None:
    if births.count == births.missed == 0:
        return
    reason = "" if births.missed == 0 else "the arena has no room: raise RDMATENSOR_ARENA_MAX_MB"
    if len(_adoptions) == _KEPT:
        del _adoptions[0]
    _adoptions.append(
        Adoption(
            what=what,
            tensors=births.count,
            bytes=births.size_bytes,
            missed=births.missed,
            missed_bytes=births.missed_bytes,
            reason=reason,
        )
    )
