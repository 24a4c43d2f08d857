"""Check the size of each room of csrc/ and the circles in it. Usage: check_rooms.py [ROOT].

A room is a folder. KNOWN has what is still over a limit; such a number may only fall.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

from csrc_rooms import File, Rooms, read_rooms, report

# Of one room: files, their lines, external functions and variables, the sources in one circle of
# uses, and the sources outside the noun's own room that see the body of one of its structs.
LIMITS = {"files": 24, "lines": 6000, "externals": 120, "circle": 6, "body": 4}
KNOWN: dict[tuple[str, str], int] = {}
_INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)


def measure(rooms: Rooms) -> dict[tuple[str, str], int]:
    """Return what each room has of each limited thing."""
    by_room: dict[str, list[File]] = defaultdict(list)
    for file in rooms.files:
        by_room[file.room].append(file)
    found: dict[tuple[str, str], int] = {}
    for room, files in by_room.items():
        found[room, "files"] = len(files)
        found[room, "lines"] = sum(file.text.count("\n") for file in files)
        found[room, "externals"] = sum(len(file.defines) for file in files)
        found[room, "circle"] = max(map(len, circles(files, rooms)), default=0)
    return found


def circles(files: list[File], rooms: Rooms) -> Iterator[list[File]]:
    """Yield the sets of sources that use each other in a circle, by Tarjan's algorithm."""
    inside = set(files)
    arrows = {
        file: {
            owner
            for name in file.uses
            if (owner := rooms.owner_of(name)) in inside and owner is not file
        }
        for file in files
    }
    index: dict[File, int] = {}
    low: dict[File, int] = {}
    stack: list[File] = []

    def visit(file: File) -> Iterator[list[File]]:
        index[file] = low[file] = len(index)
        stack.append(file)
        for to in sorted(filter(None, arrows[file]), key=lambda one: one.path):
            if to not in index:
                yield from visit(to)
            if to in stack:
                low[file] = min(low[file], low[to])
        if low[file] == index[file]:
            circle = stack[stack.index(file) :]
            del stack[stack.index(file) :]
            if len(circle) > 1:
                yield circle

    for file in files:
        if file not in index:
            yield from visit(file)


def bodies(rooms: Rooms, csrc: Path) -> dict[str, set[Path]]:
    """Return, by private header, the sources outside its room that see the bodies in it."""
    headers = {str(f.path.relative_to(csrc)): f for f in rooms.files if f.path.suffix == ".h"}
    seen: dict[str, set[Path]] = defaultdict(set)
    for file in rooms.files:
        if file.path.suffix == ".h":
            continue
        todo, known = list(_INCLUDE.findall(file.text)), set()
        while todo:
            name = todo.pop()
            if name in known or name not in headers:
                continue
            known.add(name)
            todo += _INCLUDE.findall(headers[name].text)
            if name.endswith("_impl.h") and headers[name].room != file.room:
                seen[name].add(file.path)
    return seen


def problems(csrc: Path, known: Mapping[tuple[str, str], int] = KNOWN) -> list[str]:
    """Return one line for each limit that is broken beyond what is known, and stale numbers."""
    rooms = read_rooms(csrc)
    measured = measure(rooms)
    measured |= {(name, "body"): len(paths) for name, paths in bodies(rooms, csrc).items()}
    lines = []
    for (room, what), value in sorted(measured.items()):
        most = max(LIMITS[what], known.get((room, what), 0))
        if value > most:
            lines.append(f"csrc/{room}: {value} {what}, at most {most}")
    for (room, what), value in sorted(known.items()):
        now = measured.get((room, what), 0)
        if now < value:
            lines.append(f"{__file__}: KNOWN {room} {what}: {now}, not {value}: lower the number")
    return lines


if __name__ == "__main__":
    sys.exit(report(problems))
