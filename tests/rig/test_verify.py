"""ci/rig/verify.sh, without booting anything: its table, and that what fails fails the whole."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

CI = Path(__file__).resolve().parents[2] / "ci"
LAYOUTS = ("itself", "one", "two", "links", "containers")
# In place of the rig: each host leaves its rows in the folder that --out names.
RUN = r"""
hosts=1
[[ "$1" != --hosts ]] || hosts="$2"
while [[ "$1" != --out ]]; do shift; done
out="$2"
mkdir -p "$out/0" "$out/1"
printf 'first part\t2\tok\nsecond part\t3\t%s\n' "${RESULT:-ok}" >"$out/0/rows"
[[ "$hosts" == 1 ]] || printf 'first part\t5\tok\nsecond part\t1\tok\n' >"$out/1/rows"
exit "${STATUS:-0}"
"""
# In place of the others: a row in the folder that is the last word, if there is any.
OTHER = r"""
(($# > 1)) || [[ "$1" != build ]] || exit 0
out="${*: -1}"
mkdir -p "$out"
printf 'first part\t2\tok\n' >"$out/rows"
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A repository whose rig only leaves rows."""
    (tmp_path / "ci/rig").mkdir(parents=True)
    shutil.copy(CI / "lib.sh", tmp_path / "ci")
    shutil.copy(CI / "rig/verify.sh", tmp_path / "ci/rig")
    script(tmp_path / "ci/rig/run.sh", RUN)
    script(tmp_path / "ci/rig/containers.sh", OTHER)
    (tmp_path / "tests/rig").mkdir(parents=True)
    script(tmp_path / "tests/rig/boot.sh", OTHER)
    (tmp_path / ".venv/bin").mkdir(parents=True)
    script(tmp_path / ".venv/bin/cmake", "exit 0")
    return tmp_path


def script(path: Path, text: str) -> None:
    path.write_text(f"#!/usr/bin/env bash\n{text}\n")
    path.chmod(0o755)


def verify(tree: Path, *layouts: str, **environment: str) -> tuple[int, list[str]]:
    inherited = {name: text for name, text in os.environ.items() if name != "RDMATENSOR_NO_RIG"}
    done = subprocess.run(
        ["bash", "ci/rig/verify.sh", *layouts],
        cwd=tree,
        env=inherited | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, [" ".join(line.split()) for line in done.stdout.splitlines()]


def assert_judged(lines: list[str], layout: str, verdict: str) -> None:
    assert any(line.startswith(f"{layout} all, ") and line.endswith(verdict) for line in lines)


def test_each_part_has_a_row_with_the_slower_hosts_seconds(tree: Path) -> None:
    status, lines = verify(tree)
    assert status == 0, lines
    assert "two first part 5 ok" in lines
    assert "two second part 3 ok" in lines
    for layout in LAYOUTS:
        assert any(line.startswith(f"{layout} all, ") and line.endswith(" ok") for line in lines)
    assert list((tree / "build/rig").glob("verify.*")) == []


def test_the_last_row_has_the_time_used_and_the_budget(tree: Path) -> None:
    used, *words = verify(tree, "one")[1][-1].removeprefix("total ").split()
    assert int(used) < 60
    assert words == ["of", "a", "budget", "of", "900", "s"]
    text = (tree / "ci/rig/verify.sh").read_text()
    script(tree / "ci/rig/verify.sh", text.replace("BUDGET_S=900 ", "BUDGET_S=-1 "))
    status, lines = verify(tree, "one")
    assert status == 0, lines  # a busy machine is no failure
    assert lines[-1].endswith("s over the budget of -1 s")


def test_the_full_sweep_runs_only_where_it_is_named(tree: Path) -> None:
    assert not any(line.startswith("sweep ") for line in verify(tree)[1])
    status, lines = verify(tree, "sweep")
    assert status == 0, lines
    assert "sweep second part 3 ok" in lines
    assert not any(line.startswith("one ") for line in lines)


def test_a_part_that_fails_on_one_host_fails_the_whole(tree: Path) -> None:
    status, lines = verify(tree, "two", RESULT="FAILED (9)", STATUS="1")
    assert status == 1
    assert "two first part 5 ok" in lines
    assert "two second part 3 FAILED (9)" in lines
    assert not any(line.startswith("one ") for line in lines)


@pytest.mark.parametrize("layout", ["one", "two"])
def test_a_row_that_is_not_ok_fails_a_run_that_ended_well(tree: Path, layout: str) -> None:
    status, lines = verify(tree, layout, RESULT="FAILED (9)")
    assert status == 1
    assert f"{layout} second part 3 FAILED (9)" in lines
    assert_judged(lines, layout, "FAILED (status 0, but not all rows are ok)")
    assert f"== what failed in layout {layout}" in lines


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layout_without_rows_fails(tree: Path, layout: str) -> None:
    for name in ("ci/rig/run.sh", "ci/rig/containers.sh", "tests/rig/boot.sh"):
        script(tree / name, "exit 0")
    status, lines = verify(tree, layout)
    assert status == 1
    assert_judged(lines, layout, "FAILED (status 0, and no rows)")


def test_a_host_without_rows_fails(tree: Path) -> None:
    script(tree / "ci/rig/run.sh", RUN.replace("hosts=1\n[[", "hosts=1\ntrue || [["))
    status, lines = verify(tree, "two")
    assert status == 1
    assert "two first part 2 FAILED (1 rows of 2)" in lines


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_rig_that_cannot_start_fails(tree: Path, layout: str) -> None:
    for name in ("ci/rig/run.sh", "ci/rig/containers.sh", "tests/rig/boot.sh"):
        script(tree / name, "echo 'rig: error: no machine' >&2; exit 125")
    status, lines = verify(tree, layout)
    assert status == 1
    assert "rig: error: no machine" in lines
    assert any(line.startswith(f"{layout} all, ") and "FAILED (125)" in line for line in lines)


def test_the_words_of_a_layout_that_failed_stand_at_the_end(tree: Path) -> None:
    words = 'case "$*" in *" one") echo why; exit 125 ;; *) seq 100 ;; esac'
    script(tree / "ci/rig/run.sh", f"{words}\n{RUN}")
    status, lines = verify(tree, "one", "two")
    assert status == 1
    assert lines[lines.index("== what failed in layout one") + 1] == "why"
    assert "== what failed in layout two" not in lines


def test_it_is_switched_off_by_one_variable_only(tree: Path) -> None:
    script(tree / "ci/rig/run.sh", "exit 125")
    status, lines = verify(tree, "one", RDMATENSOR_NO_RIG="1")
    assert (status, lines) == (0, ["rig: not run (RDMATENSOR_NO_RIG=1)"])
    assert verify(tree, "one", RDMATENSOR_NO_RIG="")[0] == 1


def test_a_layout_that_does_not_exist_is_refused(tree: Path) -> None:
    status, lines = verify(tree, "three")
    assert status != 0
    assert any("usage" in line for line in lines)
