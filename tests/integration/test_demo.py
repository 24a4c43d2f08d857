"""The demo, as a user runs it; and that its judgement can say no."""

from __future__ import annotations

import dataclasses
import importlib
import json
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

# Becomes a rank that no polite signal ends, with a child of the same kind.
STUBBORN_RANK = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.fork()
with open(sys.argv[1], "a") as pids:
    pids.write(f"{os.getpid()}\\n")
time.sleep(600)
"""


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return importlib.import_module("report")


@pytest.fixture
def results(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return importlib.import_module("results")


@pytest.fixture
def launch(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return importlib.import_module("launch")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_demo_gives_the_same_training_on_every_path(tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLES / "train.py"), "--quick", "--out", str(tmp_path)]
    command += ["--deadline-s", "240"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=290)

    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.rstrip().endswith("PASSED: all runs gave the same training")
    for label in ("rdmatensor (shm)", "rdmatensor (tcp)", "Gloo"):
        assert f"digits CNN               {label}" in done.stdout
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")

    runs = {
        path: json.loads((tmp_path / f"{path}.json").read_text(encoding="utf-8"))
        for path in ("rdmatensor-shm", "rdmatensor-tcp", "gloo")
    }
    for name, way in (("rdmatensor-shm", "shm"), ("rdmatensor-tcp", "tcp")):
        assert runs[name]["backend"] == "rdmatensor"
        assert [(p["rank"], p["peer"], p["path"]) for p in runs[name]["paths"]] == [
            (0, 1, way),
            (1, 0, way),
        ]
        for ours, gloo in zip(runs[name]["models"], runs["gloo"]["models"], strict=True):
            assert len(ours["losses"]) > 20
            assert ours["losses"] == gloo["losses"]
            assert ours["weights_sha256"] == gloo["weights_sha256"]
    assert runs["rdmatensor-shm"]["models"][0]["score"] > 0.9


@pytest.mark.slow
def test_hanging_run_is_ended_with_all_its_processes(launch: ModuleType, tmp_path: Path) -> None:
    script, pids = tmp_path / "stubborn.py", tmp_path / "pids"
    script.write_text(STUBBORN_RANK, encoding="utf-8")
    started_s = time.monotonic()

    with pytest.raises(launch.RunFailed, match=r"no end after 15 s; ended [5-9] processes"):
        launch.torchrun(script, [str(pids)], ranks=2, environment={}, timeout_s=15.0)

    assert time.monotonic() - started_s < 30.0
    ranks_and_children = pids.read_text(encoding="utf-8").split()
    assert len(ranks_and_children) == 4, "the ranks had not started when they were ended"
    for pid in ranks_and_children:
        assert not is_running(pid)


@pytest.mark.slow
def test_failing_rank_is_reported(launch: ModuleType, tmp_path: Path) -> None:
    script = tmp_path / "failing.py"
    script.write_text("import os, sys; sys.exit(int(os.environ['RANK']))", encoding="utf-8")

    with pytest.raises(launch.RunFailed, match="torchrun exited with 1"):
        launch.torchrun(script, [], ranks=2, environment={}, timeout_s=40.0)


def test_equal_runs_have_no_problems(report: ModuleType, results: ModuleType) -> None:
    runs = [sample_run(report, results, "rdmatensor", "shm"), sample_run(report, results, "gloo")]
    assert report.problems(runs, runs[1]) == []


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"losses": [1.0] * 9 + [0.5000000000000001]}, "1 of 10 losses differ, first at step 9"),
        ({"losses": [1.0] * 9}, "9 steps, the reference has 10"),
        ({"losses": [1.0] * 9 + [float("nan")]}, "a loss is not finite"),
        ({"weights_sha256": ["a", "b"]}, "the ranks ended with different weights"),
        ({"weights_sha256": ["b", "b"]}, "the final weights differ from the reference"),
        ({"score": 0.9}, "accuracy 0.900, limit 0.900"),
    ],
)
def test_different_training_is_reported(
    report: ModuleType, results: ModuleType, change: dict[str, object], complaint: str
) -> None:
    gloo = sample_run(report, results, "gloo")
    ours = sample_run(report, results, "rdmatensor", "shm")
    model = dataclasses.replace(ours.result.models[0], **change)
    ours = dataclasses.replace(ours, result=dataclasses.replace(ours.result, models=[model]))

    found = report.problems([ours, gloo], gloo)

    assert any(complaint in problem for problem in found), found
    assert all(problem.startswith("rdmatensor (shm), net: ") for problem in found)


def test_other_path_or_backend_is_reported(report: ModuleType, results: ModuleType) -> None:
    gloo = sample_run(report, results, "gloo")
    wanted_tcp = dataclasses.replace(
        sample_run(report, results, "rdmatensor", "shm"), transport="tcp"
    )
    wanted_plugin = dataclasses.replace(gloo, label="rdmatensor (shm)", backend="rdmatensor")

    assert "rank 0 reached rank 1 by shm, though tcp" in report.problems([wanted_tcp], gloo)[0]
    assert "ran on gloo, not on rdmatensor" in report.problems([wanted_plugin], gloo)[0]


def test_waiting_for_a_late_rank_is_not_communication(results: ModuleType) -> None:
    ms = 1_000_000
    early = results.StepMarks(0, 10 * ms, 33 * ms, 40 * ms, 41 * ms)
    late = results.StepMarks(2 * ms, 30 * ms, 32 * ms, 40 * ms, 42 * ms)

    assert results.communication_seconds([early, late]) == pytest.approx(0.003 + 0.002)
    assert results.communication_and_wait_seconds([early, late]) == pytest.approx(0.014)
    assert results.step_seconds([early, late]) == pytest.approx(0.0405)


def sample_run(
    report: ModuleType, results: ModuleType, backend: str, transport: str | None = None
) -> Any:
    """A passed run of ten steps on two ranks."""
    model = results.ModelResult(
        model="net",
        parameters=1,
        losses=[1.0] * 9 + [0.5],
        step_s=[0.01] * 10,
        comm_s=[0.001] * 10,
        comm_and_wait_s=[0.002] * 10,
        score_name="accuracy",
        score=0.95,
        score_limit=0.9,
        is_higher_better=True,
        weights_sha256=["a", "a"],
    )
    path = transport or "tcp (Gloo)"
    paths = [results.PeerPath(0, 1, path, "asked for"), results.PeerPath(1, 0, path, "asked for")]
    label = f"rdmatensor ({transport})" if transport else "Gloo"
    return report.Run(label, backend, transport, results.RunResult(backend, 2, [model], paths))


def is_running(pid: str) -> bool:
    """Whether the process exists and is more than a zombie that nobody has collected yet."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    except FileNotFoundError:
        return False
    return "State:\tZ" not in status
