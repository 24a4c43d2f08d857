"""The C programs: building them, and running a sub-command of rdtperf, or another program."""

from __future__ import annotations

import functools
import os
import re
import resource
import shlex
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bench.benchlib import children, rig
from bench.benchlib.machine import ROOT
from bench.benchlib.record import Record, parse

BUILD_DIR = ROOT / "build" / "bench"
PEERS_DIR = ROOT / "build" / "peers"  # bench/peers/grpc/setup.sh builds what is in it
GRPC_PARAMETERS = PEERS_DIR / "libparameters.so"
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
    support = ROOT / "bench" / "core"
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


def await_listener(port: int, server: subprocess.Popen[bytes], timeout_s: float) -> None:
    """Wait until a server listens; looks into the kernel's table, since it takes the first call."""
    tables = [table for table in map(Path, ("/proc/net/tcp", "/proc/net/tcp6")) if table.exists()]
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s and server.poll() is None:
        for row in (row.split() for table in tables for row in table.read_text().splitlines()):
            if row[1].endswith(f":{port:04X}") and row[3] == "0A":  # the state of a listener
                return
        time.sleep(0.01)
    raise RuntimeError(f"nothing listens on port {port}")


@dataclass(frozen=True, slots=True)
class Spent:
    """What a client printed, and the processor time of the client and its server."""

    output: str
    cpu_s: tuple[float, float]


def run_both(
    server_words: list[str],
    client_words: list[str],
    port: int,
    timeout_s: float,
    environment: Mapping[str, str] | None = None,
) -> Spent:
    """Run a server of this host, and its client to the end. Raises RuntimeError."""
    whole = {**os.environ, **(environment or {})}
    with (
        tempfile.TemporaryFile() as words,
        subprocess.Popen(
            server_words,
            env=whole,
            stdout=words,
            stderr=words,
            preexec_fn=children.tied(),  # noqa: PLW1509  one system call
        ) as server,
    ):
        try:
            try:
                await_listener(port, server, timeout_s)
            except RuntimeError as error:
                words.seek(0)
                last = words.read()[-1000:].decode(errors="replace")
                raise RuntimeError(f"{' '.join(server_words)}: {error}: {last}") from error
            begun_s = _children_s()
            done = subprocess.run(
                client_words,
                env=whole,
                capture_output=True,
                text=True,
                check=False,
                timeout=timeout_s,
                preexec_fn=children.tied(),
            )
            client_s = _children_s() - begun_s
        finally:
            server.kill()
    if done.returncode != 0:  # UCX and perftest have some of their errors on the standard output
        said = f"{done.stdout.strip()[-1000:]} {done.stderr.strip()}"
        raise RuntimeError(f"{' '.join(client_words)}: status {done.returncode}: {said}")
    return Spent(done.stdout, (client_s, _children_s() - begun_s - client_s))


def _children_s() -> float:
    """Processor time of the children that have ended and were waited for."""
    use = resource.getrusage(resource.RUSAGE_CHILDREN)
    return use.ru_utime + use.ru_stime


def ucx_figures(output: str) -> list[float]:
    """Return the figures of its last line of CSV. Raises RuntimeError if there is none."""
    lines = [line for line in output.splitlines() if re.match(r"\s*\d+,\d", line)]
    if not lines:
        raise RuntimeError(f"ucx_perftest printed no figures: {output[-1000:]}")
    return [float(word) for word in lines[-1].split(",")]


def run_ucx(words: list[str], path: str, port: int, timeout_s: float) -> Spent:
    """Run both sides of ucx_perftest over a path (UCX_TLS), each on a core of its own.

    Raises TooFewCores.
    """
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise TooFewCores("ucx_perftest needs 2 cores")
    more = ["-p", str(port), "-f", "-v", *words, "-c"]
    return run_both(
        ["ucx_perftest", *more, str(cores[1])],
        ["ucx_perftest", "127.0.0.1", *more, str(cores[0])],
        port,
        timeout_s,
        {"UCX_TLS": path, "UCX_WARN_UNUSED_ENV_VARS": "n"},
    )
