"""What a result says of the code and the peers that it is of."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2]))

from bench.benchlib import machine
from bench.suite import peers

KEPT = ("csrc/a.c", "rdmatensor/b.py", "graph_analysis/c.py", "bench/d.py", "bench/results/e.json")


def _git(root: Path, *words: str) -> None:
    who = ["-c", "user.name=x", "-c", "user.email=x@example.invalid", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *who, *words], cwd=root, check=True, capture_output=True)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository with a file of each kind, clean."""
    _git(tmp_path, "init", "-q")
    for name in (*KEPT, "docs/f.md"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("before", encoding="utf-8")
    _git(tmp_path, "add", ".")
    _git(tmp_path, "commit", "-q", "-m", "all")
    return tmp_path


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        *((name, True) for name in KEPT[:4]),
        ("bench/new/one.py", True),
        ("csrc/new.c", True),
        ("bench/results/e.json", False),  # what a run writes
        ("bench/results/new.json", False),
        ("bench/now.json", False),
        ("docs/f.md", False),
    ],
)
def test_a_changed_file_of_what_is_measured_is_told(
    checkout: Path, name: str, counts: bool
) -> None:
    assert len(machine.commit_of(checkout)) == 12
    (checkout / name).parent.mkdir(exist_ok=True)
    (checkout / name).write_text("after", encoding="utf-8")
    assert machine.commit_of(checkout).endswith(" with changes") == counts


def test_outside_a_repository_the_commit_is_unknown(tmp_path: Path) -> None:
    assert machine.commit_of(tmp_path) == "unknown"


@pytest.mark.parametrize(
    ("said", "version"),
    [
        ("# Version 1.13.1", "1.13.1"),
        ("# Library version: 1.18.0", "1.18.0"),
        ("# UCT version=1.12.0 revision 0", "1.12.0"),
        ("absent", "absent"),
        ("unknown", "unknown"),
    ],
)
def test_ucx_s_version_is_a_number(said: str, version: str) -> None:
    assert peers.ucx_version(said) == version
