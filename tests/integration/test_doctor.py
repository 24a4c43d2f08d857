"""`rdmatensor doctor` as torchrun's program: every pair of ranks is tested, and rank 0 tells it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(sys.executable).parent / "rdmatensor"


@pytest.mark.timeout(120)
def test_the_doctor_under_torchrun_tests_every_pair() -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node=2", "--no-python", str(SCRIPT), "doctor"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "RDMATENSOR_LOOPBACK": "1"}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=100, check=False
    )

    lines = done.stdout.splitlines()
    is_broken = any(line.startswith("broken") for line in lines)
    assert (done.returncode != 0) == is_broken, done.stdout + done.stderr
    judged = [line for line in lines if re.match(r"(ok|slower) +[01] to [01] ", line)]
    assert sorted(line.split()[1] + line.split()[3] for line in judged) == ["01", "10"], done.stdout
    heads = [number for number, line in enumerate(lines) if line.startswith("row writes to column")]
    assert len(heads) == 1, done.stdout  # rank 0 alone tells
    (head,) = heads
    rows = lines[head + 2 : head + 4]
    cell = r"(shm|tcp|verbs) [\d.e+]+ [\d.e+]+"
    assert lines[head + 1].split() == ["0", "1"]
    assert re.fullmatch(rf"0 .*\) +- +{cell} *", rows[0]), rows
    assert re.fullmatch(rf"1 .*\) +{cell} +- *", rows[1]), rows
