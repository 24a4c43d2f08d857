"""What the ends of p2p.py have in common, and where its two ranks meet."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

LARGE_BYTES = 64 << 20
SMALL_BYTES = 8
PATIENCE_S = 60.0


# Way of writing -> (write 8 B + notify, write 64 MiB + notify), each until it is done.
Ways = dict[str, tuple[Callable[[], object], Callable[[], object]]]


class Side(Protocol):
    """This process's end: what it writes goes to the other's end."""

    ways: Ways
    landing: NDArray[np.uint8]
    path: str

    def wait(self) -> None:
        """Wait for one notification of the other side."""

    def close(self) -> None:
        """Both sides are done."""


class Folder:
    """Values of the two ranks, in files."""

    def __init__(self, path: Path, rank: int) -> None:
        self.path, self.rank = path, rank

    def swap(self, key: str, mine: bytes) -> bytes:
        """Give mine, return the other rank's; both call it."""
        draft = self.path / f"{key}.{self.rank}.draft"
        draft.write_bytes(mine)
        draft.rename(self.path / f"{key}.{self.rank}")
        other = self.path / f"{key}.{1 - self.rank}"
        deadline_s = time.monotonic() + PATIENCE_S
        while not other.exists():
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"the other rank has no {key}")
            time.sleep(0.001)
        return other.read_bytes()
