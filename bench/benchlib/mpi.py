"""Open MPI: where it is, and the ranks that it starts."""

from __future__ import annotations

import functools
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from bench.benchlib import children
from bench.benchlib.pairs import words_of
from bench.benchlib.record import Record, parse

_BYTE_LAYERS = {"shm": "self,vader", "tcp": "self,tcp"}
_END_S = 10.0  # that mpirun has to end its ranks


@functools.cache
def why_missing() -> str:
    """Return why MPI cannot run here; empty where it can."""
    if shutil.which("mpirun") is None:
        return "no mpirun on the PATH"
    if "Open MPI" not in version():
        return f"mpirun is not Open MPI's: {version()}"
    return "" if importlib.util.find_spec("mpi4py") else "this interpreter has no module mpi4py"


@functools.cache
def version() -> str:
    """Return what mpirun says of itself; "absent" without one."""
    if shutil.which("mpirun") is None:
        return "absent"
    done = subprocess.run(
        ["mpirun", "--version"], capture_output=True, text=True, check=False, timeout=20.0
    )
    lines = done.stdout.splitlines()
    if done.returncode != 0 or not lines:
        return "unknown"
    return lines[0].removeprefix("mpirun ").replace("(Open MPI)", "Open MPI")


def waits(ranks: int) -> str:
    """Return how ranks wait: Open MPI always polls, and offers its core where they are more."""
    return "yields, oversubscribed" if ranks > len(os.sched_getaffinity(0)) else "spins"


def command(ranks: int, transport: str) -> list[str]:
    """Return mpirun and its options. The workers pin themselves, as those of others do."""
    is_over = waits(ranks) != "spins"
    settings = {
        "pml": "ob1",
        "btl": _BYTE_LAYERS[transport],
        "mpi_yield_when_idle": str(int(is_over)),
    }
    # Without it mpirun counts cores by its own rules, and may refuse.
    words = ["mpirun", "-n", str(ranks), "--bind-to", "none", "--oversubscribe"]
    if os.geteuid() == 0:
        words.append("--allow-run-as-root")
    return words + [word for pair in settings.items() for word in ("--mca", *pair)]


def run(
    worker: str, ranks: int, transport: str, options: Mapping[str, object], timeout_s: float
) -> list[Record]:
    """Run a worker's ranks; return what they wrote into out0, out1 ... of their folder.

    Raises RuntimeError with the last words if one fails or the time is over.
    """
    with tempfile.TemporaryDirectory(prefix="rdt-bench-") as name:
        folder = Path(name)
        program = [sys.executable, *words_of(worker, 0, name, options)]
        words = [*command(ranks, transport), *program]
        with (folder / "said").open("w", encoding="utf-8") as said:
            code = _wait(words, said.fileno(), timeout_s)
        if code != 0:
            last = (folder / "said").read_text(encoding="utf-8")[-2000:]
            raise RuntimeError(f"{' '.join(words)}: status {code}\n{last}")
        files = [folder / f"out{rank}" for rank in range(ranks)]
        return [record for file in files for record in parse(file.read_text(encoding="utf-8"))]


def _wait(words: list[str], said: int, timeout_s: float) -> int | None:
    """Return the exit status; None: the time was over. mpirun ends its ranks at its signal.

    It gets the signal also if this process dies: ranks that poll would keep the cores busy for
    ever.
    """
    with subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stdout=said,
        stderr=said,
        preexec_fn=children.tied(signal.SIGTERM),  # noqa: PLW1509  one system call
    ) as running:
        try:
            return running.wait(timeout_s)
        except subprocess.TimeoutExpired:
            running.send_signal(signal.SIGTERM)
            try:
                running.wait(_END_S)
            except subprocess.TimeoutExpired:
                running.kill()  # the ranks die with it
            return None
        except BaseException:
            running.kill()
            raise
