"""Every contestant of `rdmatensor bench models` trains, and arrives at the same parameters."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2]))

from bench.benchlib.pairs import run_ranks
from bench.benchlib.record import Record, number
from bench.suite.models import CONTESTANTS, worker_turns

ROOT = Path(__file__).resolve().parents[2]
STEPS = 2


def _train(tmp_path: Path, turns: list[tuple[str, str]], ranks: int = 2) -> tuple[Record, ...]:
    about, *found = run_ranks(
        "models",
        1,
        *("--model", "fcn5", "--divisor", "64", "--steps", str(STEPS), "--ranks", str(ranks)),
        *("--kept", str(tmp_path), "--patience", "40"),
        *("--turns", ",".join(f"{who}:{path}" for who, path in turns)),
        timeout_s=140.0,
    )
    assert about["parameter_bytes"] == 253_480
    return tuple(found)


@pytest.mark.timeout(150)
def test_all_contestants_train_a_small_model(tmp_path: Path) -> None:
    found = _train(tmp_path, worker_turns(("shm",), {"copies", "gloo", "grpc-python", "floor"}))
    assert [one["contestant"] for one in found] == list(CONTESTANTS)
    for one in found:
        assert "failed" not in one
        assert len(one["raw_ns"]) == STEPS  # type: ignore[arg-type]
        assert number(one, "cpu_ns") > 0
        # Whoever sends nothing arrives elsewhere: the comparison can tell.
        assert (number(one, "distance") < 1e-3) == (one["contestant"] != "floor")


@pytest.mark.timeout(150)
def test_three_ranks_over_tcp(tmp_path: Path) -> None:
    turns = [("planned", "tcp"), ("variant", "tcp"), ("grpc", "")]
    for one in _train(tmp_path, turns, ranks=3):
        assert "failed" not in one
        assert number(one, "distance") < 1e-3


@pytest.mark.timeout(150)
def test_a_contestant_that_fails_is_told_and_the_others_go_on(tmp_path: Path) -> None:
    broken, gloo = _train(tmp_path, [("planned", "no such path"), ("gloo", "")])
    assert "planned: a process failed" in str(broken["failed"])
    assert "failed" not in gloo


@pytest.mark.timeout(150)
def test_the_command_measures_one_model() -> None:
    words = ["--quick", "--models", "gru", "--transport", "shm", "--rounds", "1"]
    done = subprocess.run(
        [sys.executable, "-m", "rdmatensor", "bench", "models", *words, "--peers", "floor"],
        cwd=ROOT / "tests",
        capture_output=True,
        text=True,
        check=False,
        timeout=140,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    rows = [line for line in done.stdout.splitlines() if line.startswith("gru 2.5 MiB, widths / 4")]
    assert len(rows) == 4, done.stdout
