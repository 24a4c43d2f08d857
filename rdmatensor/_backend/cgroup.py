"""Limits of control groups on this process, read as csrc/base/system/cgroup.c does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol


class Files(Protocol):
    """Files by paths without a leading slash."""

    def text(self, path: str) -> str | None:
        """Return a file's content without surrounding spaces; None if it cannot be read."""


class RootFiles:
    """The files of this host."""

    def text(self, path: str) -> str | None:
        """Return a file's content without surrounding spaces; None if it cannot be read."""
        try:
            return Path("/", path).read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            return None


# Version 1 writes "no limit" as the largest number of pages.
_NO_LIMIT_FROM_BYTES = 1 << 62


def _mounts(files: Files, controller: str) -> Iterator[tuple[str, str, bool]]:
    """Yield (root, mount point, whether it is version 2) of hierarchies that may limit it."""
    for line in (files.text("proc/self/mountinfo") or "").splitlines():
        head, _, tail = line.partition(" - ")
        words, kind = head.split(), tail.split()
        if len(words) < 5 or len(kind) < 3:
            continue
        if kind[0] == "cgroup2" or (kind[0] == "cgroup" and controller in kind[2].split(",")):
            yield words[3], words[4].lstrip("/"), kind[0] == "cgroup2"


def _own(files: Files, controller: str, *, is_second: bool) -> str | None:
    for line in (files.text("proc/self/cgroup") or "").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if (number == "0") if is_second else (controller in controllers.split(",")):
            return path
    return None


def _folders(files: Files, controller: str) -> Iterator[tuple[str, bool]]:
    """Yield the folder of the process's group and of each ancestor that is visible."""
    for root, point, is_second in _mounts(files, controller):
        path = _own(files, controller, is_second=is_second)
        if path is None:
            continue
        if path == root or path.startswith(root.rstrip("/") + "/"):
            path = path[len(root.rstrip("/")) :]
        parts = [part for part in path.split("/") if part]
        for count in range(len(parts), -1, -1):
            yield "/".join([point, *parts[:count]]), is_second


def cpu_quota(files: Files) -> float | None:
    """Return how many cores' time the process may use; None without a quota."""
    quotas: list[float] = []
    for folder, is_second in _folders(files, "cpu"):
        if is_second:
            words = (files.text(f"{folder}/cpu.max") or "").split()
        else:
            names = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
            words = [files.text(f"{folder}/{name}") or "" for name in names]
        if len(words) == 2 and words[0].isdigit() and words[1].isdigit() and int(words[1]) > 0:
            quotas.append(int(words[0]) / int(words[1]))
    return min(quotas, default=None)


def stopped(files: Files) -> tuple[int, float] | None:
    """Return how often a quota has stopped the process's own group, and for how many seconds."""
    for folder, is_second in _folders(files, "cpu"):
        words = (files.text(f"{folder}/cpu.stat") or "").split()
        found = dict(zip(words[::2], words[1::2], strict=False))
        name, unit = ("throttled_usec", 1e6) if is_second else ("throttled_time", 1e9)
        if found.get("nr_throttled", "").isdigit() and found.get(name, "").isdigit():
            return int(found["nr_throttled"]), int(found[name]) / unit
    return None


def memory_limit_bytes(files: Files) -> int | None:
    """Return the smallest limit of the process's groups; None without a limit."""
    limits: list[int] = []
    for folder, is_second in _folders(files, "memory"):
        name = "memory.max" if is_second else "memory.limit_in_bytes"
        text = files.text(f"{folder}/{name}") or ""  # "max" without a limit
        if text.isdigit() and int(text) < _NO_LIMIT_FROM_BYTES:
            limits.append(int(text))
    return min(limits, default=None)
