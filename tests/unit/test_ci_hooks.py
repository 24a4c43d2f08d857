"""ci/hooks: which subjects of commits are refused, and which hooks of the user's are kept."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

HOOKS = Path(__file__).resolve().parents[2] / "ci/hooks"
REFUSED = {
    "mend a wait": "`area: verb ...`",
    "tcp mend a wait": "`area: verb ...`",
    "tcp: Mend a wait": "`area: verb ...`",
    "tcp: mend": "`area: verb ...`",
    "tcp: mended a wait": "'mended' is not an imperative",
    "tcp: mending a wait": "'mending' is not an imperative",
    "tcp: mends a wait": "'mends' is not an imperative",
    "tcp: a wait has a deadline": "'a' is not an imperative",
    "tcp: mend a wait.": "full stop",
    "tcp: mend " + "x" * 51: "61 columns, at most 60",
}
TAKEN = [
    "tcp: mend a wait",
    "tests, c10d: pass a timeout",
    "ci/rig: bring back the log",
    "README: address newcomers",
    "tcp: mend " + "x" * 50,
    'Revert "tcp: mend a wait that was said to be something else altogether"',
    "fixup! a subject of any kind",
]


def git(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    own = {name: text for name, text in os.environ.items() if not name.startswith("GIT_")}
    who = {
        f"GIT_{role}_{part}": "x" for role in ("AUTHOR", "COMMITTER") for part in ("NAME", "EMAIL")
    }
    alone = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    return subprocess.run(
        ["git", *words],
        cwd=folder,
        env=own | who | alone,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A checkout that has the hooks, not yet installed."""
    clone = tmp_path / "clone"
    shutil.copytree(HOOKS, clone / "ci/hooks")
    assert git(clone, "init", "-q").returncode == 0
    return clone


def install(folder: Path) -> None:
    subprocess.run(["bash", folder / "ci/hooks/install.sh"], check=True, timeout=30)


def commit(clone: Path, message: str) -> subprocess.CompletedProcess[str]:
    return git(clone, "commit", "-q", "--allow-empty", "-m", message)


def test_a_subject_that_breaks_a_rule_is_refused_by_name(clone: Path) -> None:
    install(clone)
    for subject, reason in REFUSED.items():
        done = commit(clone, f"{subject}\n\nA body.")
        assert done.returncode != 0, subject
        assert reason in done.stderr, (subject, done.stderr)
    assert git(clone, "rev-parse", "--verify", "HEAD").returncode != 0


def test_a_subject_that_keeps_the_rules_is_taken(clone: Path) -> None:
    install(clone)
    for subject in TAKEN:
        done = commit(clone, f"# a comment\n\n{subject}\n\nA body. It has ended: any text.")
        assert done.returncode == 0, (subject, done.stderr)


def test_installing_twice_changes_nothing(clone: Path) -> None:
    install(clone)
    hook = clone / ".git/hooks/commit-msg"
    before = hook.lstat()
    install(clone)
    assert hook.lstat() == before
    assert hook.resolve() == (clone / "ci/hooks/commit-msg").resolve()


def test_a_hook_of_the_user_s_is_kept(clone: Path) -> None:
    hook = clone / ".git/hooks/commit-msg"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("mine")
    install(clone)
    assert hook.read_text() == "mine"


def test_a_folder_of_hooks_that_the_user_chose_is_kept(clone: Path) -> None:
    git(clone, "config", "core.hooksPath", "mine")
    install(clone)
    assert not (clone / "mine").exists()
    assert not (clone / ".git/hooks/commit-msg").exists()


def test_a_linked_worktree_changes_no_other_checkout(clone: Path, tmp_path: Path) -> None:
    git(clone, "add", ".")
    git(clone, "commit", "-q", "-m", "first")
    linked = tmp_path / "linked"
    assert git(clone, "worktree", "add", "-q", str(linked)).returncode == 0
    install(linked)
    assert not (clone / ".git/hooks/commit-msg").exists()


def test_a_tree_that_is_no_checkout_is_left_alone(tmp_path: Path) -> None:
    shutil.copytree(HOOKS, tmp_path / "ci/hooks")
    install(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ci"]
