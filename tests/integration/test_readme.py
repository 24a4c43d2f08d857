"""The torch programs of README.md run as they are printed; tests/contract has that of slots."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

README = (Path(__file__).resolve().parents[2] / "README.md").read_text(encoding="utf-8")
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1")


def program(before: str) -> str:
    """Return the first Python program after a text."""
    return README.split(before, 1)[1].split("```python\n", 1)[1].split("```", 1)[0]


def printed(script: Path, *words: str) -> str:
    """Return what a script prints over shared memory.

    A line and its end may be two writes, between which the other rank may print.
    """
    done = subprocess.run(
        [sys.executable, *words, str(script)],
        cwd=script.parent,
        env={**os.environ, "RDMATENSOR_TRANSPORT": "shm", "OMP_NUM_THREADS": "1"},
        check=False,
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_hello_prints_what_the_readme_says(tmp_path: Path) -> None:
    script = tmp_path / "hello.py"
    script.write_text(program("examples/hello.py"), encoding="utf-8")
    (said,) = re.findall(r"It prints `rank 0: (.*?)` and the same for rank 1", README)
    found = re.findall(r"rank \d: \[[\d., ]*\]", printed(script))
    assert sorted(found) == [f"rank 0: {said}", f"rank 1: {said}"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ddp.py", "planned.py"])
def test_both_ranks_of_a_training_end_with_the_same_model(name: str, tmp_path: Path) -> None:
    script = tmp_path / name
    script.write_text(program(f"torchrun --nproc-per-node 2 {name}"), encoding="utf-8")
    first, second = re.findall(r"-?\d+\.\d{6}", printed(script, *TORCHRUN, "--nproc-per-node", "2"))
    assert first == second
    assert float(first) != 0.0
