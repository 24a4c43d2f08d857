"""Sixteen times as many ranks as cores: they come together, sum, and miss the one that dies."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

MANY = Path(__file__).with_name("many_ranks.py")
SIZE = 32


@pytest.mark.timeout(150)
def test_thirty_two_ranks_on_two_cores(transport: str, tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "RDMATENSOR_TRANSPORT": transport,
        "RDMATENSOR_TIMEOUT_S": "60",
        "RDMATENSOR_ARENA_MIB": "4",
    }
    ranks = subprocess.run(
        [sys.executable, "-X", "faulthandler", str(MANY), str(SIZE), str(tmp_path), "2"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=140,
        check=False,
    )
    assert ranks.returncode == 0, ranks.stderr[-4000:]
    survivors = json.loads(ranks.stdout)
    assert [one["named"] for one in survivors] == [SIZE - 1] * (SIZE - 1)
    assert max(one["seconds"] for one in survivors) < 20.0  # two cores for all of them
