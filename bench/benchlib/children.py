"""Processes that end with the one that started them, however that one ends.

Its own end, an exception and a signal that ended_by_signals() turns into one leave by way of
`finally`, which ends children in order; SIGKILL, and whatever else leaves no time, is the kernel's.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

_LIBC = ctypes.CDLL(None, use_errno=True)  # before any fork
_PR_SET_PDEATHSIG = 1
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def end_with(parent: int, number: signal.Signals = signal.SIGKILL) -> None:
    """Let the kernel send this process, a child of `parent`, a signal once that one is dead.

    It counts as dead when the thread that forked ends. Raises RuntimeError if it has ended already.
    """
    if _LIBC.prctl(_PR_SET_PDEATHSIG, number) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:
        raise RuntimeError("the process that should wait for this one has ended")


def tied(number: signal.Signals = signal.SIGKILL) -> Callable[[], None]:
    """Return a preexec_fn for subprocess: the program ends with this process."""
    parent = os.getpid()
    return lambda: end_with(parent, number)


@contextlib.contextmanager
def ended_by_signals(name: str) -> Iterator[None]:
    """Inside, SIGINT, SIGTERM and SIGHUP raise SystemExit with 128 + their number.

    What is ignored, as SIGHUP under nohup, stays ignored. Does nothing outside the main thread,
    where Python runs no handlers.
    """

    def leave(number: int, _frame: FrameType | None) -> None:
        for one in caught:  # a second one must not interrupt what the first sets going
            signal.signal(one, signal.SIG_IGN)
        said = f"\n{name}: ended by {signal.Signals(number).name}\n"
        os.write(2, said.encode())  # a stream may be in the midst of a write
        raise SystemExit(128 + number)

    caught: list[signal.Signals] = []
    before = {}
    if threading.current_thread() is threading.main_thread():
        before = {one: signal.getsignal(one) for one in _ENDING}
    caught = [one for one, handler in before.items() if handler is not signal.SIG_IGN]
    for one in caught:
        signal.signal(one, leave)
    try:
        yield
    finally:
        for one in caught:
            signal.signal(one, before[one])
