"""`rdmatensor bench` as a user calls it: the smallest measurement there is, and its comparison."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def _rdmatensor(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rdmatensor", *words]
    return subprocess.run(
        command, cwd=ROOT / "tests", capture_output=True, text=True, check=False, timeout=100
    )


@pytest.mark.timeout(120)
def test_the_smallest_measurement(tmp_path: Path) -> None:
    kept = str(tmp_path / "kept.json")
    options = ["--quick", "--transport", "shm", "--ranks", "2", "--sizes", "1024", "--rounds", "1"]
    done = _rdmatensor("bench", "collectives", *options, "--peers", "gloo", "--out", kept)
    assert done.returncode == 0, done.stderr
    rows = [line for line in done.stdout.splitlines() if "shm, 2 ranks" in line]
    assert len(rows) == 2 * 6, done.stdout  # all operations, of two backends
    compared = _rdmatensor("bench", "compare", kept, kept)
    assert compared.returncode == 0, compared.stderr
    assert compared.stdout.splitlines()[-1] == "6 too few turns"
