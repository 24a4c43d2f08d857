"""The C programs of bench/floor and bench/core: building them, and running one."""

from __future__ import annotations

import functools
import os
import subprocess
from pathlib import Path

from bench.benchlib.machine import ROOT
from bench.benchlib.record import Record, parse

BUILD_DIR = ROOT / "build" / "bench"
_EXIT_SKIP = 77


class TooFewCores(Exception):
    """The program wants a core for each of its two processes."""


@functools.cache
def build() -> Path:
    """Build library and programs from this source tree; return their folder.

    RDMATENSOR_BENCH_PROGRAMS names a folder of programs that are built already.
    """
    given = os.environ.get("RDMATENSOR_BENCH_PROGRAMS")
    if given is not None:
        return Path(given)
    options = ["-DCMAKE_BUILD_TYPE=Release", "-DRDMATENSOR_BUILD_BENCH=ON"]
    _cmake(["-S", str(ROOT), "-B", str(BUILD_DIR), *options])
    _cmake(["--build", str(BUILD_DIR), "--parallel", "2"])
    return BUILD_DIR / "bench"


def _cmake(words: list[str]) -> None:
    done = subprocess.run(["cmake", *words], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"cmake {' '.join(words)}:\n{done.stdout[-4000:]}{done.stderr[-4000:]}")


def run(name: str, *arguments: str, timeout_s: float = 300.0) -> list[Record]:
    """Run a program to its end; return what it printed. Raises RuntimeError with its last words."""
    command = [str(build() / name), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=timeout_s)
    if done.returncode == _EXIT_SKIP:
        raise TooFewCores(done.stderr.strip())
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: status {done.returncode}: {done.stderr.strip()}")
    return parse(done.stdout)
