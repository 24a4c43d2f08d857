"""What a rank has of the kinds that the library makes, and what of it is left once that is over.

Counted before the first group and after the last; what stays between is steady_test's affair.
"""

from __future__ import annotations

import contextlib
import gc
import os
import socket
import time
from pathlib import Path

from meeting import SCALE

import rdmatensor

SELF = Path("/proc/self")
MEMORY = "/memfd:rdmatensor"
THREAD = "rdmatensor"  # how the names of the core's threads begin
LIMIT_S = 5.0 * SCALE  # a thread that was joined is listed for a moment more
BETWEEN_LOOKS_S = 0.02


def _is_of_store(fd: int) -> bool:
    """Whether it is a socket of torch's TCPStore, which ends when torch lets it go."""
    port = int(os.environ.get("MASTER_PORT", "0"))
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(fd)) as end:
        names = [end.getsockname()]
        with contextlib.suppress(OSError):
            names.append(end.getpeername())
        return any(isinstance(name, tuple) and name[1] == port for name in names)
    return False


def _descriptors() -> dict[str, int]:
    found = {"sockets": 0, "events": 0, "memory": 0}
    for entry in (SELF / "fd").iterdir():
        try:
            target = os.readlink(entry)  # noqa: PTH115  no file, but a name
        except OSError:
            continue  # the folder's own
        found["events"] += target.startswith("anon_inode:")  # epoll, eventfd, timerfd, pidfd
        found["memory"] += target.startswith(MEMORY)
        found["sockets"] += target.startswith("socket:") and not _is_of_store(int(entry.name))
    return found


def count(*, has_store: bool = False) -> dict[str, int]:
    """Count descriptors, threads and mappings.

    has_store: torch's TCPStore is served here, which has events and keeps them after the group.
    """
    names = []
    for task in (SELF / "task").iterdir():
        with contextlib.suppress(OSError):  # it has ended since
            names.append((task / "comm").read_text(encoding="utf-8"))
    found = _descriptors()
    if has_store:
        del found["events"]
    found["threads"] = sum(name.startswith(THREAD) for name in names)
    found["mappings"] = (SELF / "maps").read_text(encoding="utf-8").count(MEMORY)
    return found


def left(before: dict[str, int]) -> dict[str, int]:
    """Close the process's context; return what there is beyond `before`, which is to be nothing."""
    gc.collect()
    rdmatensor.default_context().close()
    until_s = time.monotonic() + LIMIT_S
    while True:
        now = count()
        more = {name: now[name] - before[name] for name in before if now[name] > before[name]}
        if not more or time.monotonic() > until_s:
            return more
        time.sleep(BETWEEN_LOOKS_S)
