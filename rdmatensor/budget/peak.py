"""The bytes that torch's CPU allocator gives out, measured."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import torch

_autograd: Any = torch.autograd  # exports these names to other modules of torch only


class Allocations:
    """The allocations and frees of a block of code, on the thread that runs it.

    By torch's older profiler: it keeps the order of events, writes nothing to the terminal and
    starts in moments. Not inside another profiler.
    """

    def __init__(self) -> None:
        self.peak_bytes = self.live_bytes = 0

    def __enter__(self) -> Allocations:
        config = _autograd.ProfilerConfig(
            _autograd.ProfilerState.CPU,
            False,  # shapes
            True,  # memory
            False,  # stacks
            False,  # flops
            False,  # modules
            torch._C._profiler._ExperimentalConfig(),
        )
        _autograd._enable_profiler_legacy(config)
        return self

    def __exit__(self, *_: object) -> None:
        for events in _autograd._disable_profiler_legacy():
            for event in events:
                if event.kind() == "memory_alloc":
                    self.live_bytes += event.cpu_memory_usage()
                    self.peak_bytes = max(self.peak_bytes, self.live_bytes)


def allocated_peak(step: Callable[[], object]) -> int:
    """Run a step and return the most bytes that torch's CPU allocator gave out meanwhile.

    Counts what this thread allocates from the beginning on: not parameters and other tensors that
    exist before, nor the arena.

    Args:
        step: Runs the step.

    Returns:
        Bytes above those at the beginning; 0 if it freed only.

    Example:
        >>> allocated_peak(lambda: torch.empty(1000)) >= 4000
        True
    """
    gc.collect()
    with Allocations() as found:
        step()
    return found.peak_bytes
