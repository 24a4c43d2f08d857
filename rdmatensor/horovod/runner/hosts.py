"""Hosts with their slots, and which rank runs where."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

_HOST = re.compile(r"(?P<name>[\w.-]+):(?P<slots>[0-9]+)")
_LINE = re.compile(r"(?P<name>[\w.-]+)(?:\s+slots\s*=\s*(?P<slots>[0-9]+))?\s*(?:#.*)?")


@dataclass(frozen=True)
class Host:
    """A host and how many ranks it takes."""

    name: str
    slots: int


@dataclass(frozen=True)
class Slot:
    """One rank's place. cross: among the ranks of the same local rank."""

    host: str
    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int

    def environment(self) -> dict[str, str]:
        """Return the variables by which Horovod's and torch's programs know it."""
        numbers = {
            "RANK": self.rank,
            "SIZE": self.size,
            "LOCAL_RANK": self.local_rank,
            "LOCAL_SIZE": self.local_size,
            "CROSS_RANK": self.cross_rank,
            "CROSS_SIZE": self.cross_size,
        }
        of_torch = {"SIZE": "WORLD_SIZE", "LOCAL_SIZE": "LOCAL_WORLD_SIZE"}
        found = {"HOROVOD_HOSTNAME": self.host}
        for name, number in numbers.items():
            found[f"HOROVOD_{name}"] = str(number)
            if not name.startswith("CROSS"):
                found[of_torch.get(name, name)] = str(number)
        return found


def parse_hosts(text: str) -> list[Host]:
    """Read `name:slots,...`.

    Raises:
        ValueError: A part is written differently, or a host is named twice.
    """
    found = []
    for part in text.split(","):
        match = _HOST.fullmatch(part.strip())
        if match is None:
            raise ValueError(f"host {part!r}: expected NAME:SLOTS, such as localhost:2")
        found.append(Host(match["name"], int(match["slots"])))
    return _distinct(found)


def parse_hostfile(path: Path) -> list[Host]:
    """Read lines `name slots=N`; without slots it is one.

    Raises:
        ValueError: A line is written differently, or a host is named twice.
        OSError: The file cannot be read.
    """
    found = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = _LINE.fullmatch(line.strip())
        if match is None:
            raise ValueError(f"{path}:{number}: {line!r}: expected NAME slots=N")
        found.append(Host(match["name"], int(match["slots"] or 1)))
    return _distinct(found)


def parse_discovered(text: str, slots: int | None) -> list[Host]:
    """Read what a discovery script printed: lines `name:slots`, or `name` where slots are given.

    Raises:
        ValueError: A line is written differently.
    """
    found = []
    for line in filter(None, (line.strip() for line in text.splitlines())):
        written = line if ":" in line else f"{line}:{slots}"
        match = _HOST.fullmatch(written)
        if match is None:
            raise ValueError(
                f"the discovery script printed {line!r}: expected NAME:SLOTS, or NAME with "
                "--slots-per-host"
            )
        found.append(Host(match["name"], int(match["slots"])))
    return _distinct(found)


def _distinct(hosts: Sequence[Host]) -> list[Host]:
    twice = [name for name, count in Counter(host.name for host in hosts).items() if count > 1]
    if twice:
        raise ValueError(f"host {twice[0]} is named twice: add its slots up in one entry")
    return list(hosts)


def assign(hosts: Iterable[Host], least: int, most: int | None = None) -> list[Slot]:
    """Give ranks to hosts in their order: at least this many, at most that many.

    Raises:
        ValueError: There are fewer slots than ranks.
    """
    limit = least if most is None else most
    places: list[tuple[str, int]] = []  # host and local rank, by rank
    for host in hosts:
        room = min(host.slots, limit - len(places))
        places.extend((host.name, local) for local in range(room))
    if len(places) < least:
        raise ValueError(
            f"{least} processes were requested, and the hosts have {len(places)} slots: name more "
            "hosts or slots with -H or --hostfile"
        )
    sizes = Counter(host for host, _ in places)
    by_local: dict[int, list[str]] = {}
    for name, local in places:
        by_local.setdefault(local, []).append(name)
    return [
        Slot(
            *(name, rank, len(places), local, sizes[name]),
            by_local[local].index(name),
            len(by_local[local]),
        )
        for rank, (name, local) in enumerate(places)
    ]
