"""ci/test.sh: every step runs that has its turn, a failure fails the whole, pytest ends it."""

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
STEPS = [
    *("setup", "lint", "ctest", "ratios", "tidy", "fuzz", "sanitize_backend", "wheel"),
    *("c10d_suite", "rig/verify"),
]
NAMES = [
    *("setup", "C tests", "ratios", "lint", "c10d suite", "tidy", "fuzz", "wheel", "rig"),
    *("torch, builds", "torch, ASan+UBSan", "torch, TSan", "C tests, ASan+UBSan", "C tests, TSan"),
]
OF_PRESETS = {"ctest": 3, "sanitize_backend": 3}  # rows of a script that runs for each of several
NO_RIG = "not run (RDMATENSOR_NO_RIG=1)"
# What a step's row says where the turn is the other sanitizer's.
NOT_NOW = "not run: the turn of {} (RDMATENSOR_CI_ALL=1 runs all)"
# Commits by the sanitizer whose turn they have: its two turns go by the number's remainder.
COMMITS = {"asan": "0000010", "tsan": "0000011"}
# What the row of a step says of which another turn has the rest.
IN_PART = "ok; not run: {} (RDMATENSOR_CI_ALL=1 runs all)"
FILES_OF = {
    "c10d suite": "ci/c10d_suite.sh",
    "rig": "ci/rig/verify.sh",
    "pytest": ".venv/bin/pytest",
}
PARTS = {
    "c10d suite": IN_PART.format("half of the tests over shm, four fifths over tcp"),
    "rig": IN_PART.format("parts of other turns, which its own table names"),
    "pytest": IN_PART.format("variants of other turns, which it calls deselected"),
}
OF_SANITIZERS = {
    "asan": ["torch, ASan+UBSan", "C tests, ASan+UBSan"],
    "tsan": ["torch, TSan", "C tests, TSan"],
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A repository whose steps only say that they ran."""
    (tmp_path / "ci/rig").mkdir(parents=True)
    for name in ("test.sh", "lib.sh"):
        shutil.copy(CI / name, tmp_path / "ci" / name)
    for step in (*STEPS, "ahead"):
        script(tmp_path / "ci" / f"{step}.sh", f"echo ran {step} $*")
    (tmp_path / ".venv/bin").mkdir(parents=True)
    script(tmp_path / ".venv/bin/pytest", "echo ran pytest; echo '== 3 passed in 0.01s =='")
    return tmp_path


def script(path: Path, line: str, status: int = 0) -> None:
    path.write_text(f"#!/usr/bin/env bash\n{line}\nexit {status}\n")
    path.chmod(0o755)


def run(tree: Path, *, is_all: bool = True, **environment: str) -> tuple[int, list[str]]:
    """Run it all, or what has its turn."""
    ours = ("RDMATENSOR_NO_RIG", "RDMATENSOR_CI_ALL")
    inherited = {name: text for name, text in os.environ.items() if name not in ours}
    if is_all:
        inherited["RDMATENSOR_CI_ALL"] = "1"
    done = subprocess.run(
        ["bash", "ci/test.sh"],
        cwd=tree,
        env=inherited | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=30,
        check=False,
    )
    return done.returncode, done.stdout.splitlines()


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


def test_all_pass_and_the_last_line_is_of_pytest(tree: Path) -> None:
    status, lines = run(tree)
    assert status == 0
    assert lines[-1] == "== 3 passed in 0.01s =="
    assert lines.count(lines[-1]) == 1
    assert table_of(lines) == dict.fromkeys([*NAMES, "pytest"], "ok")


@pytest.mark.parametrize("step", STEPS)
def test_a_failed_step_shows_its_words_and_stops_nothing(tree: Path, step: str) -> None:
    script(tree / "ci" / f"{step}.sh", "echo FAIL this_test >&2", 1)
    status, lines = run(tree)
    assert status == 1
    assert "FAIL this_test" in lines
    assert "ran pytest" in lines
    assert lines[-1] == "== 3 passed in 0.01s =="
    results = table_of(lines)
    assert list(results) == [*NAMES, "pytest"]
    failed = [name for name, result in results.items() if result != "ok"]
    assert len(failed) == OF_PRESETS.get(step, 1)


@pytest.mark.parametrize("status", [0, 1])
def test_builds_ahead_of_their_steps_run_beside_the_set_up(tree: Path, status: int) -> None:
    """What fails there fails in the step itself, which builds too."""
    script(tree / "ci/ahead.sh", "until [[ -e begun ]]; do sleep 0.01; done; echo ahead $*", status)
    script(tree / "ci/setup.sh", "touch begun; echo has begun")
    code, lines = run(tree)
    assert code == 0
    assert lines.index("ahead dev asan tsan") < lines.index("ran ctest dev")
    assert table_of(lines) == dict.fromkeys([*NAMES, "pytest"], "ok")


MEET = "touch {mine}; until [[ -e {other} ]]; do sleep 0.01; done; echo met"


def test_the_second_lane_runs_beside_the_first(tree: Path) -> None:
    """Each waits for the other, here; what measures is over before."""
    script(tree / "ci/rig/verify.sh", "[[ -e measured ]] && " + MEET.format(mine="a", other="b"))
    script(tree / ".venv/bin/pytest", f"{MEET.format(mine='b', other='a')}; echo '== 3 =='")
    script(tree / "ci/ratios.sh", "sleep 0.5; [[ ! -e a && ! -e b ]] && touch measured")
    status, lines = run(tree)
    assert status == 0
    assert lines.count("met") == 2
    assert table_of(lines) == dict.fromkeys([*NAMES, "pytest"], "ok")


def test_the_last_c_tests_have_both_cores(tree: Path) -> None:
    """However long either lane takes."""
    script(tree / "ci/sanitize_backend.sh", "sleep 0.3; touch $1.over")
    script(tree / ".venv/bin/pytest", "sleep 1; touch pytest.over; echo '== 3 =='")
    are_over = "[[ -e asan.over && -e tsan.over && -e pytest.over ]]"
    script(tree / "ci/ctest.sh", f"[[ $1 == dev ]] || {{ {are_over} && echo $1 alone; }}")
    status, lines = run(tree)
    assert status == 0
    assert [line for line in lines if "alone" in line] == ["asan alone", "tsan alone"]


def test_backends_are_built_beside_the_rest_with_what_it_leaves(tree: Path) -> None:
    build = "echo builds $1; touch a; until [[ -e b && -e c ]]; do sleep 0.01; done; nice"
    script(tree / "ci/sanitize_backend.sh", f"[[ ${{2:-}} != --build ]] || {{ {build}; }}")
    for name, mine in (("ci/rig/verify.sh", "b"), (".venv/bin/pytest", "c")):
        script(tree / name, f"{MEET.format(mine=mine, other='a')}; echo '== 3 =='")
    status, lines = run(tree)
    assert status == 0
    assert table_of(lines) == dict.fromkeys([*NAMES, "pytest"], "ok")
    first = lines.index("builds asan")
    assert lines[first : first + 4] == ["builds asan", "19", "builds tsan", "19"]


@pytest.mark.parametrize("busy", ["rig", "pytest"])
def test_a_step_is_charged_for_its_own_cpu_only(tree: Path, busy: str) -> None:
    """One lane works while the other sleeps, in a step that ends later."""
    work = f"{sys.executable} -c 'import time\nwhile time.process_time() < 2: pass'; touch done"
    wait = "until [[ -e done ]]; do sleep 0.01; done; sleep 0.2"
    is_rig = busy == "rig"
    script(tree / "ci/rig/verify.sh", work if is_rig else wait)
    script(tree / ".venv/bin/pytest", f"{wait if is_rig else work}; echo '== 3 =='")
    status, lines = run(tree)
    assert status == 0
    charged = {name: cpu for name, (cpu, _) in rows_of(lines).items()}
    assert charged.pop(busy) >= 2
    assert max(charged.values()) <= 1


def test_a_lane_that_ends_early_fails_the_whole(tree: Path) -> None:
    script(tree / "ci/fuzz.sh", "kill -KILL $PPID")
    status, lines = run(tree)
    assert status == 1
    results = table_of(lines)
    lost = ["fuzz", "wheel", "rig", "torch, ASan+UBSan", "torch, TSan"]
    assert [name for name, result in results.items() if result != "ok"] == lost
    assert lines[-1] == "== 3 passed in 0.01s =="


def test_no_step_outlives_the_run(tree: Path) -> None:
    script(tree / "ci/rig/verify.sh", "echo $$ >pid; exec sleep 60")
    until_both = "until [[ -s pid ]]; do sleep 0.01; done; touch both; sleep 60"
    script(tree / ".venv/bin/pytest", until_both)
    with subprocess.Popen(
        ["bash", "ci/test.sh"], cwd=tree, stdout=subprocess.DEVNULL, start_new_session=True
    ) as process:
        while not (tree / "both").exists():
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(10)
    pid = int((tree / "pid").read_text())
    end_s = time.monotonic() + 10
    while Path(f"/proc/{pid}/cmdline").exists() and time.monotonic() < end_s:
        time.sleep(0.01)
    assert not Path(f"/proc/{pid}/cmdline").exists()


def test_a_failed_pytest_fails_the_whole(tree: Path) -> None:
    words = "echo 'FAILED test_x - assert 1 == 2'; echo '== 1 failed in 0.01s =='"
    script(tree / ".venv/bin/pytest", words, 1)
    status, lines = run(tree)
    assert status == 1
    assert "FAILED test_x - assert 1 == 2" in lines
    assert lines[-1] == "== 1 failed in 0.01s =="
    assert table_of(lines)["pytest"] == "FAILED"


def test_without_an_environment_nothing_can_run(tree: Path) -> None:
    script(tree / "ci/setup.sh", "echo no network", 1)
    (tree / ".venv/bin/pytest").unlink()
    status, lines = run(tree)
    assert status == 1
    assert table_of(lines) == {"setup": "FAILED"}


def test_a_rig_that_is_switched_off_is_not_run_and_shows_in_the_table(tree: Path) -> None:
    script(tree / ".venv/bin/pytest", "echo \"sees ${RDMATENSOR_NO_RIG:-nothing}\"; echo '== 3 =='")
    status, lines = run(tree, RDMATENSOR_NO_RIG="1")
    assert status == 0
    assert "ran rig/verify" not in " ".join(lines)
    assert "sees nothing" in lines  # the library would take it for one of its settings
    assert table_of(lines) == {**dict.fromkeys([*NAMES, "pytest"], "ok"), "rig": NO_RIG}


@pytest.mark.parametrize("sanitizer", COMMITS)
def test_sanitizers_take_turns_by_the_commit(tree: Path, sanitizer: str) -> None:
    """And rows say what had not its turn; the same commit has the same turn again."""
    (tree / "bin").mkdir()
    script(tree / "bin/git", f"echo {COMMITS[sanitizer]}")
    script(tree / ".venv/bin/pytest", "echo pytest \"${@: -2}\"; echo '== 3 =='")
    path = f"{tree / 'bin'}:{os.environ['PATH']}"
    (other,) = set(COMMITS) - {sanitizer}
    not_run = dict.fromkeys(OF_SANITIZERS[other], NOT_NOW.format(sanitizer))
    for _ in range(2):
        status, lines = run(tree, is_all=False, PATH=path)
        assert status == 0
        assert table_of(lines) == {**dict.fromkeys([*NAMES, "pytest"], "ok"), **PARTS, **not_run}
        assert "ran rig/verify --turn itself one two links" in lines
        assert f"pytest --turn {list(COMMITS).index(sanitizer)}/2" in lines
        for script_name in ("ctest", "sanitize_backend"):
            assert f"ran {script_name} {sanitizer}" in lines
            assert f"ran {script_name} {other}" not in lines
        assert "ran ctest dev" in lines
        assert f"ran ahead dev {sanitizer}" in lines


@pytest.mark.parametrize("step", PARTS)
def test_a_step_that_fails_in_its_turn_fails_the_whole(tree: Path, step: str) -> None:
    script(tree / FILES_OF[step], "echo FAIL this_test", 1)
    status, lines = run(tree, is_all=False)
    assert status == 1
    assert table_of(lines)[step] == "FAILED"


def test_a_run_of_all_tells_no_program_of_it(tree: Path) -> None:
    words = 'echo "sees ${RDMATENSOR_CI_ALL:-nothing}"; echo "pytest $*"; echo \'== 3 ==\''
    script(tree / ".venv/bin/pytest", words)
    status, lines = run(tree)
    assert status == 0
    assert not any(line.startswith("pytest ") and "--turn" in line for line in lines)
    assert "sees nothing" in lines  # the library would take it for one of its settings
    assert "ran rig/verify itself one two links" in lines
    assert "ran c10d_suite shm tcp" in lines


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
