"""The processes of a worker: a module of bench/workers, once for each rank."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from bench.benchlib import children
from bench.benchlib.machine import ROOT
from bench.benchlib.record import Record, parse

WORKERS = ROOT / "bench" / "workers"


def words_of(worker: str, rank: int, folder: str, options: Mapping[str, object]) -> list[str]:
    """Return what an interpreter runs for one rank."""
    return [str(WORKERS / "run.py"), worker, str(rank), folder, json.dumps(options)]


def run_ranks(
    worker: str,
    size: int,
    options: Mapping[str, object],
    *,
    python: Path | None = None,
    environment: Mapping[str, str] | None = None,
    timeout_s: float = 120.0,
    link: str = "",
) -> list[Record]:
    """Run ranks 0 to size - 1 of a worker with a folder of their own; return what all printed.

    link: as 500mbit: each rank is a host with a link of this rate (ci/throttle.sh).
    Raises RuntimeError with the workers' last words if one fails or the time is over.
    """
    interpreter = sys.executable if python is None else str(python)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rdt-bench-")))
        files = [
            (folder / f"out{rank}", folder / f"err{rank}") for rank in range(size)
        ]  # not pipes: no process reads while they run
        commands = [
            [interpreter, *words_of(worker, rank, str(folder), options)] for rank in range(size)
        ]
        if link:
            files.append((folder / "out", folder / "err"))  # of the script that starts them
            commands = [_on_hosts(link, size, commands[0])]
        ranks: list[subprocess.Popen[bytes]] = []
        stack.callback(_end_all, ranks)  # and who is not there yet when a signal comes
        for words, (out, err) in zip(commands, files[-len(commands) :], strict=True):
            handles = [stack.enter_context(path.open("w", encoding="utf-8")) for path in (out, err)]
            ranks.append(
                subprocess.Popen(
                    words,
                    stdin=subprocess.DEVNULL,
                    stdout=handles[0],
                    stderr=handles[1],
                    env={**os.environ, **(environment or {})},
                    preexec_fn=children.tied(),  # noqa: PLW1509  one system call
                )
            )
        codes = _wait_all(ranks, timeout_s)
        texts = [[_text_of(path) for path in pair] for pair in files]
    if codes != [0] * len(commands):
        words_said = "\n".join(f"rank {rank}: {err[-2000:]}" for rank, (_, err) in enumerate(texts))
        raise RuntimeError(f"{worker}, {dict(options)}: status {codes}\n{words_said}")
    return [record for out, _ in texts for record in parse(out)]


def _on_hosts(rate: str, hosts: int, command: Sequence[str]) -> list[str]:
    """Return what runs a rank on each of several hosts; command: rank 0's."""
    interpreter, script, worker, _, folder, options = command
    shell = 'exec "$1" "$2" "$3" "$RANK" "$4" "$5" >"$4/out$RANK" 2>"$4/err$RANK"'
    throttle = ("bash", str(ROOT / "ci" / "throttle.sh"), rate, "--hosts", str(hosts), "--")
    return [*throttle, "sh", "-c", shell, "sh", interpreter, script, worker, folder, options]


def _text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""


def _wait_all(ranks: list[subprocess.Popen[bytes]], timeout_s: float) -> list[int | None]:
    """Return all exit codes; None: still running at the end of the time, or once one failed."""
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        codes = [rank.poll() for rank in ranks]
        if None not in codes:
            return codes
        if any(code not in (None, 0) for code in codes):
            deadline_s = min(deadline_s, time.monotonic() + 2.0)  # the others may say why
        time.sleep(0.02)
    return [rank.poll() for rank in ranks]


def _end_all(ranks: list[subprocess.Popen[bytes]]) -> None:
    for rank in ranks:
        if rank.poll() is None:
            rank.kill()
        rank.wait()
