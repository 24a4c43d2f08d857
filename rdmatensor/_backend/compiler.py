"""Runs the user's C++ compiler: sources of a folder become one module. Knows nothing of torch."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path

from rdmatensor._backend import cgroup

_CANDIDATES = ("c++", "g++", "clang++")
_FLAGS = (
    *("-std=c++20", "-O2", "-DNDEBUG", "-fPIC", "-pthread"),
    *("-fvisibility=hidden", "-fvisibility-inlines-hidden", "-D_GNU_SOURCE"),
)
# What the compiler needs for one file that includes all of torch.
_FILE_BYTES = 1 << 31
_VERSION_S = 60.0  # for a compiler to say its version
_NOTES = 8  # times that progress is said


class CompileError(Exception):
    """The compiler failed. The text is what it said, after the command."""


@dataclass(frozen=True, slots=True)
class Module:
    """What to compile: the `*.cpp` in `sources`. They may include files below; `*.a` are linked."""

    name: str
    sources: Path
    includes: tuple[Path, ...]
    foreign_includes: tuple[Path, ...] = ()
    defines: tuple[str, ...] = ()
    library_folders: tuple[Path, ...] = ()
    libraries: tuple[str, ...] = ()

    def all_files(self) -> Iterator[Path]:
        """Yield the files below `sources`, sorted."""
        yield from sorted(path for path in self.sources.rglob("*") if path.is_file())


@dataclass(slots=True)
class Compiler:
    """A C++ compiler: the words of its command."""

    command: tuple[str, ...]
    _running: set[subprocess.Popen[str]] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _is_stopped: bool = False

    @property
    def words(self) -> str:
        """The command as a user types it."""
        return shlex.join(self.command)

    def make(self, module: Module, work: Path, say: Callable[[str], None]) -> Path:
        """Compile and link the module.

        Args:
            module: What to compile.
            work: An empty folder for what arises; the caller removes it.
            say: Called with words of progress, a few times.

        Returns:
            The module's path, in `work`.

        Raises:
            CompileError: The compiler failed.
        """
        flags = self._flags(module)
        sources = sorted(module.sources.glob("*.cpp"))
        objects = [work / f"{number}.o" for number in range(len(sources))]
        with ThreadPoolExecutor(_files_at_once()) as pool:
            waiting = [
                pool.submit(self._run, *flags, "-c", str(source), "-o", str(target))
                for source, target in zip(sources, objects, strict=True)
            ]
            try:
                for done, future in enumerate(as_completed(waiting), 1):
                    future.result()
                    if done * _NOTES // len(sources) > (done - 1) * _NOTES // len(sources):
                        say(f"{done} of {len(sources)} files compiled")
            except BaseException:
                self._stop()
                raise
        return self._link(module, objects, work)

    def _link(self, module: Module, objects: list[Path], work: Path) -> Path:
        made = work / f"{module.name}.so"
        archives = [str(path) for path in module.all_files() if path.suffix == ".a"]
        self._run(
            # An archive may hold bytecode of another compiler, which this one cannot read.
            *("-shared", "-pthread", "-fno-lto", "-Wl,-z,now", "-o", str(made)),
            *(str(one) for one in objects),
            *archives,
            *(f"-L{one}" for one in module.library_folders),
            *(f"-l{one}" for one in module.libraries),
        )
        return made

    def _flags(self, module: Module) -> list[str]:
        flags = [*_FLAGS, *(f"-D{one}" for one in module.defines)]
        flags += [f"-I{one}" for one in module.includes]
        for one in module.foreign_includes:
            flags += ["-isystem", str(one)]
        return flags

    def _run(self, *words: str) -> None:
        command = [*self.command, *words]
        with self._lock:
            if self._is_stopped:
                return
            running = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                start_new_session=True,  # its parts, which do the work, are ended with it
            )
            self._running.add(running)
        try:
            said, _ = running.communicate()
        except BaseException:  # Ctrl-C, while it links
            self._stop()
            raise
        with self._lock:
            self._running.discard(running)
        if running.returncode != 0 and not self._is_stopped:
            raise CompileError(f"{shlex.join(command)}\nstatus {running.returncode}\n{said}")

    def _stop(self) -> None:
        """End what runs: another file failed, or Ctrl-C."""
        with self._lock:
            self._is_stopped = True
            for running in self._running:
                if running.poll() is None:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(running.pid, signal.SIGTERM)


def find_compiler() -> Compiler | None:
    """Return the compiler of $CXX, or the first of c++, g++ and clang++; None if there is none."""
    named = _named()
    for command in [named] if named else [[one] for one in _CANDIDATES]:
        if _does_run(command):
            return Compiler(tuple(command))
    return None


def _named() -> list[str]:
    return shlex.split(os.environ.get("CXX", ""))


def _does_run(command: list[str]) -> bool:
    if shutil.which(command[0]) is None:
        return False
    try:
        said = subprocess.run(
            [*command, "--version"], capture_output=True, timeout=_VERSION_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return said.returncode == 0


def what_is_missing() -> str | None:
    """Return what a module cannot be compiled without and is absent, in words; None if nothing."""
    if find_compiler() is None:
        if _named():
            return f"$CXX, {shlex.join(_named())!r}, does not run"
        return "a C++ compiler to make one is missing"
    if not (Path(sysconfig.get_path("include")) / "Python.h").exists():
        return "Python.h, which making one needs, is absent"
    return None


def what_to_install() -> str:
    """Return what brings all that is needed, as an order."""
    python = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    return (
        f"install a C++ compiler and Python's headers (Debian, Ubuntu: "
        f"apt-get install g++ {python}-dev)"
    )


def _files_at_once() -> int:
    """Return how many files to compile at once, by cores and by memory."""
    files = cgroup.RootFiles()
    found = re.search(r"^MemAvailable: +(\d+) kB$", files.text("proc/meminfo") or "", re.MULTILINE)
    available_bytes = int(found[1]) * 1024 if found else _FILE_BYTES
    limit_bytes = cgroup.memory_limit_bytes(files)
    usable_bytes = min(available_bytes, limit_bytes or available_bytes)
    return max(1, min(len(os.sched_getaffinity(0)), usable_bytes // _FILE_BYTES))
