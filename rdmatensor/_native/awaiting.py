"""Waiting in an asyncio event loop for what a C call reports only when it is asked."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

from rdmatensor._native.ffi import with_whole_time
from rdmatensor.errors import TransferTimeoutError

T = TypeVar("T")

# The progress thread goes on meanwhile. The loop asks at once after each of its turns for a
# millisecond, as most of what is waited for comes soon, then less and less often.
_EAGER_S = 0.001
_PAUSE_MOST_S = 0.005


async def until(attempt: Callable[[], T], limit_s: float) -> T:
    """Return what attempt() returns.

    attempt must not wait: it raises TransferTimeoutError while there is nothing, and has then done
    nothing. So a cancelled task loses nothing. Any other exception ends the wait.
    """
    start_s = time.monotonic()
    while True:
        waited_s = time.monotonic() - start_s
        try:
            return attempt()
        except TransferTimeoutError as error:
            if waited_s >= limit_s:
                raise with_whole_time(error, limit_s) from None
        pause_s = 0.0 if waited_s < _EAGER_S else min(waited_s / 8, _PAUSE_MOST_S)
        await asyncio.sleep(min(pause_s, max(0.0, limit_s - waited_s)))
