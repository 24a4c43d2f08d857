"""The C programs: building them, and running a sub-command of rdtperf, or another program."""

from __future__ import annotations

import functools
import os
import re
import resource
import shlex
import socket
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bench.benchlib import children, rig
from bench.benchlib.machine import ROOT
from bench.benchlib.record import Record, parse

BUILD_DIR = ROOT / "build" / "bench"
RIVALS_DIR = ROOT / "build" / "rivals"  # bench/rivals/grpc/setup.sh builds what is in it
GRPC_PARAMETERS = RIVALS_DIR / "libparameters.so"
_EXIT_SKIP = 77


class TooFewCores(RuntimeError):
    """The program has a core for each of its two processes, and there are fewer."""


@functools.cache
def build() -> Path:
    """Build library and programs from this source tree; return their folder.

    RDMATENSOR_BENCH_PROGRAMS names a folder of programs that are built already.
    """
    given = os.environ.get("RDMATENSOR_BENCH_PROGRAMS")
    if given is not None or rig.is_here():  # a guest has no compiler
        return Path(given or BUILD_DIR / "bench")
    options = ["-DCMAKE_BUILD_TYPE=Release", "-DRDMATENSOR_BUILD_BENCH=ON"]
    _cmake(["-S", str(ROOT), "-B", str(BUILD_DIR), *options])
    _cmake(["--build", str(BUILD_DIR), "--parallel", "2"])
    return BUILD_DIR / "bench"


def _cmake(words: list[str]) -> None:
    done = subprocess.run(["cmake", *words], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"cmake {' '.join(words)}:\n{done.stdout[-4000:]}{done.stderr[-4000:]}")


def build_copy_ring() -> Path:
    """Compile what bench/workers/copy_variant.py loads, where that is older than its sources."""
    support = ROOT / "bench" / "support"
    sources = [support / "copy_ring.c", support / "copy_ring.h"]
    library = BUILD_DIR / "libcopy_ring.so"
    newest = max(path.stat().st_mtime for path in sources)
    if library.exists() and library.stat().st_mtime > newest:
        return library
    library.parent.mkdir(parents=True, exist_ok=True)
    mine = library.with_suffix(f".{os.getpid()}")  # both ranks may be here
    words = [os.environ.get("CC", "cc"), "-std=c17", "-O3", "-fPIC", "-shared"]
    words += [f"-I{support}", f"-I{ROOT / 'csrc' / 'include'}", str(sources[0]), "-o", str(mine)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{shlex.join(words)}:\n{done.stderr[-4000:]}")
    mine.replace(library)
    return library


def run(
    name: str,
    *arguments: str,
    timeout_s: float = 300.0,
    environment: Mapping[str, str] | None = None,
) -> list[Record]:
    """Run a sub-command of rdtperf to its end; return its records.

    Raises RuntimeError with its last words.
    """
    return run_words([str(build() / "rdtperf"), name, *arguments], timeout_s, environment)


def run_words(
    command: list[str], timeout_s: float, environment: Mapping[str, str] | None = None
) -> list[Record]:
    """Run any program that prints lines of JSON."""
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout_s,
        env={**os.environ, **(environment or {})},
        preexec_fn=children.tied(),
    )
    if done.returncode == _EXIT_SKIP:
        raise TooFewCores(done.stderr.strip())
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: status {done.returncode}: {done.stderr.strip()}")
    try:
        return parse(done.stdout)
    except ValueError as error:
        raise RuntimeError(f"{' '.join(command)}: it printed no records: {error}") from error


def free_port() -> int:
    """Return a port of loopback that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _await_listener(port: int, timeout_s: float) -> None:
    """Wait until a process listens on loopback; looks into the kernel's table, without a call."""
    wanted = f":{port:04X} "
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        for table in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")):
            rows = table.read_text(encoding="utf-8").splitlines() if table.exists() else []
            if any(wanted in row and " 0A " in row for row in rows):  # 0A: it listens
                return
        time.sleep(0.01)
    raise RuntimeError(f"nothing listens on port {port}")


@dataclass(frozen=True, slots=True)
class Spent:
    """What a run of ucx_perftest printed, and the processor time of its client and its server."""

    output: str
    cpu_s: tuple[float, float]


def ucx_figures(output: str) -> list[float]:
    """Return the figures of its last line of CSV. Raises RuntimeError if there is none."""
    lines = [line for line in output.splitlines() if re.match(r"\s*\d+,\d", line)]
    if not lines:
        raise RuntimeError(f"ucx_perftest printed no figures: {output[-1000:]}")
    return [float(word) for word in lines[-1].split(",")]


def run_ucx(words: list[str], path: str, port: int, timeout_s: float) -> Spent:
    """Run both sides of ucx_perftest over a path (UCX_TLS), one pair at a time.

    Each has a core of its own, as the sides of rdtperf. Raises TooFewCores.
    """
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise TooFewCores("ucx_perftest needs 2 cores")
    command = ["ucx_perftest", "-p", str(port), "-f", "-v", *words]
    environment = {**os.environ, "UCX_TLS": path, "UCX_WARN_UNUSED_ENV_VARS": "n"}
    nowhere = subprocess.DEVNULL
    serving = [*command, "-c", str(cores[1])]
    with subprocess.Popen(
        serving,
        env=environment,
        stdout=nowhere,
        stderr=nowhere,
        preexec_fn=children.tied(),  # noqa: PLW1509  one system call
    ) as server:
        try:
            _await_listener(port, timeout_s)
            begun_s = _children_s()
            done = subprocess.run(
                [*command[:1], "127.0.0.1", *command[1:], "-c", str(cores[0])],
                env=environment,
                capture_output=True,
                text=True,
                check=False,
                timeout=timeout_s,
                preexec_fn=children.tied(),
            )
            client_s = _children_s() - begun_s
        finally:
            server.kill()
    if done.returncode != 0:
        said = done.stderr.strip() or done.stdout.strip()[-1000:]  # UCX tells its errors there
        raise RuntimeError(f"{' '.join(command)}: status {done.returncode}: {said}")
    return Spent(done.stdout, (client_s, _children_s() - begun_s - client_s))


def _children_s() -> float:
    """Processor time of the children that have ended and were waited for."""
    use = resource.getrusage(resource.RUSAGE_CHILDREN)
    return use.ru_utime + use.ru_stime
