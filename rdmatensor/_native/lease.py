"""Files that are held by a process of this host until it ends, however it ends.

A reader can tell whether the process that held a file still lives. Locks of other hosts may not be
visible, and some file systems have none: the process that takes a lease publishes what take()
returns, and only readers for which it holds may call the file abandoned.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path

_held: dict[Path, int] = {}  # descriptors


def take(path: Path) -> str | None:
    """Hold a new file for the life of this process.

    Returns the running host's id for is_abandoned(), or None where files cannot be held.
    """
    flags = os.O_CREAT | os.O_RDWR | os.O_CLOEXEC
    fd = os.open(path, flags, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        return None
    _held[path] = fd
    return _host()


def give(path: Path) -> None:
    """Give up a file that take() has made, if it has."""
    fd = _held.pop(path, None)
    if fd is not None:
        path.unlink(missing_ok=True)
        os.close(fd)


def is_abandoned(path: Path, host: object) -> bool:
    """Whether the process that took the file has ended; host is what take() returned to it."""
    if host is None or host != _host():
        return False
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(fd)
    return True


def _host() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def _after_fork() -> None:
    """Close a forked child's copies: a lease must end with the process that took it."""
    for fd in _held.values():
        with contextlib.suppress(OSError):
            os.close(fd)
    _held.clear()


os.register_at_fork(after_in_child=_after_fork)
