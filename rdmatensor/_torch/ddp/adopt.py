"""DistributedDataParallel's buckets in the arena.

With gradient_as_bucket_view=True the gradients are views of the buckets, so that an all-reduce
works on the memory that autograd wrote. torch allocates the buckets in two places, which are
wrapped here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch.nn.parallel import DistributedDataParallel

from rdmatensor._torch.adoption import adopting, context_of_groups, is_our_group, note
from rdmatensor._torch.ddp import gradients, report
from rdmatensor.context import Context


def wrap(on_module: Callable[[DistributedDataParallel], None]) -> None:
    """Wrap the places of allocation, once in a process.

    on_module: called with each module that sends over this backend, when its buckets are made.
    """
    _wrap("_ddp_init_helper", _makes_first_buckets, on_module)
    _wrap("_pre_forward", _may_rebuild_buckets, on_module)
    _wrap_post_forward()


def _wrap(
    name: str,
    is_wanted: Callable[[DistributedDataParallel], bool],
    on_module: Callable[[DistributedDataParallel], None],
) -> None:
    before = getattr(DistributedDataParallel, name, None)
    if before is None:
        return

    @functools.wraps(before)
    def wrapped(self: DistributedDataParallel, *args: object, **kwargs: object) -> object:
        context = context_of_groups()
        if is_wanted is _makes_first_buckets and _is_ours(self):
            on_module(self)
            report.watch(self)
        if is_wanted is _may_rebuild_buckets:
            report.note_forward(self)
            gradients.before_forward(self)
        if not _is_on(context) or context.is_closed or not is_wanted(self):
            return before(self, *args, **kwargs)
        with adopting(context) as allocations:
            result = before(self, *args, **kwargs)
        if allocations.missed > 0:
            report.note_no_room(self)
        note(f"buckets of {type(self.module).__name__}", allocations)
        return result

    setattr(DistributedDataParallel, name, wrapped)


def _wrap_post_forward() -> None:
    before = getattr(DistributedDataParallel, "_post_forward", None)
    if before is None:
        return

    @functools.wraps(before)
    def wrapped(self: DistributedDataParallel, output: object) -> object:
        context = context_of_groups()
        output = before(self, output)
        if _is_on(context) and torch.is_grad_enabled() and report.is_watched(self):
            gradients.after_forward(self, output, context)
        return output

    DistributedDataParallel._post_forward = wrapped  # type: ignore[method-assign]


def _is_on(context: Context) -> bool:
    """Whether the user has left it on; not while torch.compile traces."""
    return not torch.compiler.is_compiling() and context.settings.adopt


def _makes_first_buckets(module: DistributedDataParallel) -> bool:
    return _is_ours(module)


def _may_rebuild_buckets(module: DistributedDataParallel) -> bool:
    """Whether the buckets may be rebuilt, permanently, before this forward pass."""
    is_settled = bool(getattr(module, "_has_rebuilt_buckets", False))
    is_rebuilding = module.static_graph or not module.find_unused_parameters
    return is_rebuilding and not is_settled and _is_ours(module)


def _is_ours(module: DistributedDataParallel) -> bool:
    """Whether this backend sends the module's CPU tensors."""
    return module.device_type == "cpu" and is_our_group(module.process_group)
