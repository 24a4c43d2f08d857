"""torchrun restarts the workers of a job of which one has died, and the training goes on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.turns("transport")

WORKER = Path(__file__).parent / "elastic_train.py"
STEPS = 6
KILL_AT = 3


def run(folder: Path, kill_at: int, transport: str) -> None:
    """Run two workers to the end; torchrun starts them again at most once."""
    folder.mkdir()
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node=2", "--max-restarts=1", "--monitor-interval=0.2"]
    command += [str(WORKER), str(folder), str(STEPS), str(kill_at)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "RDMATENSOR_TRANSPORT": transport}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The curve of a training in which nobody dies."""
    folder = tmp_path_factory.mktemp("elastic") / "whole"
    run(folder, 0, "shm")
    return (folder / "curve").read_text().splitlines()


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_killed_workers_training_resumes_with_the_same_curve(
    tmp_path: Path, transport: str, whole: list[str]
) -> None:
    folder = tmp_path / transport
    run(folder, KILL_AT, transport)

    assert len(whole) == STEPS
    assert (folder / "curve").read_text().splitlines() == whole
    error = (folder / "survivor-0").read_text()
    assert "rank 1" in error, error
    assert not (folder / "survivor-1").exists()
