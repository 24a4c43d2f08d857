"""Jobs of several ranks, as the tests see them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
LAUNCHER = HERE / "launcher.py"
# For the launcher to import torch on a busy machine; with a job's own 30 s within a test's limit.
START_S = 28.0


@dataclass(frozen=True)
class Rank:
    """How one rank ended. exit: status, -signal, or None if it had to be ended."""

    number: int
    exit: int | None
    result: Any
    log: str


@dataclass
class Job:
    """Ranks that run; finish() waits for them."""

    process: subprocess.Popen[str]
    out: Path
    world: int
    timeout_s: float

    def finish(self) -> list[Rank]:
        try:
            words, _ = self.process.communicate(timeout=self.timeout_s + START_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            words, _ = self.process.communicate()
            raise AssertionError(f"the launcher hangs: {words}") from None
        assert self.process.returncode == 0, words
        exits = json.loads((self.out / "exits.json").read_text(encoding="utf-8"))
        return [self._rank(rank, exits[str(rank)]) for rank in range(self.world)]

    def _rank(self, rank: int, status: int | None) -> Rank:
        result = self.out / f"{rank}.json"
        log = (self.out / f"{rank}.log").read_text(encoding="utf-8", errors="replace")
        value = json.loads(result.read_text(encoding="utf-8")) if result.exists() else None
        return Rank(rank, status, value, log)


def start(
    role: str,
    world: int,
    out: Path,
    *,
    timeout_s: float = 30.0,
    environment: dict[str, str] | None = None,
    **arguments: object,
) -> Job:
    """Start a job; role is "module:function" of this folder."""
    out.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, str(LAUNCHER), role, "--world", str(world), "--out", str(out)]
    command += ["--timeout-s", str(timeout_s), "--arguments", json.dumps(arguments)]
    process = subprocess.Popen(
        command,
        env={**os.environ, "PYTHONUNBUFFERED": "1", **(environment or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return Job(process, out, world, timeout_s)


def run(role: str, world: int, out: Path, **options: Any) -> list[Rank]:
    """Run a job to its end."""
    return start(role, world, out, **options).finish()


def results(ranks: Sequence[Rank]) -> list[Any]:
    """Return what the ranks returned; all must have ended well."""
    bad = [f"rank {r.number} ended with {r.exit}:\n{r.log}" for r in ranks if r.exit != 0]
    assert not bad, "\n".join(bad)
    return [rank.result for rank in ranks]
