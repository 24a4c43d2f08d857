"""ci/changed.sh: for which changes the sanitizers run."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

CI = Path(__file__).resolve().parents[2] / "ci"
TESTED = [
    "csrc/base/new.c",
    "cmake/New.cmake",
    "CMakeLists.txt",
    "CMakePresets.json",
    "tests/c/base/new_test.c",
    "tests/sim/new.c",
    "tests/sanitizers/run.py",
    "ci/ctest.sh",
    "ci/sanitize_backend.sh",
]
OTHERS = ["docs/new.md", "README.md", "rdmatensor/plan.py", "tests/unit/test_new.py", "ci/lint.sh"]


def git(folder: Path, *words: str) -> str:
    own = {name: text for name, text in os.environ.items() if not name.startswith("GIT_")}
    roles = ("AUTHOR", "COMMITTER")
    who = {f"GIT_{role}_{part}": "x" for role in roles for part in ("NAME", "EMAIL")}
    alone = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    words = ("git", *words)
    return subprocess.check_output(words, cwd=folder, env=own | who | alone, text=True, timeout=30)


def commit(clone: Path, name: str) -> None:
    (clone / name).parent.mkdir(parents=True, exist_ok=True)
    (clone / name).write_text(f"{name}\n")
    git(clone, "add", "-A")
    git(clone, "commit", "-q", "-m", name)


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone on a branch of its own that has no commit yet."""
    origin, clone = tmp_path / "origin", tmp_path / "clone"
    (origin / "ci").mkdir(parents=True)
    for name in ("changed.sh", "lib.sh"):
        shutil.copy(CI / name, origin / "ci" / name)
    (origin / ".gitignore").write_text("build\n")
    git(origin, "init", "-q", "-b", "main")
    commit(origin, "csrc/base/old.c")
    git(tmp_path, "clone", "-q", str(origin), str(clone))
    git(clone, "checkout", "-q", "-b", "work")
    return clone


def has_changed(clone: Path) -> bool:
    done = subprocess.run(["bash", "ci/changed.sh"], cwd=clone, timeout=30, check=False)
    assert done.returncode in (0, 1)
    return done.returncode == 0


@pytest.mark.parametrize("name", TESTED)
def test_a_change_of_what_they_test_counts_in_any_commit_of_the_branch(
    clone: Path, name: str
) -> None:
    commit(clone, name)
    commit(clone, "docs/later.md")
    assert has_changed(clone)


def test_other_changes_do_not_count(clone: Path) -> None:
    for name in OTHERS:
        commit(clone, name)
    assert not has_changed(clone)


def test_a_file_that_is_not_committed_counts(clone: Path) -> None:
    commit(clone, OTHERS[0])
    (clone / "csrc/base/old.c").write_text("other\n")
    assert has_changed(clone)
    git(clone, "checkout", "-q", "csrc")
    assert not has_changed(clone)
    (clone / "csrc/base/new.c").write_text("new\n")
    assert has_changed(clone)


def test_what_main_has_meanwhile_does_not_count(clone: Path) -> None:
    commit(clone.parent / "origin", "csrc/base/new.c")
    commit(clone, OTHERS[0])
    git(clone, "fetch", "-q")
    assert not has_changed(clone)


def test_where_nothing_is_known_they_run(clone: Path) -> None:
    assert has_changed(clone)  # on the last commit of main
    commit(clone, OTHERS[0])
    git(clone, "remote", "remove", "origin")
    assert has_changed(clone)


def test_the_commit_is_named(clone: Path) -> None:
    base = git(clone, "rev-parse", "--short", "HEAD")
    commit(clone, OTHERS[0])
    words = ["bash", "ci/changed.sh", "--base"]
    assert subprocess.check_output(words, cwd=clone, text=True, timeout=30) == base
