"""The machine as the doctor's checks see it: files below one root, settings, and timings.

Checks access nothing else, so that a test can inject any fault in a folder of files.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rdmatensor.config import Settings
from rdmatensor.doctor import wakeups

LIBRARY = "libibverbs.so.1"
CAP_IPC_LOCK = 14


def find_library() -> str:
    """Load libibverbs and return the path of its file; OSError if it cannot be loaded."""
    ctypes.CDLL(LIBRARY)
    for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
        path = line.partition("/")[2]
        if Path(path).name.startswith("libibverbs.so"):
            return str(Path("/", path).resolve())
    raise OSError(f"{LIBRARY} was loaded, but is not among the files that are mapped")


@dataclass(frozen=True)
class Machine:
    """Files and settings. Paths have no leading slash: "sys/class/infiniband".

    native: the RDMATENSOR_* variables that the C library reads itself.
    plan_bytes: size of a plan's arena; 0 without a plan.
    library: returns the path of libibverbs, or raises OSError with the loader's message.
    wake_up_us: times a wake-up, see wakeups.median_us().
    """

    root: Path = Path("/")
    settings: Settings = field(default_factory=Settings)
    native: Mapping[str, str] = field(default_factory=dict)
    plan_bytes: int = 0
    library: Callable[[], str] = find_library
    wake_up_us: Callable[[], float] = wakeups.median_us

    @property
    def arena_bytes(self) -> int:
        """The size that the arena soon has: one chunk of it, or as much as the plan needs."""
        return max(self.settings.arena_mib << 20, self.plan_bytes)

    def text(self, path: str) -> str | None:
        """Return a file's content without surrounding spaces; None if it cannot be read.

        sysfs answers EINVAL for a hole in a table: being unreadable is an answer there.
        """
        try:
            return (self.root / path).read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            return None

    def data(self, path: str) -> bytes:
        """Return a file's bytes; empty if it cannot be read."""
        try:
            return (self.root / path).read_bytes()
        except OSError:
            return b""

    def number(self, path: str) -> int | None:
        """Return the first number in a file; None without one."""
        found = re.search(r"-?\d+", self.text(path) or "")
        return int(found.group()) if found else None

    def names(self, path: str) -> list[str]:
        """Return the names in a folder, numbers in numeric order; empty if it is absent."""
        try:
            names = [child.name for child in (self.root / path).iterdir()]
        except OSError:
            return []
        return sorted(names, key=lambda name: (len(name), name) if name.isdigit() else (0, name))

    def has(self, path: str) -> bool:
        """Whether the file exists."""
        return (self.root / path).exists()

    def may_open(self, path: str) -> bool:
        """Whether this user may read and write a file."""
        return os.access(self.root / path, os.R_OK | os.W_OK)

    def real(self, path: str) -> str:
        """Return the path with all links resolved, without a leading slash."""
        return str((self.root / path).resolve().relative_to(self.root.resolve()))

    # ---- the process ---------------------------------------------------------------------------

    def limit(self, name: str) -> int | None:
        """Return a soft limit of this process as /proc names it; None: unlimited, or unknown."""
        found = re.search(rf"^{name}\s+(\S+)", self.text("proc/self/limits") or "", re.MULTILINE)
        return int(found.group(1)) if found and found.group(1).isdigit() else None

    def status(self, name: str) -> str:
        """Return a line of /proc/self/status; "" where it has none."""
        found = re.search(rf"^{name}:\s*(.*)$", self.text("proc/self/status") or "", re.MULTILINE)
        return found.group(1).strip() if found else ""

    @property
    def may_lock(self) -> bool:
        """Whether limits on locked memory do not apply to this process."""
        found = re.fullmatch(r"[0-9a-f]+", self.status("CapEff"))
        return found is not None and bool(int(found.group(), 16) >> CAP_IPC_LOCK & 1)

    @property
    def cpus(self) -> list[int]:
        """The CPUs that this process may run on."""
        return numbers_of(self.status("Cpus_allowed_list"))


def numbers_of(text: str) -> list[int]:
    """Read a list in the kernel's format, "0-3,8"; ignores other text."""
    found: list[int] = []
    for first, last in re.findall(r"(\d+)(?:-(\d+))?", text):
        found.extend(range(int(first), int(last or first) + 1))
    return found
