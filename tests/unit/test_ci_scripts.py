"""ci/test.sh: what runs in both sizes, that a failure fails the whole, and that pytest ends it."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CI = ROOT / "ci"
FIRST = ["setup", "C tests", "pytest", "c10d suite", "rig"]
REST = [
    *("C tests, slow", "ratios", "pytest, slow", "lint", "tidy", "fuzz", "docs", "wheel"),
    *("c10d suite, more", "rig, more"),
    *("torch, ASan+UBSan", "torch, TSan", "C tests, ASan+UBSan", "C tests, TSan"),
    *("aarch64", "torch, next"),
]
SCRIPTS = [
    *("setup", "lint", "ctest", "ratios", "tidy", "fuzz", "sanitize_backend", "wheel"),
    *("c10d_suite", "rig/verify", "docs", "cross", "torch_next"),
]
ROWS_OF = {"ctest": 4, "sanitize_backend": 2, "c10d_suite": 2, "rig/verify": 2}
ELSE = "(RDMATENSOR_CI_ALL=1 runs all)"
NO_RIG = "not run: RDMATENSOR_NO_RIG=1"
# Commits by the sanitizer whose turn they have: its two turns go by the number's remainder.
COMMITS = {"asan": "0000010", "tsan": "0000011"}
OF_SANITIZERS = {
    "asan": ["torch, ASan+UBSan", "C tests, ASan+UBSan"],
    "tsan": ["torch, TSan", "C tests, TSan"],
}
# What the rows say that leave something out. Both runs of pytest have turns.
IN_FIRST = {
    "C tests": "ok; not run: slow tests",
    "pytest": "ok; not run: slow tests, variants of another turn",
    "c10d suite": "ok; not run: four fifths",
    "rig": "ok; not run: parts that take turns",
}
IN_REST = {
    "pytest, slow": f"ok; not run: variants of another turn {ELSE}",
    "c10d suite, more": f"ok; not run: four fifths {ELSE}",
    "rig, more": f"ok; not run: parts of other turns {ELSE}",
    "aarch64": "not run: RDMATENSOR_CI_ALL=1 runs all",
    "torch, next": "not run: RDMATENSOR_CI_ALL=1 runs all",
}
CLOSING = "== 3 passed in 0.01s =="
QUICK_CLOSING = "===== 6 passed in 0.02s ====="
ALL_CLOSING = "===== 9 passed in 0.03s ====="


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A repository whose steps only say that they ran."""
    (tmp_path / "ci/rig").mkdir(parents=True)
    for name in ("test.sh", "lib.sh", "steps.sh"):
        shutil.copy(CI / name, tmp_path / "ci" / name)
    for step in (*SCRIPTS, "ahead", "changed"):
        script(tmp_path / "ci" / f"{step}.sh", f"echo ran {step} $*")
    (tmp_path / ".venv/bin").mkdir(parents=True)
    script(tmp_path / ".venv/bin/pytest", f"echo pytest ${{*:3}}; echo '{CLOSING}'")
    return tmp_path


def script(path: Path, line: str, status: int = 0) -> None:
    path.write_text(f"#!/usr/bin/env bash\n{line}\nexit {status}\n")
    path.chmod(0o755)


def commit(tree: Path, number: str) -> dict[str, str]:
    """Return an environment in which the repository has a commit of that number."""
    (tree / "bin").mkdir()
    script(tree / "bin/git", f"echo {number}")
    return {"PATH": f"{tree / 'bin'}:{os.environ['PATH']}"}


def run(tree: Path, *words: str, **environment: str) -> tuple[int, list[str]]:
    ours = ("RDMATENSOR_NO_RIG", "RDMATENSOR_CI_ALL")
    inherited = {name: text for name, text in os.environ.items() if name not in ours}
    done = subprocess.run(
        ["bash", "ci/test.sh", *words],
        cwd=tree,
        env=inherited | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=50,
        check=False,
    )
    return done.returncode, done.stdout.splitlines()


def run_every(tree: Path, **environment: str) -> tuple[int, list[str]]:
    return run(tree, RDMATENSOR_CI_ALL="1", **environment)


def table_of(lines: list[str]) -> dict[str, str]:
    return {name: result for name, (_, result) in rows_of(lines).items()}


def rows_of(lines: list[str]) -> dict[str, tuple[int, str]]:
    """CPU seconds and result by step; each row has whole seconds, passed and of the CPUs."""
    head = ["step", "seconds", "CPU", "result"]
    start = next(i for i, line in enumerate(lines) if line.split() == head)
    rows = lines[start + 1 : next(i for i, line in enumerate(lines) if line.startswith("total "))]
    results = {}
    for row in rows:
        parts = re.fullmatch(r"(.+?) +\d+ +(\d+)  (.+)", row)
        assert parts is not None, row
        results[parts[1]] = (int(parts[2]), parts[3])
    return results


def test_a_newcomer_s_run_has_its_steps_in_order_and_ends_with_pytest(tree: Path) -> None:
    status, lines = run(tree, "-k", "words", **commit(tree, COMMITS["asan"]))
    assert status == 0
    assert table_of(lines) == dict.fromkeys(FIRST, "ok") | IN_FIRST
    assert list(table_of(lines)) == FIRST
    ran = [line for line in lines if line.startswith(("ran ", "pytest -m"))]
    assert ran == [
        "ran setup",
        "ran ctest dev quick",
        "pytest -m not slow tests/integration --turn 0/2 -k words",
        "pytest -m not slow --ignore tests/integration tests --turn 0/2 -k words",
        "ran c10d_suite fifth",
        "ran rig/verify --short itself one",
    ]
    assert lines[-1] == QUICK_CLOSING
    assert CLOSING not in lines


def test_progress_has_the_time_so_far(tree: Path) -> None:
    script(tree / "ci/ctest.sh", "sleep 1.1")
    _, lines = run(tree)
    steps = [line for line in lines if re.match(r"\[\d\d:\d\d\] ", line)]
    assert [line[8:] for line in steps if ": " not in line] == FIRST
    assert steps[0].startswith("[00:00]")
    assert not steps[-1].startswith("[00:00]")
    assert any(re.search(r"\] C tests: ok; .*, after [1-9]\d* s$", line) for line in steps)


def test_all_begins_with_the_same(tree: Path) -> None:
    status, lines = run(tree, "--all", **commit(tree, COMMITS["asan"]))
    assert status == 0
    results = table_of(lines)
    assert list(results) == FIRST + REST
    assert {name: results[name] for name in FIRST} == dict.fromkeys(FIRST, "ok") | IN_FIRST
    ran = [line for line in lines if line.startswith(("ran ", "pytest -m"))]
    assert ran.index("ran rig/verify --short itself one") < ran.index("ran ratios")
    assert ran.index("ran ratios") < ran.index("pytest -m slow --turn 0/2")


def test_what_was_cut_is_in_a_run_of_every_turn(tree: Path) -> None:
    status, lines = run_every(tree)
    assert status == 0
    results = table_of(lines)
    assert set(results) == {*FIRST, *REST}
    assert {name: results[name] for name in REST} == dict.fromkeys(REST, "ok")
    assert {"pytest -m not slow tests/integration", "pytest -m slow"} < set(lines)
    assert "ran c10d_suite shm tcp" in lines
    assert "ran rig/verify --rest one two links" in lines
    assert lines[-1] == ALL_CLOSING


def test_programs_are_told_of_no_size(tree: Path) -> None:
    """The library would take the variables for settings of its own."""
    words = "echo sees ${RDMATENSOR_CI_ALL:-nothing} ${RDMATENSOR_NO_RIG:-nothing}"
    script(tree / ".venv/bin/pytest", f"{words}; echo '{CLOSING}'")
    _, lines = run_every(tree, RDMATENSOR_NO_RIG="1")
    assert lines.count("sees nothing nothing") == 3


@pytest.mark.parametrize("step", [name for name in SCRIPTS if name != "setup"])
def test_a_failed_step_shows_its_words_and_stops_nothing(tree: Path, step: str) -> None:
    script(tree / "ci" / f"{step}.sh", "echo FAIL this_test >&2", 3)
    status, lines = run_every(tree)
    assert status == 1
    assert lines.count("FAIL this_test") == 2 * ROWS_OF.get(step, 1)  # there, and at the end
    assert lines[-1] == ALL_CLOSING
    results = table_of(lines)
    assert list(results) == FIRST + REST
    failed = [name for name, result in results.items() if result == "FAILED (3)"]
    assert len(failed) == ROWS_OF.get(step, 1)


@pytest.mark.parametrize("part", ["tests/integration", "--ignore"])
def test_a_failed_pytest_fails_the_whole(tree: Path, part: str) -> None:
    words = "echo 'FAILED test_x - assert 1 == 2'; echo '== 1 failed, 2 passed in 0.01s =='"
    fails = f"[[ $5 == {part} ]] && {{ {words}; exit 1; }}; echo '{CLOSING}'"
    script(tree / ".venv/bin/pytest", fails)
    status, lines = run(tree)
    assert status == 1
    assert "FAILED test_x - assert 1 == 2" in lines
    assert lines[-1] == "===== 1 failed, 5 passed in 0.02s ====="
    assert table_of(lines)["pytest"] == "FAILED (1)"


def test_the_last_line_adds_up_all_runs_of_pytest(tree: Path) -> None:
    first = "== 1 failed, 20 passed, 2 skipped, 7 deselected in 61.50s (0:01:01) =="
    second = "== 3 passed, 20 deselected, 1 error in 1.25s =="
    words = f"case $4 in not*) echo '{first}'; exit 1 ;; *) echo '{second}'; exit 1 ;; esac"
    script(tree / ".venv/bin/pytest", words)
    status, lines = run_every(tree)
    assert status == 1
    assert lines[-1] == "===== 2 failed, 43 passed, 4 skipped, 1 error in 124.25s ====="


@pytest.mark.parametrize("status", [0, 1])
def test_builds_ahead_of_their_steps_run_beside_the_set_up(tree: Path, status: int) -> None:
    """What fails there fails in the step itself, which builds too."""
    words = "until [[ -e begun ]]; do sleep 0.01; done; sleep 0.2; touch ahead.$1"
    script(tree / "ci/ahead.sh", words, status)
    script(tree / "ci/setup.sh", "touch begun")
    script(tree / "ci/ctest.sh", "[[ -e ahead.dev ]] && echo comes after")
    code, lines = run(tree)
    assert code == 0
    assert "comes after" in lines


def test_without_an_environment_nothing_can_run(tree: Path) -> None:
    """The build ahead ends with the set-up, however long it would take."""
    script(tree / "ci/ahead.sh", "echo $$ >pid; exec sleep 60")
    script(tree / "ci/setup.sh", "until [[ -s pid ]]; do sleep 0.01; done; echo no network", 1)
    (tree / ".venv/bin/pytest").unlink()
    status, lines = run(tree)
    assert status == 1
    assert table_of(lines) == {"setup": "FAILED (1)"}
    assert not is_running(int((tree / "pid").read_text()))


def test_after_a_failed_set_up_nothing_runs(tree: Path) -> None:
    script(tree / "ci/setup.sh", "echo error: build failed", 1)
    status, lines = run_every(tree)
    assert status == 1
    assert lines.count("error: build failed") == 2
    assert table_of(lines) == {"setup": "FAILED (1)"}


MEET = "touch {mine}; until [[ -e {other} ]]; do sleep 0.01; done; echo met"


def test_steps_of_the_newcomer_s_size_run_alone(tree: Path) -> None:
    alone = "mkdir busy && sleep 0.2 && rmdir busy"
    for name in ("ctest", "c10d_suite", "rig/verify", "ratios"):
        script(tree / f"ci/{name}.sh", alone.replace("rmdir", "echo alone; rmdir"))
    script(tree / ".venv/bin/pytest", f"[[ ! -e busy ]] && sleep 0.2; echo '{CLOSING}'")
    status, lines = run(tree)
    assert status == 0
    assert lines.count("alone") == 3


def test_slow_tests_run_beside_what_does_not_measure(tree: Path) -> None:
    script(tree / "ci/lint.sh", "[[ -e measured ]] && " + MEET.format(mine="a", other="b"))
    slow = f"[[ $4 == not* ]] || {{ {MEET.format(mine='b', other='a')}; }}; echo '{CLOSING}'"
    script(tree / ".venv/bin/pytest", slow)
    script(tree / "ci/ratios.sh", "sleep 0.3; [[ ! -e a && ! -e b ]] && touch measured")
    status, lines = run_every(tree)
    assert status == 0
    assert lines.count("met") == 2


def test_the_last_c_tests_have_both_cores(tree: Path) -> None:
    """However long either lane takes."""
    script(tree / "ci/sanitize_backend.sh", "sleep 0.3; touch $1.over")
    slow = f"[[ $4 == not* ]] || {{ sleep 1; touch pytest.over; }}; echo '{CLOSING}'"
    script(tree / ".venv/bin/pytest", slow)
    are_over = "[[ -e asan.over && -e tsan.over && -e pytest.over ]]"
    script(tree / "ci/ctest.sh", f"[[ $1 == dev ]] || {{ {are_over} && echo $1 alone; }}")
    status, lines = run_every(tree)
    assert status == 0
    assert [line for line in lines if "alone" in line] == ["asan alone", "tsan alone"]


@pytest.mark.parametrize("busy", ["wheel", "pytest, slow"])
def test_a_step_is_charged_for_its_own_cpu_only(tree: Path, busy: str) -> None:
    """One lane works while the other sleeps, in a step that ends later."""
    work = f"{sys.executable} -c 'import time\nwhile time.process_time() < 2: pass'; touch done"
    wait = "until [[ -e done ]]; do sleep 0.01; done; sleep 0.2"
    is_wheel = busy == "wheel"
    script(tree / "ci/wheel.sh", work if is_wheel else wait)
    slow = wait if is_wheel else work
    script(tree / ".venv/bin/pytest", f"[[ $4 == not* ]] || {{ {slow}; }}; echo '{CLOSING}'")
    status, lines = run_every(tree)
    assert status == 0
    charged = {name: cpu for name, (cpu, _) in rows_of(lines).items()}
    assert charged.pop(busy) >= 2
    assert max(charged.values()) <= 1


def test_a_lane_that_ends_early_fails_the_whole(tree: Path) -> None:
    script(tree / "ci/fuzz.sh", "kill -KILL $PPID")
    status, lines = run_every(tree)
    assert status == 1
    results = table_of(lines)
    lost = ["fuzz", "docs", "wheel", "c10d suite, more", "rig, more"]
    lost += ["torch, ASan+UBSan", "torch, TSan"]
    failed = [name for name, result in results.items() if result.startswith("FAILED")]
    assert failed == lost
    assert lines[-1] == ALL_CLOSING


def is_running(pid: int) -> bool:
    return Path(f"/proc/{pid}/cmdline").exists()


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
@pytest.mark.parametrize("step", ["ctest", "wheel"])
def test_no_step_outlives_the_run(tree: Path, step: str, name: str) -> None:
    """Neither a step that runs alone nor one of a lane.

    The run has SIGINT's default: a shell that was started with SIGINT ignored cannot trap it.
    """
    script(tree / f"ci/{step}.sh", "(echo $BASHPID >pid; exec sleep 60)")
    environment = os.environ | {"RDMATENSOR_CI_ALL": "1"}
    with subprocess.Popen(
        ["env", "--default-signal=INT", "bash", "ci/test.sh"],
        cwd=tree,
        env=environment,
        stdout=subprocess.DEVNULL,
    ) as process:
        while not (tree / "pid").exists() or not (tree / "pid").read_text():
            time.sleep(0.01)
        process.send_signal(getattr(signal, name))
        assert process.wait(30) == 128 + getattr(signal, name)
    assert not is_running(int((tree / "pid").read_text()))


def test_a_rig_that_is_switched_off_is_not_run_and_shows_in_the_table(tree: Path) -> None:
    status, lines = run_every(tree, RDMATENSOR_NO_RIG="1")
    assert status == 0
    assert "ran rig/verify" not in " ".join(lines)
    results = table_of(lines)
    assert (results["rig"], results["rig, more"]) == (NO_RIG, NO_RIG)


@pytest.mark.parametrize("sanitizer", COMMITS)
def test_sanitizers_take_turns_by_the_commit(tree: Path, sanitizer: str) -> None:
    """And rows say what had not its turn; the same commit has the same turn again."""
    environment = commit(tree, COMMITS[sanitizer])
    (other,) = set(COMMITS) - {sanitizer}
    not_run = dict.fromkeys(OF_SANITIZERS[other], f"not run: another turn has it {ELSE}")
    for _ in range(2):
        status, lines = run(tree, "--all", **environment)
        assert status == 0
        assert table_of(lines) == dict.fromkeys(FIRST + REST, "ok") | IN_FIRST | IN_REST | not_run
        assert f"pytest -m slow --turn {list(COMMITS).index(sanitizer)}/2" in lines
        for script_name in ("ctest", "sanitize_backend"):
            assert f"ran {script_name} {sanitizer}" in lines
            assert f"ran {script_name} {other}" not in lines


def test_sanitizers_are_left_out_where_no_c_has_changed(tree: Path) -> None:
    script(tree / "ci/changed.sh", "[[ $1 == --base ]] && echo abc123 && exit", 1)
    _, lines = run(tree, "--all")
    results = table_of(lines)
    for name in (*OF_SANITIZERS["asan"], *OF_SANITIZERS["tsan"]):
        assert results[name] == f"not run: no C has changed since abc123 {ELSE}"
    _, lines = run_every(tree)
    assert "ran ctest asan" in lines
    assert "ran sanitize_backend tsan" in lines


def test_no_sanitizer_is_told_to_suppress_anything() -> None:
    """Neither by a file, nor by an option that names one."""
    assert not sorted(ROOT.glob("tests/**/*suppressions*"))
    for path in (*ROOT.glob("ci/*.sh"), *ROOT.glob("tests/sanitizers/*.py"), *ROOT.glob("*.json")):
        assert not re.search(r"suppressions=[^01]", path.read_text(encoding="utf-8")), path


def test_no_function_of_ours_is_kept_from_a_sanitizer() -> None:
    suffixes = (".c", ".h", ".cpp", ".hpp")
    sources = [
        path
        for folder in ("csrc", "tests", "bench")
        for path in sorted(ROOT.glob(f"{folder}/**/*"))
        if path.suffix in suffixes
    ]

    assert len(sources) > 200
    for path in sources:
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"no_sanitize|disable_sanitizer_instrumentation", text), path
