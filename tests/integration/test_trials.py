"""Trials as process groups: equal answers, one decision, deaths, interrupts, limits."""

from __future__ import annotations

import doctest
import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import optuna
import pytest
import roles_trials
from optuna.trial import TrialState

import rdmatensor.trials as rt
from rdmatensor.trials import driver, rank

optuna.logging.set_verbosity(optuna.logging.WARNING)

pytestmark = pytest.mark.timeout(120)
DRIVER = Path(__file__).with_name("trials_driver.py")


def is_pruned_at(number: int, step: int | None) -> bool:
    return hashlib.sha256(f"{number} {step}".encode()).digest()[0] < 20


class Coin(optuna.pruners.BasePruner):
    """Prunes at steps that only the trial's number and the step decide."""

    def prune(self, study: optuna.Study, trial: optuna.trial.FrozenTrial) -> bool:  # noqa: ARG002
        return is_pruned_at(trial.number, trial.last_step)


def run(
    train: Callable[..., Any], folder: Path, *args: object, trials: int = 1, **options: Any
) -> optuna.Study:
    sampler = options.pop("sampler", optuna.samplers.RandomSampler(seed=0))
    study = rt.study(folder / "study", sampler=sampler, pruner=options.pop("pruner", None))
    options = {"ranks_per_trial": 2, "launcher": rt.Local(logs=folder / "logs"), **options}
    rt.optimize(train, args=args, study=study, n_trials=trials, **options)
    return study


def _failures(folder: Path) -> list[object]:
    return [trial.user_attrs.get("failure") for trial in rt.study(folder / "study").trials]


def states(study: optuna.Study) -> list[str]:
    return [trial.state.name for trial in study.trials]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ranks", "trials"),
    [
        *((1, 2), (2, 12)),
        pytest.param(4, 6, marks=pytest.mark.slow),
        pytest.param(2, 200, marks=pytest.mark.slow),
    ],
)
@pytest.mark.timeout(300)
def test_random_programs_have_equal_answers_on_all_ranks(
    tmp_path: Path, ranks: int, trials: int
) -> None:
    study = run(
        *(roles_trials.random_program, tmp_path, str(tmp_path)),
        trials=trials,
        ranks_per_trial=ranks,
        pruner=Coin(),
    )

    assert len(study.trials) == trials
    for trial in study.trials:
        seen = [
            json.loads((tmp_path / f"{trial.number}-{rank}.json").read_text())
            for rank in range(ranks)
        ]
        assert all(one == seen[0] for one in seen)
        answers, names = seen[0]
        assert names == list(trial.params)
        pruned_at = [s for s in range(roles_trials.STEPS) if is_pruned_at(trial.number, s)]
        if pruned_at:
            assert trial.state == TrialState.PRUNED
            assert answers[-1] is True
            assert max(trial.intermediate_values) == pruned_at[0]
        else:
            assert (trial.state, trial.value) == (TrialState.COMPLETE, float(trial.number))
        assert all(value < 1 for value in trial.intermediate_values.values())  # rank 0's
    if trials > 10:
        assert set(states(study)) == {"PRUNED", "COMPLETE"}


@pytest.mark.slow
def test_a_seeded_sampler_suggests_what_it_does_in_optuna_alone(tmp_path: Path) -> None:
    def sampler() -> optuna.samplers.BaseSampler:
        return optuna.samplers.TPESampler(seed=5, n_startup_trials=3)

    study = run(roles_trials.quadratic, tmp_path, trials=6, sampler=sampler())

    alone = optuna.create_study(sampler=sampler())
    alone.optimize(roles_trials.plain_quadratic, n_trials=6)
    assert [trial.params for trial in study.trials] == [trial.params for trial in alone.trials]
    assert [trial.value for trial in study.trials] == [trial.value for trial in alone.trials]


def test_a_rank_that_dies_fails_its_trial_alone(tmp_path: Path) -> None:
    study = run(roles_trials.dies, tmp_path, [None, 0, 1, 2], trials=5, ranks_per_trial=3)

    assert states(study) == ["COMPLETE", "FAIL", "FAIL", "FAIL", "COMPLETE"]
    for dead in range(3):
        words = study.trials[dead + 1].user_attrs["failure"]
        assert words.startswith(f"rank {dead} was killed by SIGKILL"), words
        for other in {0, 1, 2} - {dead}:
            assert f"rank {other} raised" in words
        assert words.count(f"rank {dead}") >= 3, words  # the errors of the others name it
        assert "RDT_EPEER" in words


MISBEHAVIOUR = {
    "raises": "rank 1 raised LookupError: no such row",
    "prunes alone": "the ranks ended differently: rank 0 returned, rank 1 pruned",
    "asks for another": "all ranks must make the same calls in the same order",
    "is refused": "suggest_float(): ValueError",
    "has no number": "train returned None on rank 0: expected a finite number",
    "diverges": "train returned nan on rank 0: expected a finite number",
}


def test_ranks_that_disagree_fail_with_the_reason(tmp_path: Path) -> None:
    count = len(MISBEHAVIOUR)
    study = run(roles_trials.misbehaves, tmp_path, list(MISBEHAVIOUR), trials=count + 1)

    assert states(study) == ["FAIL"] * count + ["COMPLETE"]
    for trial, words in zip(study.trials, MISBEHAVIOUR.values(), strict=False):
        assert words in trial.user_attrs["failure"]


def test_a_failed_trial_is_run_again_with_its_parameters(tmp_path: Path) -> None:
    study = run(roles_trials.dies, tmp_path, [1], trials=2, max_retries=1)

    assert states(study) == ["FAIL", "COMPLETE", "COMPLETE"]
    assert study.trials[1].params == study.trials[0].params != study.trials[2].params


def test_the_group_comes_before_the_first_suggestion(tmp_path: Path) -> None:
    assert run(roles_trials.before_the_group, tmp_path).trials[0].value == 7.0


def test_a_study_goes_on_from_its_file(tmp_path: Path) -> None:
    run(roles_trials.quadratic, tmp_path, trials=1)
    seen: list[int] = []
    study = run(
        *(roles_trials.quadratic, tmp_path),
        trials=3,
        parallel=2,
        callbacks=[lambda _, trial: seen.append(trial.number)],
    )

    assert states(study) == ["COMPLETE"] * 4
    assert sorted(seen) == [1, 2, 3]


@pytest.mark.slow
def test_functions_of_the_main_program_need_no_guard(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import optuna, torch.distributed as dist, rdmatensor.trials as rt\n"
        "SCALE = 2.0\n"
        "def train(trial, offset):\n"
        "    dist.init_process_group('rdmatensor')\n"
        "    return SCALE * trial.suggest_float('x', 1, 1) + offset\n"
        "study = rt.study('study')\n"
        "rt.optimize(train, args=(3,), study=study, ranks_per_trial=2, n_trials=1)\n"
        "print(study.best_value)\n"
    )
    done = subprocess.run(
        [sys.executable, program], cwd=tmp_path, capture_output=True, text=True, timeout=100,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["5.0"]


@pytest.mark.slow
def test_two_studies_keep_to_their_ports_and_memory(tmp_path: Path) -> None:
    settings = {"one": ((29100, 29109), 64), "two": ((29110, 29119), 1024)}

    def search(name: str) -> None:
        folder = tmp_path / name
        folder.mkdir()
        ports, arena = settings[name]
        launcher = rt.Local(ports=ports, arena_max_mib=arena, logs=folder / "logs")
        run(roles_trials.uses, folder, str(folder), trials=2, parallel=2, launcher=launcher)

    threads = [threading.Thread(target=search, args=(name,)) for name in settings]
    for one in threads:
        one.start()
    for one in threads:
        one.join()

    for name, ((first, last), arena) in settings.items():
        found = [json.loads(file.read_text()) for file in (tmp_path / name).glob("*-*.json")]
        assert len(found) == 4, _failures(tmp_path / name)
        used = [port for ports, master, _, _ in found for port in (*ports, master)]
        assert all(first <= port <= last for port in used), used
        assert {limit for _, _, limit, _ in found} == {arena // 4}
        assert {has_room for _, _, _, has_room in found} == {name == "two"}


@pytest.mark.parametrize(
    ("launcher", "ranks", "parallel", "words"),
    [
        (rt.Local(ports=(29100, 29104)), 2, 2, "need 6 ports"),
        (rt.Local(arena_max_mib=3), 2, 2, "at least 1 MiB"),
        (rt.Slurm("jobs", nodes=2, cluster="local"), 3, 1, "spread evenly"),
    ],
)
def test_limits_that_do_not_suffice_are_refused(
    launcher: rt.Local | rt.Slurm, ranks: int, parallel: int, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        launcher.open(ranks, parallel)


@pytest.mark.slow
def test_submitit_runs_ranks_as_tasks(tmp_path: Path) -> None:
    launcher = rt.Slurm(tmp_path / "jobs", cluster="local")
    study = run(roles_trials.dies, tmp_path, [1], trials=2, launcher=launcher)

    assert states(study) == ["FAIL", "COMPLETE"]
    words = study.trials[0].user_attrs["failure"]
    assert "rank 1 of job" in words
    assert "rank 0 raised" in words


@pytest.mark.parametrize(
    ("kind", "by"),  # a job of Slurm's does not see that its driver was killed
    [
        *(("local", signal.SIGINT), ("local", signal.SIGKILL)),
        pytest.param("slurm", signal.SIGINT, marks=pytest.mark.slow),
    ],
)
def test_no_process_outlives_its_driver(tmp_path: Path, kind: str, by: signal.Signals) -> None:
    mark = f"TRIALS_TEST={tmp_path}"
    driver = subprocess.Popen(
        [sys.executable, DRIVER, tmp_path, kind],
        env={**os.environ, "TRIALS_TEST": str(tmp_path)},
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    )
    deadline_s = time.monotonic() + 60
    while len(list(tmp_path.glob("up-0-*"))) < 2 and time.monotonic() < deadline_s:
        assert driver.poll() is None, driver.stderr
        time.sleep(0.05)
    assert len(_processes(mark)) >= 3

    driver.send_signal(by)
    _, words = driver.communicate(timeout=40)

    assert driver.returncode != 0
    deadline_s = time.monotonic() + 20
    while _processes(mark) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    assert _processes(mark) == []
    if by == signal.SIGINT:
        assert "KeyboardInterrupt" in words
        (trial,) = rt.study(tmp_path / "study").trials
        assert (trial.state, trial.user_attrs["failure"]) == (TrialState.FAIL, "interrupted")


def _processes(mark: str) -> list[int]:
    """Return the processes whose environment has the mark."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            variables = (folder / "environ").read_bytes().decode(errors="replace")
            is_over = (folder / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
        except OSError:
            continue
        if mark in variables.split("\0") and not is_over:
            found.append(int(folder.name))
    return found


# ---- the driver's socket, and the examples of the docstrings -------------------------------------


@pytest.fixture
def desk() -> Iterator[driver._Desk]:
    study = optuna.create_study()
    with driver._Desk("127.0.0.1") as opened:
        opened.trials[0] = study.ask()
        yield opened


def _payload(desk: driver._Desk, token: str) -> rank.Payload:
    return rank.Payload(b"", 0, ("127.0.0.1", desk.server_address[1]), token, ())


def test_a_wrong_token_gets_no_answer(desk: driver._Desk) -> None:
    line = rank._Line(_payload(desk, "00" * 32))
    with pytest.raises(rt.TrialError, match="refused this rank's token"):
        line.ask("should_prune", {})
    line.close()


def test_only_methods_of_a_trial_are_called(desk: driver._Desk) -> None:
    line = rank._Line(_payload(desk, desk.token))
    with pytest.raises(rt.TrialError, match="a trial has no method 'study'"):
        line.ask("study", {})
    assert line.ask("should_prune", {}) == 0
    line.close()


EXAMPLES = {
    one.name: one
    for module in (driver, rank, rt.launchers)
    for one in doctest.DocTestFinder(exclude_empty=True).find(module, module.__name__)
    if one.examples
}


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_examples_run(
    name: str,
    desk: driver._Desk,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    line = rank._Line(_payload(desk, desk.token))
    example = EXAMPLES[name]
    example.globs = {**example.globs, "folder": tmp_path, "trial": rt.GroupTrial(0, line)}
    with capsys.disabled():
        result = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(example)
    line.close()
    assert result.failed == 0
