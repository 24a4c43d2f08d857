"""What machine this is, and how busy others keep it."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from bench.benchlib import rig
from bench.benchlib.record import Record

ROOT = Path(__file__).resolve().parents[2]
# What a figure is of: the library and what measures it, without what a run itself writes.
_MEASURED = ("csrc", "rdmatensor", "graph_analysis", "bench", "CMakeLists.txt", "pyproject.toml")
_WRITTEN = (":(exclude)bench/results", ":(exclude,glob)bench/**/*.json")
LINK = "THROTTLE_RATE"  # of the link that ci/throttle.sh made, if any
_PACKAGES = ("rdmatensor", "torch", "numpy", "cffi", "grpcio", "mpi4py")


def stamp(versions: Mapping[str, str] | None = None) -> Record:
    """Return what a figure needs to be understood: processor, cores, kernel, versions, commit.

    versions: of what else takes part.
    """
    return {
        "processor": _field(Path("/proc/cpuinfo"), "model name"),
        "family_model": "/".join(
            _field(Path("/proc/cpuinfo"), key) for key in ("cpu family", "model", "stepping")
        ),
        "is_virtual": "hypervisor" in _field(Path("/proc/cpuinfo"), "flags"),
        "cores": len(os.sched_getaffinity(0)),
        "memory": _field(Path("/proc/meminfo"), "MemTotal"),
        "huge_pages": _first_line(Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")),
        "kernel": platform.release(),
        "loopback_mtu": _first_line(Path("/sys/class/net/lo/mtu")),
        "rdma_devices": _names_in(Path("/sys/class/infiniband")),
        "congestion_control": _first_line(Path("/proc/sys/net/ipv4/tcp_congestion_control")),
        "libc": " ".join(platform.libc_ver()),
        "python": platform.python_version(),
        "versions": {**{name: _version(name) for name in _PACKAGES}, **(versions or {})},
        "commit": commit_of(ROOT),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        **({"link_rate": os.environ[LINK]} if LINK in os.environ else {}),
        **({"rig": rig.device(), "hw_counters": rig.counters()} if rig.is_here() else {}),
    }


def available_bytes() -> int:
    """Return how much memory this machine could give now."""
    return int(_field(Path("/proc/meminfo"), "MemAvailable").split()[0]) * 1024


def _field(path: Path, key: str) -> str:
    for line in path.read_text(encoding="utf-8").splitlines():
        name, colon, value = line.partition(":")
        if colon and name.strip() == key:
            return value.strip()
    return "unknown"


def _first_line(path: Path) -> str:
    return path.read_text(encoding="utf-8").strip() if path.exists() else "unknown"


def _names_in(path: Path) -> str:
    return ", ".join(sorted(one.name for one in path.iterdir())) if path.exists() else "none"


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "absent"


def commit_of(root: Path) -> str:
    """Return the commit of a checkout, and whether what is measured has changes next to it."""
    git = ["git", "-c", f"safe.directory={root}"]  # root asks in the rig, whosever the files are
    changes = ["status", "--porcelain", "--untracked-files=all", "--", *_MEASURED, *_WRITTEN]
    answers = [
        subprocess.run([*git, *words], cwd=root, capture_output=True, text=True, check=False)
        for words in (["rev-parse", "--short=12", "HEAD"], changes)
    ]
    if any(answer.returncode != 0 for answer in answers):
        return "unknown"
    return answers[0].stdout.strip() + (" with changes" if answers[1].stdout.strip() else "")


class Watch:
    """Measures, while a child of this process runs, how many cores others keep busy."""

    def __init__(self) -> None:
        self.foreign_cpus = 0.0
        self.seconds = 0.0

    def __enter__(self) -> Watch:
        self._began_s = time.monotonic()
        self._busy_s = rig.busy_s()
        self._own_s = _own_s()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.monotonic() - self._began_s
        foreign_s = (rig.busy_s() - self._busy_s) - (_own_s() - self._own_s)
        self.foreign_cpus = max(0.0, foreign_s / self.seconds)


def _own_s() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
