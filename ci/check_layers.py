"""Check that no include and no call of csrc/ goes against the arrow. Usage: check_layers.py [ROOT].

A room is a folder of csrc/. A file includes the headers, and uses the external functions and
variables, of its own room and of the rooms that ALLOWED names for it. BREACHES has what still goes
against an arrow; each count may only fall.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from csrc_rooms import Rooms, read_rooms, report

PUBLIC_HEADERS = frozenset(
    {"rdmatensor.h", "rdmatensor_group.h", "rdmatensor_ext.h", "rdmatensor_ps.h"}
)
WIRE = frozenset({"wire", "wire/endpoint", "wire/group", "wire/ps"})
BASE = frozenset({"base", "base/memory", "base/system", *WIRE})
TRANSPORT = frozenset({*BASE, "transport"})
PROCESS = frozenset({*TRANSPORT, "progress", "memory", "process"})
GROUND = frozenset({*PROCESS, "connect"})
ENDPOINT = frozenset({*GROUND, "endpoint"})
MESSAGE = frozenset({*ENDPOINT, "message/match"})
COLLECTIVES = frozenset(
    {
        "collectives",
        "collectives/board",
        "collectives/lossy",
        "collectives/reduce",
        "collectives/schedule",
        "collectives/select",
        "collectives/team",
    }
)
PS = frozenset({"ps/rules", "ps/model", "ps/rows", "ps/server", "ps/worker"})
C10D = frozenset(
    {"c10d", "c10d/ddp", "c10d/memory", "c10d/record", "c10d/rendezvous", "c10d/works"}
)
# room: the rooms that it may know, in addition to its own and the public header.
ALLOWED: dict[str, frozenset[str]] = {
    "include": frozenset(),
    "base": frozenset(),
    "base/memory": frozenset({"base"}),
    "base/system": frozenset({"base"}),
    "wire": frozenset({"base"}),
    "wire/endpoint": frozenset({"base", "wire"}),
    "wire/group": frozenset({"base", "wire"}),
    "wire/ps": frozenset({"base", "wire"}),
    "transport": BASE,
    "transport/shm": TRANSPORT,
    "transport/tcp": TRANSPORT,
    "transport/verbs/device": TRANSPORT,
    "transport/verbs/memory": frozenset({*TRANSPORT, "transport/verbs/device"}),
    "transport/verbs": frozenset({*TRANSPORT, "transport/verbs/device", "transport/verbs/memory"}),
    "gpu": frozenset({"base", "base/memory", "base/system"}),
    "progress": TRANSPORT,
    "memory": frozenset({*TRANSPORT, "progress"}),
    "process": PROCESS,
    "connect": PROCESS,
    "endpoint": GROUND,
    "slot": ENDPOINT,
    "message/match": ENDPOINT,
    "message": MESSAGE,
    "group": frozenset({*MESSAGE, "message"}),
    "api": frozenset(
        {*MESSAGE, "slot", "message", "group", "gpu"}
        | {"transport/shm", "transport/tcp", "transport/verbs"}
    ),
    **{room: frozenset({*BASE, *COLLECTIVES}) for room in COLLECTIVES},
    "ps/rules": frozenset({"base"}),
    "ps/model": frozenset({"base", "wire", "wire/ps", "ps/rules"}),
    "ps/rows": frozenset({"base", "wire", "ps/rules", "ps/model"}),
    "ps/server": frozenset({*BASE, "ps/rules", "ps/model", "ps/rows"}),
    "ps/worker": frozenset({*BASE, "ps/rules", "ps/model"}),
    **{room: frozenset({*WIRE, *COLLECTIVES, *C10D}) for room in C10D},
}
# The rooms above the public header call its functions, whichever room defines them.
ON_PUBLIC_HEADER = frozenset({*COLLECTIVES, *C10D, *PS})
# (from, to): includes that are against the arrow, and pairs of a file and what it uses there.
BREACHES: dict[tuple[str, str], tuple[int, int]] = {}
# Foreign headers that belong to one room.
FOREIGN: dict[str, str] = {
    "torch/": "c10d",
    "ATen/": "c10d",
    "c10/": "c10d",
    "pybind11/": "c10d",
    "Python.h": "c10d",
    "infiniband/": "transport/verbs",
    "rdma/": "transport/verbs",
}
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)
Found = list[tuple[tuple[str, str], str]]  # an arrow against the table, and the line that says so


def include_problem(room: str, quote: str, target: str) -> str | None:
    """Say what is wrong with how or what a file of this room includes, arrows apart; or None."""
    if quote == "<":
        for prefix, owner in FOREIGN.items():
            if target.startswith(prefix) and room != owner and not room.startswith(f"{owner}/"):
                return f"<{target}> is for csrc/{owner} only"
        if room == "include" and target not in ("stddef.h", "stdint.h"):
            return f"the public header includes <{target}>: stddef.h and stdint.h only"
        return None
    if target not in PUBLIC_HEADERS and (str(Path(target).parent) not in ALLOWED or ".." in target):
        return f'"{target}" is not written from csrc/, e.g. "base/error.h"'
    return None


def includes_against(rooms: Rooms) -> tuple[Found, list[str]]:
    """Return the includes against an arrow, and the lines about others that are wrong."""
    against: Found = []
    wrong = []
    for file in rooms.files:
        if file.room not in ALLOWED:
            wrong.append(f"{file.path}: csrc/{file.room} is not a layer; add it to {__file__}")
            continue
        for match in INCLUDE.finditer(file.text):
            line = f"{file.path}:{file.text.count(chr(10), 0, match.start(2)) + 1}"
            what = include_problem(file.room, match[1], match[2])
            to = str(Path(match[2]).parent)
            if what is not None:
                wrong.append(f"{line}: {what}")
            elif match[1] == '"' and match[2] not in PUBLIC_HEADERS and not knows(file.room, to):
                against.append(
                    ((file.room, to), f'{line}: "{match[2]}": {file.room} must not know {to}')
                )
    return against, wrong


def uses_against(rooms: Rooms) -> Found:
    """Return what files use of rooms that they must not know."""
    found: Found = []
    for file in rooms.files:
        for name in sorted(file.uses):
            to = rooms.owner_of(name)
            is_public = name.startswith("rdt_") and file.room in ON_PUBLIC_HEADER
            if to is None or is_public or file.room not in ALLOWED or knows(file.room, to.room):
                continue
            found.append(
                (
                    (file.room, to.room),
                    f"{file.path}: uses {name}() of {to.path}: {file.room} must not know {to.room}",
                )
            )
    return found


def knows(room: str, to: str) -> bool:
    """Return whether a room may know another one."""
    return to in (room, "include") or to in ALLOWED[room]


def beyond(found: Found, known: Mapping[tuple[str, str], int], what: str) -> list[str]:
    """Return the lines of arrows of which there are more than are known, and stale counts."""
    counts = Counter(arrow for arrow, _ in found)
    lines = [line for arrow, line in found if counts[arrow] > known.get(arrow, 0)]
    lines += [
        f"{__file__}: BREACHES of {arrow[0]} against {arrow[1]}: {counts[arrow]} {what}, "
        f"not {known[arrow]}: lower the number"
        for arrow in known
        if counts[arrow] < known[arrow]
    ]
    return lines


def problems(csrc: Path) -> list[str]:
    """Return one line for each arrow that is against the rules, in a stable order."""
    rooms = read_rooms(csrc)
    includes, wrong = includes_against(rooms)
    return [
        *wrong,
        *beyond(includes, {arrow: of[0] for arrow, of in BREACHES.items()}, "includes"),
        *beyond(uses_against(rooms), {arrow: of[1] for arrow, of in BREACHES.items()}, "uses"),
    ]


if __name__ == "__main__":
    sys.exit(report(problems))
