"""Where the ranks of a job wait for each other without a word over the group under test.

A rank that leaves ends what others still do with it, rightly. A test that is about something else
must let no rank leave, nor die, before the others are where it needs them. Files are used, not the
store: the rank that serves it may be the one that dies.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path

FOLDER_VARIABLE = "RDMATENSOR_TEST_MEETINGS"  # set by the launcher
# An emulated machine is slow: the C tests' limits grow by the same variable.
SCALE = float(os.environ.get("RDT_TEST_TIMEOUT_SCALE", "1"))
DEADLINE_S = 20.0 * SCALE  # a job's own is longer, mostly; this one says who did not come


def _word(name: str, rank: int) -> Path:
    return Path(os.environ[FOLDER_VARIABLE]) / f"{name}.{rank}.came"


def has_come(name: str, rank: int) -> bool:
    """Say whether the rank has come to the meeting of this name."""
    return _word(name, rank).exists()


def meet(name: str, rank: int, ranks: Iterable[int]) -> None:
    """Return once all of ranks have come to the meeting of this name, which is held once."""
    _word(name, rank).touch()
    deadline_s = time.monotonic() + DEADLINE_S
    missing = set(ranks)
    while missing := {other for other in missing if not has_come(name, other)}:
        if time.monotonic() > deadline_s:
            raise AssertionError(f"rank {rank} at {name!r}: ranks {sorted(missing)} did not come")
        time.sleep(0.005)
