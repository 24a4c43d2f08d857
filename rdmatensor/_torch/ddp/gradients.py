"""DistributedDataParallel gradients that are allocated in their buckets, and why others are not.

The buckets are in the arena (adopt.py). With torch's default zero_grad(), autograd allocates each
gradient again in every step, elsewhere, and the division by the number of ranks copies it into its
bucket. Once the buckets are settled, each forward pass is reported to the extension, which serves
the allocations of the backward pass from the buckets: csrc/c10d/ddp/gradients.hpp.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any
from weakref import WeakKeyDictionary, finalize

import torch
from torch.nn.parallel import DistributedDataParallel

from rdmatensor._backend.extension import load_extension
from rdmatensor.context import Context
from rdmatensor.state import GradientsState

_UNUSED = (
    "find_unused_parameters=True: DistributedDataParallel writes zeros where a gradient does not "
    "come, which cannot be foreseen; static_graph=True has both"
)
_MIXED = "mixed_precision: the gradients have another type than the parameters"
_DELAYED = "delay_all_reduce_named_params: the gradients are not in buckets"
_BATCHED = "batched_grad_copy: gradients are moved when all of a bucket have come"
_COMPILED = "torch.compile's own reducer sends the gradients"
# Measured with hundreds of parameters: serving an allocation costs some 2 us more than it saves at
# 16 KiB, and no more than it saves at 32 and 64 KiB.
LEAST_BYTES = 32 * 1024
_MOST_PARTS = 256  # of an output, searched for tensors: of a larger one some are enough


class _Module:
    """The state of one module, which it does not keep alive; without a tracker where it is off."""

    def __init__(self, module: DistributedDataParallel) -> None:
        self.why_off = _why_off(module)
        self.placer: Any = None
        self.parameters: list[str] = []  # names, by the extension's index
        if not self.why_off:
            named = dict(_sent_parameters(module))
            self.parameters = list(named)
            self.placer = load_extension().GradientPlacer(
                list(named.values()), module.reducer, LEAST_BYTES
            )
            finalize(module, self.placer.stop).atexit = False  # after a pass that raised


_modules: WeakKeyDictionary[DistributedDataParallel, _Module] = WeakKeyDictionary()


def before_forward(module: DistributedDataParallel) -> None:
    """Forget a module whose buckets are rebuilt."""
    if module in _modules and not getattr(module, "_has_rebuilt_buckets", False):
        known = _modules.pop(module)
        if known.placer is not None:
            known.placer.stop()


def after_forward(module: DistributedDataParallel, output: object, context: Context) -> None:
    """Start with the backward pass of this output, if the buckets stay where they are from now on.

    This backend sends the module's tensors, and the module is adopted.
    """
    known = _modules.get(module)
    if known is None:
        is_anew = not module.gradient_as_bucket_view or bool(module.find_unused_parameters)
        is_settled = bool(getattr(module, "_has_rebuilt_buckets", False))
        if not is_settled and not (is_anew and not module.static_graph):
            return
        known = _modules[module] = _Module(module)
    if known.placer is None:
        return
    address = 0 if context.is_closed else context._c_addr
    known.placer.watch(_tensors_in(output), address, module.require_backward_grad_sync)


def told() -> list[GradientsState]:
    """Return what was written in place and what was copied, of each module with bucket views."""
    found = []
    for weak in _modules.keyrefs():  # a copy by one call in C: a training thread may be adding
        module = weak()
        known = _modules.get(module) if module is not None else None
        if module is None or known is None or not module.gradient_as_bucket_view:
            continue
        counts = known.placer.told() if known.placer is not None else None
        found.append(
            GradientsState(
                what=f"gradients of {type(module.module).__name__}",
                in_place=counts.in_place if counts else 0,
                copied=counts.copied if counts else 0,
                copied_bytes=counts.copied_bytes if counts else 0,
                why_off=counts.why_off if counts else known.why_off,
            )
        )
    return found


def copied_last(module: DistributedDataParallel) -> tuple[set[str], str]:
    """Return the names of gradients that were copied in the last backward pass.

    And the reason, if one applies to all.
    """
    known = _modules.get(module)
    if known is None or known.placer is None:
        names = {name for name, _ in module.module.named_parameters()}
        return names, known.why_off if known is not None else ""
    counts = known.placer.told()
    return {known.parameters[number] for number in counts.last_copied}, counts.why_off


def _why_off(module: DistributedDataParallel) -> str:
    reasons = (
        (not module.gradient_as_bucket_view, "gradient_as_bucket_view=False"),
        (module.find_unused_parameters and not module.static_graph, _UNUSED),
        (module.mixed_precision is not None, _MIXED),
        (bool(getattr(module, "_delay_all_reduce_params", None)), _DELAYED),
        (bool(getattr(module, "batched_grad_copy", False)), _BATCHED),
        (bool(getattr(module, "_use_python_reducer", False)), _COMPILED),
    )
    return next((reason for holds, reason in reasons if holds), "")


def _sent_parameters(
    module: DistributedDataParallel,
) -> Iterable[tuple[str, torch.nn.Parameter]]:
    for name, parameter in module.module.named_parameters():
        if parameter.requires_grad and name not in module.parameters_to_ignore:
            yield name, parameter


def _tensors_in(output: object) -> list[torch.Tensor]:
    """Return tensors of an output: the backward pass begins with one of them, or with none."""
    found: list[torch.Tensor] = []
    waiting = [output]
    for _ in range(_MOST_PARTS):
        if not waiting:
            break
        part = waiting.pop()
        if isinstance(part, torch.Tensor):
            found.append(part)
        elif isinstance(part, Mapping):
            waiting += islice(part.values(), _MOST_PARTS)
        elif isinstance(part, list | tuple):
            waiting += islice(part, _MOST_PARTS)
        elif dataclasses.is_dataclass(part) and not isinstance(part, type):
            waiting += [getattr(part, field.name, None) for field in dataclasses.fields(part)]
    return found
