"""Places the buffers that torch allocates once and receives into in the arena, without a request.

A torch that allocates them elsewhere works as it would without this.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from rdmatensor._native.malloc_limits import keep_large_blocks
from rdmatensor._torch.adoption import adoptions, gradient_sources, process
from rdmatensor._torch.ddp import adopt as ddp_adopt
from rdmatensor._torch.ddp import gradients as ddp_gradients
from rdmatensor._torch.ddp import report as ddp_report
from rdmatensor._torch.pipeline.stages import watch_stages
from rdmatensor.config import Settings
from rdmatensor.context import Context
from rdmatensor.state import AdoptionState, GradientsState, NotAdoptedState


def adopted() -> list[AdoptionState]:
    """Return what was adopted so far, oldest first."""
    return adoptions()


def not_adopted(settings: Settings) -> list[NotAdoptedState]:
    """Return what is outside the arena now."""
    by_hooks = None if settings.hooks else "RDMATENSOR_HOOKS=0"
    return ddp_report.not_adopted(by_hooks if settings.adopt else "RDMATENSOR_ADOPT=0")


def gradients() -> list[GradientsState]:
    """Return what was written in place and what was copied, of each module and other source."""
    return [*ddp_gradients.told(), *(one for source in gradient_sources for one in source())]


def install(context: Context, on_module: Callable[[torch.nn.Module], None]) -> None:
    """Wrap the places of allocation, once, if the settings of `context` say so.

    on_module: called with each DistributedDataParallel module that sends over this backend.
    """
    is_first = process.context is None
    process.context = context  # before the wrappers, which another thread may call at once
    if is_first:
        ddp_adopt.wrap(on_module)
    if context.settings.adopt:
        keep_large_blocks()
        watch_stages()
