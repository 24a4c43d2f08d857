"""How busy other processes keep the machine."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
# Of one core: where others use more, times say more about them than about the runs.
BUSY_CORES = 0.2


@dataclass(frozen=True, slots=True)
class Load:
    """What others took in a stretch of time, in CPU seconds, and its length in seconds."""

    seconds: float
    others_s: float  # other processes of this system
    stolen_s: float  # the hypervisor, for other machines

    def cores(self) -> float:
        """Return how many cores were gone, on average."""
        return (self.others_s + self.stolen_s) / self.seconds

    def is_busy(self) -> bool:
        return self.cores() > BUSY_CORES


def total(loads: Sequence[Load]) -> Load:
    return Load(
        sum(load.seconds for load in loads),
        sum(load.others_s for load in loads),
        sum(load.stolen_s for load in loads),
    )


class LoadMeter:
    """Measures from begin() to end(); own_pids returns the processes that are not others."""

    def __init__(self, own_pids: Callable[[], Iterable[int]]) -> None:
        self._own_pids = own_pids
        self.begin()

    def begin(self) -> None:
        self._before = self._read()

    def end(self) -> Load:
        before, after = self._before, self._read()
        seconds, used, stolen, own = (b - a for a, b in zip(before, after, strict=True))
        return Load(seconds, max(0.0, used - own), stolen)

    def _read(self) -> tuple[float, float, float, float]:
        """Seconds since boot, and CPU seconds of all processes, of the hypervisor, our own."""
        with Path("/proc/stat").open(encoding="ascii") as lines:
            user, nice, system, _, _, _, _, steal = (int(v) for v in next(lines).split()[1:9])
        own = sum(_ticks_of(pid) for pid in {os.getpid(), *self._own_pids()})
        used = user + nice + system
        return (
            time.monotonic(),
            used / TICKS_PER_S,
            steal / TICKS_PER_S,
            own / TICKS_PER_S,
        )


def _ticks_of(pid: int) -> int:
    """CPU ticks of a process and of the children that it has waited for; 0 if it has ended."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
        return sum(int(field) for field in stat.rpartition(")")[2].split()[11:15])
    return 0
