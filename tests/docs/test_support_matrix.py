"""The support matrix of torch.distributed in the reference says what works, no more and no less."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import generated
import pytest
from page_blocks import Page

HERE = Path(__file__).resolve().parent


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_every_operation_and_type_works_as_the_table_says(tmp_path: Path) -> None:
    out = tmp_path / "matrix.json"
    script = str(HERE / "support_ranks.py")
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", script, str(out)],
        env=Page(tmp_path).environment(),
        check=False,
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert json.loads(out.read_text()) == json.loads(generated.MATRIX.read_text(encoding="utf-8"))
