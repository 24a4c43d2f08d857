"""The GID table of a port, ranked as csrc/transport/verbs/device/gid.c ranks it; with reasons."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from rdmatensor.doctor.machine import Machine

# As in gid.c, the most important first; a test compares them.
SCORE_V2 = 64
SCORE_IPV4 = 32
SCORE_GLOBAL = 16
SCORE_UNIQUE = 8
SCORE_BOUND = 4


@dataclass(frozen=True, slots=True)
class Gid:
    """One entry: kind as in sysfs ("RoCE v2"), netdev "" if it belongs to none."""

    index: int
    kind: str
    address: ipaddress.IPv6Address
    netdev: str

    @property
    def is_v2(self) -> bool:
        """Whether it is routable RoCE."""
        return self.kind == "RoCE v2"

    @property
    def family(self) -> str:
        """The kind of address that it holds."""
        if self.address.ipv4_mapped is not None:
            return "IPv4"
        if int(self.address) >> 121 == 0xFC >> 1:
            return "unique local"
        return "link-local" if self.address.is_link_local else "global"

    @property
    def score(self) -> int:
        """Higher is better."""
        families = {"IPv4": SCORE_IPV4, "global": SCORE_GLOBAL, "unique local": SCORE_UNIQUE}
        return (
            (SCORE_V2 if self.is_v2 else 0)
            + families.get(self.family, 0)
            + (SCORE_BOUND if self.netdev else 0)
        )

    def __str__(self) -> str:
        shown = self.address.ipv4_mapped or self.address
        of = f" of {self.netdev}" if self.netdev else ", of no network device"
        return f"{self.index}: {self.kind}, {self.family} {shown}{of}"


def table(machine: Machine, port: str) -> list[Gid]:
    """Return the entries of a port's table, the best first; skips holes.

    port: its folder, "sys/class/infiniband/mlx5_0/ports/1".
    """
    found = []
    for index in machine.names(f"{port}/gids"):
        text = machine.text(f"{port}/gids/{index}") or ""
        try:
            address = ipaddress.IPv6Address(text)
        except ValueError:
            continue
        if int(address) == 0:
            continue
        kind = machine.text(f"{port}/gid_attrs/types/{index}") or "of an unknown type"
        netdev = machine.text(f"{port}/gid_attrs/ndevs/{index}") or ""
        found.append(Gid(int(index), kind, address, netdev))
    return sorted(found, key=lambda gid: (-gid.score, gid.index))
