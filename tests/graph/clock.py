"""Processor seconds of a call, as free of noise as one process can have them."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any


def cpu_s(call: Callable[[], Any]) -> tuple[float, Any]:
    """Return the seconds and what the call returned.

    Without collections: they walk what all earlier tests have left, and would count as the call's.
    """
    gc.collect()
    gc.disable()
    try:
        began = time.process_time()
        result = call()
        return time.process_time() - began, result
    finally:
        gc.enable()


def least_of_turns(small: Callable[[], float], large: Callable[[], float]) -> tuple[float, float]:
    """Return the least seconds of each, in turns: what else the machine does meets both."""
    rounds = [(small(), large()) for _ in range(9)]
    return min(first for first, _ in rounds), min(second for _, second in rounds)
