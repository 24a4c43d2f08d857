"""What the user asked the suite for."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

TOPICS = ("p2p", "collectives", "setup", "models")
ASKED_FOR = (
    "scale",
    "busy",
    "hosts",
    "costs",
    "links",
    "lossy",
    "ps",
    "horovod",
)  # only where they are named
TCP = "tcp"
TRANSPORTS = ("shm", TCP)  # of each run; verbs only where it is named, in the rig
VERBS = "verbs"
PLAIN = "plain"  # a row of collectives: tensors that nothing touches between calls
ROWS = ("same", "fresh", "arena")  # others, which the ranks write and read in each iteration
KIB, MIB = 1 << 10, 1 << 20
MOST_BYTES = 64 * MIB  # of all but messages in a row
# Seconds for the turns of each topic, quick and full: no round begins after them; of set-up no
# number of ranks that would end after its path's share. All of the quick ones, with the starts of
# processes and the round that runs meanwhile, end within two minutes on two cores.
SECONDS = {
    "p2p": (40.0, 1200.0),
    "collectives": (27.0, 1500.0),
    "setup": (12.0, 900.0),
    "models": (16.0, 2400.0),
    "scale": (60.0, 600.0),
    "hosts": (60.0, 1500.0),
    "ps": (120.0, 1500.0),
    "lossy": (120.0, 2400.0),
}
_QUICK_ALONE_S = {"models": 80.0}  # where a topic has more to show when it has all the time
_SIZES: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "p2p": (
        (8, 4 * KIB, 64 * KIB, MIB, 16 * MIB),
        (
            *(8, 64, 512, 4 * KIB, 32 * KIB, 64 * KIB, 256 * KIB),
            *(MIB, 4 * MIB, 16 * MIB, 64 * MIB),
        ),
    ),
    "collectives": (
        (8, 64 * KIB, MIB),
        (8, 512, 4 * KIB, 64 * KIB, 256 * KIB, MIB, 8 * MIB, 64 * MIB),
    ),
    "rows": ((8, 64 * KIB, MIB), (8, 64 * KIB, MIB, 64 * MIB)),
    "scale": ((4 * KIB, 256 * KIB, MIB), (64, 4 * KIB, 64 * KIB, 256 * KIB, MIB, 8 * MIB)),
    "busy": ((8, 64 * KIB, MIB, 4 * MIB), (8, 64 * KIB, MIB, 4 * MIB, 64 * MIB)),
    "lossy": ((MIB,), (16 * MIB, 64 * MIB)),
    "hosts": (
        (8, 64 * KIB, MIB),
        (8, 256, 4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB),
    ),
}
# An emulated machine has minutes: the rig ends a command after ten.
_VERBS_SIZES = {"p2p": (8, 4 * KIB), "collectives": (64 * KIB, 256 * KIB, MIB, 8 * MIB)}
_VERBS_S = 480.0


@dataclass(frozen=True, slots=True)
class Settings:
    """Options of one run, as command.py describes them; empty or 0: the topic's own."""

    topics: tuple[str, ...] = TOPICS
    is_quick: bool = False
    peers: list[str] | None = None
    transports: tuple[str, ...] = TRANSPORTS
    ranks: int | None = None
    sizes: tuple[int, ...] = ()
    rounds: int = 0
    nic: tuple[float, float] | None = None  # latency in us, and 10^9 bit/s
    models: tuple[str, ...] = ()
    rows: tuple[str, ...] = ()
    converge: str = ""
    calls: tuple[str, ...] = ()
    burners: tuple[int, ...] = ()
    kinds: tuple[str, ...] = ()
    between_ms: tuple[float, ...] = ()
    layout: str = ""
    seconds: float = 0.0
    link_rate: str = ""
    plans: Path | None = None
    cores: int = field(default_factory=lambda: len(os.sched_getaffinity(0)))

    def sizes_of(self, topic: str) -> tuple[int, ...]:
        """Sizes of a topic's messages in bytes, without those for messages in a row only."""
        if self.sizes:
            return tuple(size for size in self.sizes if size <= MOST_BYTES)
        if self.transports == (VERBS,) and topic in _VERBS_SIZES:
            return _VERBS_SIZES[topic]
        return _SIZES[topic][0 if self.is_quick else 1]

    def seconds_of(self, topic: str) -> float:
        """Seconds after which no further round begins."""
        if self.seconds or self.transports == (VERBS,):
            return self.seconds or _VERBS_S
        if self.is_quick and self.topics == (topic,):
            return _QUICK_ALONE_S.get(topic, SECONDS[topic][0])
        return SECONDS[topic][0 if self.is_quick else 1]

    def rounds_of(self) -> int:
        """Turns that each peer has where the seconds allow it."""
        return self.rounds or (5 if self.is_quick else 10)
