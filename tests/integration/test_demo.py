"""The demo, as a user runs it; and that its judgement can say no."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
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
def example(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """Import a module of examples/ by its name."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return importlib.import_module


@pytest.fixture
def report(example: Callable[[str], ModuleType]) -> ModuleType:
    return example("report")


@pytest.fixture
def results(example: Callable[[str], ModuleType]) -> ModuleType:
    return example("results")


@pytest.fixture
def launch(example: Callable[[str], ModuleType]) -> ModuleType:
    return example("launch")


@pytest.fixture
def turns(example: Callable[[str], ModuleType]) -> ModuleType:
    return example("turns")


@pytest.fixture
def load(example: Callable[[str], ModuleType]) -> ModuleType:
    return example("load")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_demo_gives_the_same_training_on_every_path(tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLES / "train.py"), "--quick", "--out", str(tmp_path)]
    command += ["--deadline-s", "240"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=290)

    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.rstrip().endswith("PASSED: the same training, bit for bit, in all runs")
    assert f"picture: {os.path.relpath(tmp_path / 'loss.png')}" in done.stdout
    table = done.stdout[done.stdout.index("ms/step") :]
    for label in ("rdmatensor (shm)", "rdmatensor (tcp)", "Gloo"):
        rows = re.findall(rf"{re.escape(label)} +[0-9.]+ +[0-9.]+ +[0-9.]+", table)
        assert len(rows) == 3, done.stdout
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

    with (
        launch.Torchrun(script, [str(pids)], ranks=2, environment={}) as job,
        pytest.raises(launch.RunFailed, match=r"no end after 15 s; ended [5-9] processes"),
    ):
        job.finish(timeout_s=15.0)

    assert time.monotonic() - started_s < 30.0
    ranks_and_children = pids.read_text(encoding="utf-8").split()
    assert len(ranks_and_children) == 4, "the ranks had not started when they were ended"
    for pid in ranks_and_children:
        assert not is_running(pid)


@pytest.mark.slow
def test_failing_rank_is_reported(launch: ModuleType, tmp_path: Path) -> None:
    script = tmp_path / "failing.py"
    script.write_text("import os, sys; sys.exit(int(os.environ['RANK']))", encoding="utf-8")

    with launch.Torchrun(script, [], ranks=2, environment={}) as job:
        job.check()  # it has not ended yet
        with pytest.raises(launch.RunFailed, match="torchrun exited with 1"):
            job.finish(timeout_s=40.0)
        with pytest.raises(launch.RunFailed, match="torchrun exited with 1"):
            job.check()


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


def test_times_leave_out_the_first_steps_of_a_turn(report: ModuleType, results: ModuleType) -> None:
    model = sample_run(report, results, "gloo").result.models[0]
    step_s = [9.0] * 5 + [0.010, 0.012] + [9.0, 8.0, 0.030, 0.040, 0.050]
    model = dataclasses.replace(model, turn_begins=[0, 7], step_s=step_s)

    assert model.turn_step_ms() == pytest.approx([11.0, 40.0])
    assert model.step_ms() == pytest.approx(30.0)


def test_turns_go_there_and_back(turns: ModuleType, load: ModuleType, tmp_path: Path) -> None:
    with turns.TurnServer(tmp_path / "turns") as server:
        order: list[str] = []
        runs = [threading.Thread(target=take_turns, args=(turns, tmp_path, n, order)) for n in "ab"]
        for run in runs:
            run.start()
        asking = server.accept(["a", "b"], 1, nothing)
        meter = load.LoadMeter(lambda: ())
        rounds = [
            [(turn.request.run, turn.request.turn) for turn in done]
            for done in turns.hand_out(asking, meter, nothing)
        ]
        for run in runs:
            run.join()

    assert order == ["a1", "b1", "b2", "a2", "a3", "b3"]
    assert rounds == [[("a", turn), ("b", turn)] for turn in (1, 2, 3)]


def test_rank_that_leaves_early_ends_the_turns(
    turns: ModuleType, load: ModuleType, launch: ModuleType, tmp_path: Path
) -> None:
    address = tmp_path / "turns"
    with turns.TurnServer(address) as server:
        ranks = [
            threading.Thread(target=ask_for_turns, args=(turns, address, rank, count))
            for rank, count in enumerate((1, 2))
        ]
        for rank in ranks:
            rank.start()
        asking = server.accept(["a"], 2, nothing)
        rounds = turns.hand_out(asking, load.LoadMeter(lambda: ()), nothing)
        with pytest.raises(launch.RunFailed, match="a: some ranks ended early"):
            next(rounds)
        for connection in asking["a"]:
            connection.close()
        for rank in ranks:
            rank.join()


def test_failed_run_ends_the_wait_for_its_ranks(turns: ModuleType, tmp_path: Path) -> None:
    def check() -> None:
        raise RuntimeError("it ended badly")

    with (
        turns.TurnServer(tmp_path / "turns") as server,
        pytest.raises(RuntimeError, match="it ended badly"),
    ):
        server.accept(["a"], 2, check)


def test_load_is_that_of_other_processes(load: ModuleType) -> None:
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        apart, together = load.LoadMeter(lambda: ()), load.LoadMeter(lambda: [busy.pid])
        before_s = cpu_seconds(busy.pid)
        while (used_s := cpu_seconds(busy.pid) - before_s) < 0.5:
            time.sleep(0.05)
        others, rest = apart.end(), together.end()
        busy.kill()

    assert others.others_s >= used_s - 0.05
    # Both saw the rest of the machine: the difference is the process.
    assert others.others_s - rest.others_s == pytest.approx(used_s, abs=0.1)


def test_busy_machine_is_said(report: ModuleType, load: ModuleType) -> None:
    assert "BUSY" not in report.load_words(load.Load(10.0, 1.0, 0.5))
    assert "BUSY" in report.load_words(load.Load(10.0, 1.5, 1.0))
    assert "other processes use 0.25" in report.load_words(load.Load(10.0, 1.5, 1.0))


def nothing() -> None:
    """Find nothing wrong."""


def take_turns(turns: ModuleType, folder: Path, name: str, order: list[str]) -> None:
    client = turns.TurnClient(str(folder / "turns"), name, 0)
    for turn in (1, 2, 3):
        client.wait("net", turn, 3)
        order.append(f"{name}{turn}")
    client.close()


def ask_for_turns(turns: ModuleType, address: Path, rank: int, count: int) -> None:
    """Until there are none any more."""
    client = turns.TurnClient(str(address), "a", rank)
    with contextlib.suppress(EOFError):
        for turn in range(count):
            client.wait("net", turn + 1, count)
    client.close()


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def sample_run(
    report: ModuleType, results: ModuleType, backend: str, transport: str | None = None
) -> Any:
    """A passed run of ten steps on two ranks."""
    model = results.ModelResult(
        model="net",
        parameters=1,
        turn_begins=[0, 5],
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
