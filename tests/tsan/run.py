"""Run two ranks of torch on a backend that is built with ThreadSanitizer, over each path.

Usage: run.py PACKAGES CANARY: a folder with that build as `rdmatensor`, and canary.c built as a
library. By the interpreter of an environment with torch; libtsan is preloaded, as neither Python
nor torch is built with it. Before all else a race on purpose shows that one would be seen.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

HERE = Path(__file__).parent
JOB_LIMIT_S = 300.0  # several times what a job takes on two busy cores
WORLD = 2
REPORT = "WARNING: ThreadSanitizer"
PATHS = {
    "shm": {"RDMATENSOR_TRANSPORT": "shm"},
    "tcp": {"RDMATENSOR_TRANSPORT": "tcp"},
    "shm, messages, sums": {"RDMATENSOR_ALGO": "messages", "RDMATENSOR_VERIFY": "crc32c"},
}


def environment(packages: Path, more: Mapping[str, str]) -> dict[str, str]:
    """Return that of a process that runs under ThreadSanitizer, and takes ours from `packages`."""
    libtsan = subprocess.run(
        ["gcc", "-print-file-name=libtsan.so"], capture_output=True, text=True, check=True
    ).stdout.strip()
    options = f"ignore_noninstrumented_modules=1 suppressions={HERE / 'suppressions.txt'}"
    return {
        **os.environ,
        "LD_PRELOAD": libtsan,
        "TSAN_OPTIONS": options,
        "PYTHONPATH": f"{packages}:{sysconfig.get_path('purelib')}",
        **more,
    }


def start(words: Sequence[str], log: Path, environ: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start Python without site, whose hooks would find the package that is installed."""
    with log.open("wb") as out:
        return subprocess.Popen(
            ["setarch", "-R", sys.executable, "-S", *words],
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
        )


def finish(processes: Sequence[subprocess.Popen[bytes]]) -> list[int]:
    """Return how they ended, -9 for one that had to be ended."""
    end_s = time.monotonic() + JOB_LIMIT_S
    for process in processes:
        try:
            process.wait(max(0.0, end_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    return [process.returncode for process in processes]


def sees_a_race(packages: Path, canary: str, folder: Path) -> bool:
    """Whether a race on purpose is reported."""
    log = folder / "canary.log"
    words = [str(HERE / "canary.py"), canary]
    finish([start(words, log, environment(packages, {}))])
    if REPORT in log.read_text(errors="replace"):
        return True
    print(f"error: ThreadSanitizer sees no race:\n{log.read_text(errors='replace')}")
    return False


def is_clean(name: str, packages: Path, folder: Path) -> bool:
    """Run a job; say how it ended."""
    folder.mkdir()
    logs = [folder / f"{rank}.log" for rank in range(WORLD)]
    began_s = time.monotonic()
    environ = environment(packages, PATHS[name])
    job = [str(HERE / "job.py")]
    rest = [str(folder / "meet"), str(packages)]
    ends = finish([start([*job, str(rank), *rest], log, environ) for rank, log in enumerate(logs)])
    words = [log.read_text(errors="replace") for log in logs]
    is_good = ends == [0] * WORLD and not any(REPORT in text for text in words)
    took_s = time.monotonic() - began_s
    print(f"tsan: two ranks, {name}: {'ok' if is_good else 'FAILED'} in {took_s:.0f} s", flush=True)
    if not is_good:
        for rank, text in enumerate(words):
            print(f"-- rank {rank} ended with {ends[rank]}:\n{text}")
    return is_good


def main() -> int:
    """Return the exit status."""
    packages = Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if not sees_a_race(packages, sys.argv[2], folder):
            return 1
        results = [
            is_clean(path, packages, folder / str(number)) for number, path in enumerate(PATHS)
        ]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
