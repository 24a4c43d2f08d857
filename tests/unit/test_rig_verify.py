"""ci/rig/verify.sh: a kernel's death is tried again once and told, a failure is not."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

CI = Path(__file__).parents[2] / "ci"
AGAIN = "ok at the second try: a kernel died"
# In place of the rig: each host leaves a row, and the run ends as the next line of `statuses` says.
RUN = r"""
hosts=1
while [[ "$1" != -- ]]; do
    [[ "$1" != --hosts ]] || hosts="$2"
    [[ "$1" != --out ]] || out="$2"
    shift
done
echo "runs ${*: -1}"
for ((host = 0; host < hosts; host++)); do
    mkdir -p "$out/$host"
    printf 'a part\t1\tok\n' >"$out/$host/rows"
done
status=$(head -n 1 statuses)
sed -i 1d statuses
exit "$status"
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A repository whose run.sh ends with the next status of `statuses` each time."""
    (tmp_path / "ci/rig").mkdir(parents=True)
    shutil.copy(CI / "lib.sh", tmp_path / "ci")
    shutil.copy(CI / "rig/verify.sh", tmp_path / "ci/rig")
    (tmp_path / ".venv/bin").mkdir(parents=True)
    cmake = tmp_path / ".venv/bin/cmake"
    cmake.write_text("#!/bin/sh\n")
    cmake.chmod(0o755)
    (tmp_path / "ci/rig/run.sh").write_text(RUN)
    return tmp_path


def verify(tree: Path, *layouts: str, statuses: list[int]) -> tuple[int, str]:
    (tree / "statuses").write_text("".join(f"{status}\n" for status in statuses))
    done = subprocess.run(
        ["bash", "ci/rig/verify.sh", *layouts],
        cwd=tree,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=30,
        check=False,
    )
    assert (tree / "statuses").read_text() == ""
    return done.returncode, done.stdout


def test_a_layout_whose_kernel_died_runs_once_more_and_says_so(tree: Path) -> None:
    status, words = verify(tree, "one", "links", statuses=[0, 123, 0])
    assert status == 0
    assert "rig: a kernel died in layout links, which runs once more" in words
    rows = [line for line in words.splitlines() if "CPU seconds" in line]
    assert [row.endswith(AGAIN) for row in rows] == [False, True]


def test_a_second_death_fails(tree: Path) -> None:
    status, words = verify(tree, "two", statuses=[123, 123])
    assert status == 1
    assert "FAILED (123)" in words


def test_a_death_in_another_layout_fails_too(tree: Path) -> None:
    status, words = verify(tree, "one", "two", statuses=[123, 0, 123])
    assert status == 1
    assert AGAIN in words
    assert "FAILED (123)" in words


@pytest.mark.parametrize("wrong", [1, 124, 125])
def test_nothing_else_is_tried_again(tree: Path, wrong: int) -> None:
    status, words = verify(tree, "two", statuses=[wrong])
    assert status == 1
    assert f"FAILED ({wrong})" in words
