"""Training on rdmatensor equals training on Gloo, for random models and loops.

Seeds are fresh in each run; the output of a failure has them, with a command that repeats each.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SECONDS = 25.0  # of fresh seeds, for each mode and transport; the last case may take longer
FRESH = int.from_bytes(os.urandom(4), "little")
WAYS = [(mode, way) for mode in ("ddp", "ddp-view", "plan") for way in ("shm", "tcp")]


def fuzz(*arguments: str, timeout_s: float) -> None:
    command = [sys.executable, "-m", "tests.fuzz_training", *arguments]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=timeout_s, check=False
    )
    print(done.stdout, done.stderr)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"


@pytest.mark.slow
@pytest.mark.timeout(200)
@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_what_failed_once(transport: str) -> None:
    fuzz("--cases", str(HERE / "regressions.jsonl"), "--transport", transport, timeout_s=180.0)


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize(("mode", "transport"), WAYS)
def test_fresh_seeds_train_as_on_gloo(mode: str, transport: str) -> None:
    seeds = f"{FRESH}:{FRESH + 100_000}"
    ways = ("--mode", mode, "--transport", transport, "--seconds", str(SECONDS))
    fuzz("--seeds", seeds, *ways, timeout_s=380.0)


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize(("mode", "transport"), [("ddp-view", "tcp"), ("plan", "shm")])
def test_fresh_seeds_of_three_ranks_train_as_on_gloo(mode: str, transport: str) -> None:
    seeds = f"{FRESH}:{FRESH + 100_000}"
    ways = ("--mode", mode, "--transport", transport, "--seconds", "15", "--world", "3")
    fuzz("--seeds", seeds, *ways, timeout_s=380.0)
