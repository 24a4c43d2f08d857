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
        env=inherited | {"PATH": f"{tree / 'bin'}:{os.environ['PATH']}"} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, [" ".join(line.split()) for line in done.stdout.splitlines()]


def in_turn(tree: Path, number: str) -> Path:
    """Give the repository a commit of that number."""
    (tree / "bin").mkdir()
    script(tree / "bin/git", f"echo 000000{number}")
    return tree


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


# What a part leaves that has another turn, and what runs in each turn of the layouts one, two and
# links: by the remainder of the commit's number.
OTHERS = "third part\\t0\\tnot run: has turn 3\\n"
LEAVE_OTHERS = f"""printf '{OTHERS}' >>"$out/0/rows"
[[ "$hosts" == 1 ]] || printf '{OTHERS}' >>"$out/1/rows"
exit """
IN_TURNS = {"0": ["one", "links"], "1": ["one", "two"], "2": ["one"]}


@pytest.mark.parametrize(("number", "ran"), IN_TURNS.items())
def test_each_turn_runs_its_layouts_and_names_the_others(
    tree: Path, number: str, ran: list[str]
) -> None:
    script(tree / "ci/rig/run.sh", f'echo "runs ${{@: -3}}"\n{RUN.replace("exit ", LEAVE_OTHERS)}')
    status, lines = verify(in_turn(tree, number), "--turn", "one", "two", "links")
    assert status == 0, lines
    assert f"turn {int(number) + 1} of 3 0 by the commit" in lines
    assert f"runs one all {number}" in lines
    assert "one third part 0 not run: has turn 3" in lines
    for layout in ("one", "two", "links"):
        assert any(line.startswith(f"{layout} all, ") for line in lines) == (layout in ran)
    for layout, turn in (("two", 2), ("links", 1)):
        assert (f"{layout} all 0 not run: has turn {turn}" in lines) == (layout not in ran)


@pytest.mark.parametrize(("option", "which"), [("--short", "common"), ("--rest", "rest")])
def test_the_common_parts_of_layout_one_and_the_rest_run_alone(
    tree: Path, option: str, which: str
) -> None:
    script(tree / "ci/rig/run.sh", f'echo "runs ${{@: -2}}"\n{RUN.replace("exit ", LEAVE_OTHERS)}')
    status, lines = verify(tree, option, "one")
    assert status == 0, lines
    assert f"runs one {which}" in lines
    assert "one third part 0 not run: has turn 3" in lines


def test_an_unknown_option_is_refused(tree: Path) -> None:
    status, lines = verify(tree, "--shrt", "one")
    assert status == 1
    assert lines[0].startswith("error: usage: ci/rig/verify.sh [--short | --rest] [--turn]")


def test_a_turn_in_which_nothing_ran_proves_nothing(tree: Path) -> None:
    nothing = RUN.replace("first part\\t2\\tok\\nsecond part\\t3\\t%s\\n", OTHERS)
    script(tree / "ci/rig/run.sh", nothing)
    status, lines = verify(in_turn(tree, "0"), "--turn", "one")
    assert status == 1
    assert_judged(lines, "one", "FAILED (status 0, and no rows)")


def test_without_turns_no_part_may_be_left_out(tree: Path) -> None:
    script(tree / "ci/rig/run.sh", RUN.replace("exit ", LEAVE_OTHERS))
    status, lines = verify(in_turn(tree, "0"), "one")
    assert status == 1
    assert_judged(lines, "one", "FAILED (status 0, but not all rows are ok)")


def test_a_part_that_fails_in_its_turn_fails_the_whole(tree: Path) -> None:
    script(tree / "ci/rig/run.sh", RUN.replace("exit ", LEAVE_OTHERS))
    status, lines = verify(in_turn(tree, "0"), "--turn", "one", RESULT="FAILED (9)")
    assert status == 1
    assert_judged(lines, "one", "FAILED (status 0, but not all rows are ok)")


def test_every_part_of_layout_one_is_in_a_turn(tmp_path: Path) -> None:
    """Together the turns have what a run without turns has, and each has the common parts."""
    text = (CI / "rig/parts.sh").read_text()
    body = text.replace('timeout --kill-after=5 "$LIMIT_S" "$@"', "true")
    script(tmp_path / "parts.sh", body)
    seen: dict[str, set[str]] = {}
    for words in ("all", "all 0", "all 1", "all 2", "common", "rest"):
        which, _, turn = words.partition(" ")
        out = tmp_path / f"out {words}"
        out.mkdir()
        rig = {"RIG_OUT": str(out), "RIG_SHARED": str(out), "RIG_DEVICE": "x", "RIG_GID_INDEX": "1"}
        command = ["bash", str(tmp_path / "parts.sh"), "one", *words.split()]
        subprocess.run(command, env=os.environ | rig, check=True, timeout=60, capture_output=True)
        rows = [line.split("\t") for line in (out / "rows").read_text().splitlines()]
        seen[words] = {name for name, _, result in rows if result == "ok"}
        others = {name: result for name, _, result in rows if result != "ok"}
        assert set(others) | seen[words] == seen["all"] or which == "rest"
        for name, result in others.items():
            assert turn or which == "common"
            assert f"in_turn {int(result.removeprefix('not run: has turn ')) - 1} '{name}'" in text
    turns = [seen[f"all {turn}"] for turn in "012"]
    assert set.union(*turns) == seen["all"]
    assert set.intersection(*turns) == seen["common"]
    assert seen["all"] - seen["rest"] == seen["common"]
    assert {name for name in seen["all"] if name.startswith("C: ")} <= seen["common"]
    assert all(turn - seen["common"] for turn in turns)


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
    words = 'case "$*" in *" one all") echo why; exit 125 ;; *) seq 100 ;; esac'
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
