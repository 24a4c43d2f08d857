"""pytest's --turn: which variants each turn runs, by a run of pytest over a file of tests."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
MARKED = """
import pytest

pytestmark = pytest.mark.turns("path", "job")


@pytest.fixture(params=["shm", "tcp"], scope="module")
def job(request):
    return request.param


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("path", ["shm", "tcp"])
def test_sums(path, size):
    pass


def test_of_a_job(job):
    pass


@pytest.mark.parametrize("size", [1, 2])
def test_without_a_path(size):
    pass
"""
WHOLE = """
import pytest

pytestmark = pytest.mark.turns()


@pytest.mark.parametrize("size", [1, 2])
def test_a(size):
    pass


def test_b():
    pass
"""
UNMARKED = MARKED.replace("pytestmark =", "other =")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copy(TESTS / "conftest.py", tmp_path)
    shutil.copy(TESTS / "skip_reasons.txt", tmp_path)
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\nmarkers = turns(name): by turns\ntimeout = 20\naddopts = --strict-markers\n"
    )
    (tmp_path / "test_marked.py").write_text(MARKED)
    (tmp_path / "test_unmarked.py").write_text(UNMARKED)
    return tmp_path


def ran(folder: Path, *words: str) -> tuple[set[str], str]:
    """Return which tests ran, by file and name, and the closing line."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", *words],
        cwd=folder,
        env=os.environ | {"PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    names = re.findall(r"^test_(\S+\.py::\S+) PASSED", done.stdout, re.MULTILINE)
    return set(names), done.stdout.splitlines()[-1]


def test_turns_share_the_variants_and_nothing_else(folder: Path) -> None:
    everything, _ = ran(folder)
    (first, words), (second, _) = (ran(folder, "--turn", f"{number}/2") for number in (0, 1))
    assert len(everything) == 16
    assert first | second == everything
    in_both = {name for name in everything if name.startswith("unmarked")}
    in_both |= {name for name in everything if "without_a_path" in name}
    assert first & second == in_both
    assert ", 3 deselected" in words
    for turn in (first, second):  # all sizes of a path, and of a job that costs much all or nothing
        sums = {name for name in turn if name.startswith("marked.py::test_sums")}
        assert len({re.search("shm|tcp", name)[0] for name in sums}) == 1
        assert len(sums) == 2


@pytest.mark.parametrize("turn", ["2/2", "-1/2", "0/0"])
def test_a_turn_that_cannot_be_is_refused(folder: Path, turn: str) -> None:
    words = [sys.executable, "-m", "pytest", "-q", f"--turn={turn}"]
    done = subprocess.run(
        words, cwd=folder, capture_output=True, text=True, timeout=50, check=False
    )
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "below the second" in done.stderr + done.stdout


def test_the_tests_of_a_file_may_take_turns(folder: Path) -> None:
    (folder / "test_whole.py").write_text(WHOLE)
    (first, _), (second, _) = (ran(folder, "--turn", f"{number}/2") for number in (0, 1))
    whole = [{name for name in turn if name.startswith("whole")} for turn in (first, second)]
    assert whole == [{"whole.py::test_a[1]", "whole.py::test_b"}, {"whole.py::test_a[2]"}]
