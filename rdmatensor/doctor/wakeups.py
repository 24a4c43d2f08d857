"""The cost of waking a sleeping thread on this machine."""

from __future__ import annotations

import os
import select
import threading
import time
from contextlib import ExitStack

ROUNDS = 21
_FIRST = 3  # rounds that are not counted: the thread starts, caches fill
_DEADLINE_MS = 2000  # of one round: an idle machine needs a thousandth
_END = b"end"


def median_us() -> float:
    """Return the median microseconds of one wake-up across a pipe between two threads.

    A round is two of them, there and back, and includes the GIL changing hands.
    Raises: OSError or RuntimeError if a pipe or thread cannot be created, TimeoutError (an OSError)
        if the other thread does not get to run.
    """
    with ExitStack() as undo:
        heard, tell = _pipe(undo)
        answered, answer = _pipe(undo)

        def echo() -> None:
            while os.read(heard, len(_END)) != _END:
                os.write(answer, b"x")

        thread = threading.Thread(target=echo, name="rdmatensor-doctor", daemon=True)
        thread.start()
        try:
            took_us = [_round_us(tell, answered) for _ in range(_FIRST + ROUNDS)]
        finally:
            os.write(tell, _END)
            thread.join(_DEADLINE_MS / 1e3)
            if thread.is_alive():
                undo.pop_all()  # its descriptors would become other files
    return sorted(took_us[_FIRST:])[ROUNDS // 2]


def _pipe(undo: ExitStack) -> tuple[int, int]:
    ends = os.pipe()
    for end in ends:
        undo.callback(os.close, end)
    return ends


def _round_us(tell: int, answered: int) -> float:
    poll = select.poll()
    poll.register(answered, select.POLLIN)
    begun_s = time.perf_counter()
    os.write(tell, b"x")
    if not poll.poll(_DEADLINE_MS):
        raise TimeoutError(f"a thread was not woken within {_DEADLINE_MS} ms")
    os.read(answered, 1)
    return 1e6 * (time.perf_counter() - begun_s) / 2
