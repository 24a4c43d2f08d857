"""What the user asked the suite for."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

TOPICS = ("p2p", "collectives", "setup", "models")
ASKED_FOR = ("scale", "busy", "hosts", "costs", "copies", "links")  # only where they are named
TRANSPORTS = ("shm", "tcp")  # of each run; verbs only where it is named, in the rig
VERBS = "verbs"
PLAIN = "plain"  # a row of collectives: tensors that nobody touches between calls
ROWS = ("same", "fresh", "arena")  # others, which the ranks write and read in each iteration
KIB, MIB = 1 << 10, 1 << 20
MOST_BYTES = 64 * MIB  # of all but messages in a row (streams.py)
# Seconds for the turns of each topic: no round begins after them; of set-up, whose rounds grow, no
# number of ranks that would end after its path's share of them. All of the quick ones, with the
# starts of processes and the round that runs meanwhile, end within two minutes on two cores.
_QUICK_S = {
    "p2p": 40.0,
    "collectives": 27.0,
    "setup": 12.0,
    "models": 16.0,
    "scale": 60.0,
    "hosts": 60.0,
    "copies": 30.0,
}
_QUICK_ALONE_S = {"models": 80.0}  # where a topic has more to show when it has all the time
_FULL_S = {
    "p2p": 1200.0,
    "collectives": 1500.0,
    "setup": 900.0,
    "models": 2400.0,
    "scale": 600.0,
    "hosts": 1500.0,
    "copies": 600.0,
}
_QUICK_SIZES = {
    "p2p": (8, 4 * KIB, 64 * KIB, MIB, 16 * MIB),
    "collectives": (8, 64 * KIB, MIB),
    "rows": (8, 64 * KIB, MIB),
    "scale": (4 * KIB, 256 * KIB, MIB),
    "busy": (8, 64 * KIB, MIB, 4 * MIB),
    "hosts": (8, 64 * KIB, MIB),
}
_FULL_SIZES = {
    "p2p": (
        *(8, 64, 512, 4 * KIB, 32 * KIB, 64 * KIB, 256 * KIB),
        *(MIB, 4 * MIB, 16 * MIB, 64 * MIB),
    ),
    "collectives": (8, 512, 4 * KIB, 64 * KIB, 256 * KIB, MIB, 8 * MIB, 64 * MIB),
    "rows": (8, 64 * KIB, MIB, 64 * MIB),
    "scale": (64, 4 * KIB, 64 * KIB, 256 * KIB, MIB, 8 * MIB),
    "busy": (8, 64 * KIB, MIB, 4 * MIB, 64 * MIB),
    "hosts": (8, 256, 4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB),
}
# An emulated machine has minutes: the rig ends a command after ten.
_VERBS_SIZES = {"p2p": (8, 4 * KIB), "collectives": (64 * KIB, 256 * KIB, MIB, 8 * MIB)}
_VERBS_S = 480.0


@dataclass(frozen=True, slots=True)
class Settings:
    """Options of one run.

    sizes: bytes; empty: the topic's own. rounds: turns of each contestant. ranks: of collectives
    and models, and the most of setup; None: the topic's own. models: empty: all of them. nic:
    latency in us and 10^9 bit/s, for scale. nic_qp_kib: its memory for each peer; None: assumed.
    ranks_per_host: of scale's hosts that have several; 0: as model.py has them.
    rows: of collectives, PLAIN or some of ROWS; empty: those that there is time for. converge:
    whose loss is followed; empty: no model's. calls, burners, kinds, between_ms: of busy; empty:
    the topic's own. layout: of hosts, a digit for the host of each rank. seconds: after which no
    round begins; 0: the topic's own. link_rate: of the rig's link, as tc has it. plans: a folder of
    plans for models on two hosts.
    """

    topics: tuple[str, ...] = TOPICS
    is_quick: bool = False
    peers: list[str] | None = None
    transports: tuple[str, ...] = TRANSPORTS
    ranks: int | None = None
    sizes: tuple[int, ...] = ()
    rounds: int = 0
    nic: tuple[float, float] | None = None
    nic_qp_kib: float | None = None
    ranks_per_host: int = 0
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
        given = tuple(size for size in self.sizes if size <= MOST_BYTES)
        if not self.sizes and self.transports == (VERBS,) and topic in _VERBS_SIZES:
            return _VERBS_SIZES[topic]
        return given if self.sizes else (_QUICK_SIZES if self.is_quick else _FULL_SIZES)[topic]

    def seconds_of(self, topic: str) -> float:
        """Seconds after which no further round begins."""
        if self.seconds or self.transports == (VERBS,):
            return self.seconds or _VERBS_S
        if self.is_quick and self.topics == (topic,):
            return _QUICK_ALONE_S.get(topic, _QUICK_S[topic])
        return (_QUICK_S if self.is_quick else _FULL_S)[topic]

    def rounds_of(self) -> int:
        """Turns that each contestant has where the seconds allow it."""
        return self.rounds or (5 if self.is_quick else 10)
