"""Limits of control groups on this process, read as csrc/base/system/cgroup.c does."""

from __future__ import annotations

from collections.abc import Iterator

from rdmatensor.doctor.machine import Machine

# Version 1 writes "no limit" as the largest number of pages.
_NO_LIMIT_FROM_BYTES = 1 << 62


def _mounts(machine: Machine, controller: str) -> Iterator[tuple[str, str, bool]]:
    """Yield (root, mount point, whether it is version 2) of hierarchies that may limit it."""
    for line in (machine.text("proc/self/mountinfo") or "").splitlines():
        head, _, tail = line.partition(" - ")
        words, kind = head.split(), tail.split()
        if len(words) < 5 or len(kind) < 3:
            continue
        if kind[0] == "cgroup2" or (kind[0] == "cgroup" and controller in kind[2].split(",")):
            yield words[3], words[4].lstrip("/"), kind[0] == "cgroup2"


def _own(machine: Machine, controller: str, *, is_second: bool) -> str | None:
    for line in (machine.text("proc/self/cgroup") or "").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if (number == "0") if is_second else (controller in controllers.split(",")):
            return path
    return None


def _folders(machine: Machine, controller: str) -> Iterator[tuple[str, bool]]:
    """Yield the folder of the process's group and of each ancestor that is visible."""
    for root, point, is_second in _mounts(machine, controller):
        path = _own(machine, controller, is_second=is_second)
        if path is None:
            continue
        if path == root or path.startswith(root.rstrip("/") + "/"):
            path = path[len(root.rstrip("/")) :]
        parts = [part for part in path.split("/") if part]
        for count in range(len(parts), -1, -1):
            yield "/".join([point, *parts[:count]]), is_second


def cpu_quota(machine: Machine) -> float | None:
    """Return how many cores' time the process may use; None without a quota."""
    quotas: list[float] = []
    for folder, is_second in _folders(machine, "cpu"):
        if is_second:
            words = (machine.text(f"{folder}/cpu.max") or "").split()
        else:
            files = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
            words = [machine.text(f"{folder}/{name}") or "" for name in files]
        if len(words) == 2 and words[0].isdigit() and words[1].isdigit() and int(words[1]) > 0:
            quotas.append(int(words[0]) / int(words[1]))
    return min(quotas, default=None)


def stopped(machine: Machine) -> tuple[int, float] | None:
    """Return how often a quota has stopped the process's own group, and for how many seconds."""
    for folder, is_second in _folders(machine, "cpu"):
        words = (machine.text(f"{folder}/cpu.stat") or "").split()
        found = dict(zip(words[::2], words[1::2], strict=False))
        name, unit = ("throttled_usec", 1e6) if is_second else ("throttled_time", 1e9)
        if found.get("nr_throttled", "").isdigit() and found.get(name, "").isdigit():
            return int(found["nr_throttled"]), int(found[name]) / unit
    return None


def memory_limit_bytes(machine: Machine) -> int | None:
    """Return the smallest limit of the process's groups; None without a limit."""
    limits: list[int] = []
    for folder, is_second in _folders(machine, "memory"):
        limit = machine.number(f"{folder}/{'memory.max' if is_second else 'memory.limit_in_bytes'}")
        if limit is not None and limit < _NO_LIMIT_FROM_BYTES:
            limits.append(limit)
    return min(limits, default=None)
