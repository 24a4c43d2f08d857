"""RDMATENSOR_LOG_LEVEL: which lines go to standard error."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

# Two processes' ends in one: that rank 1 is reached is an event of the level info.
MEET = """
from rdmatensor import Context

with Context() as ours, Context() as theirs:
    ours.add_job("job", b"secret", rank=0)
    theirs.add_job("job", b"secret", rank=1)
    ours.connect(theirs.address, job="job", rank=1).wait_ready(20)
"""


def lines_of(level: str) -> list[str]:
    environment = {**os.environ, "RDMATENSOR_LOOPBACK": "1", "RDMATENSOR_LOG_LEVEL": level}
    process = subprocess.run(
        [sys.executable, "-c", MEET],
        check=False, env=environment, capture_output=True, text=True, timeout=50,
    )  # fmt: skip
    assert process.returncode == 0, process.stderr
    return process.stderr.splitlines()


@pytest.mark.timeout(120)
def test_lines_up_to_the_level_are_there_and_no_others() -> None:
    seen = lines_of("info")
    assert all(re.match(r"rdmatensor\[\d+\] (ERROR|WARN|INFO) ", line) for line in seen), seen
    assert any(re.search(r" INFO rank 1 is reached over \w+ \(", line) for line in seen), seen
    assert lines_of("error") == []
