"""Zero copy without asking: what torch allocates once and receives into is born in the arena.

DistributedDataParallel's buckets: with gradient_as_bucket_view=True the gradients are views of
them, so that an all-reduce works where autograd wrote. torch makes them in two places, which are
wrapped here. A pipeline stage's buffers for activations and their gradients: torch makes them
before the first micro-batch, in three places, and receives into them step after step, so that
neighbours may write there.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.util
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, TypedDict

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from rdmatensor import _record
from rdmatensor._autoload import BACKEND_NAME
from rdmatensor.context import Context
from rdmatensor.torch import Births, registered_memory

_STAGES = "torch.distributed.pipelining.stage"
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
    """Wrap the places, once; the settings of `context` say whether anything is adopted."""
    if getattr(DistributedDataParallel, "_rdmatensor_context", None) is None:
        _wrap("_ddp_init_helper", _makes_first_buckets)
        _wrap("_pre_forward", _may_rebuild_buckets)
        if _STAGES in sys.modules:
            _wrap_stages(sys.modules[_STAGES])
        else:  # the import takes seconds, which only programs with pipelines shall pay
            sys.meta_path.insert(0, _WhenStagesCome())
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
    return module.device_type == "cpu" and _is_our_group(module.process_group)


def _is_our_group(group: Any) -> bool:  # noqa: ANN401 - torch's class
    backend = group._get_backend(torch.device("cpu"))
    backend = getattr(backend, "wrapped_pg", backend)  # under TORCH_DISTRIBUTED_DEBUG=DETAIL
    return bool(backend.name() == BACKEND_NAME)


class _WhenStagesCome(importlib.abc.MetaPathFinder):
    """Wraps the stages when a program imports them after it has made its group."""

    def find_spec(self, fullname: str, *_: object) -> ModuleSpec | None:
        """Leave every module to the other finders, and act once that one was executed."""
        if fullname != _STAGES:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_and_wrap(module: ModuleType) -> None:
            execute(module)
            _wrap_stages(module)

        spec.loader.exec_module = execute_and_wrap  # type: ignore[method-assign]
        return spec


def _wrap_stages(module: Any) -> None:  # noqa: ANN401 - torch's module
    _wrap_stage(module.PipelineStage, "_setup_forward_recv_info")
    _wrap_stage(module._PipelineStage, "_create_act_recv_info")
    _wrap_stage(module._PipelineStageBase, "_setup_backward_recv_info")


def _wrap_stage(kind: type, name: str) -> None:
    before = getattr(kind, name)

    @functools.wraps(before)
    def wrapped(self: Any, *args: object, **kwargs: object) -> object:  # noqa: ANN401
        context: Context = DistributedDataParallel._rdmatensor_context  # type: ignore[attr-defined]
        group = dist.group.WORLD if self.group is None else self.group
        is_wanted = context.settings.adopt and not context.is_closed and self.device.type == "cpu"
        if not is_wanted or not _is_our_group(group):
            return before(self, *args, **kwargs)
        with registered_memory(context=context) as births:
            result = before(self, *args, **kwargs)
        _note(f"buffers of stage {self.stage_index}", births)
        return result

    setattr(kind, name, wrapped)


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
