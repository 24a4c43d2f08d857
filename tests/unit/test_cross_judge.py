"""ci/cross_judge.py: a failure that is not on the list, and a list that is out of date."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("cross_judge", ROOT / "ci" / "cross_judge.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


cross_judge = load()


@pytest.mark.parametrize(
    ("result", "reason", "word"),
    [
        ("ok", None, None),
        ("FAIL", "qemu: no seccomp filter", None),
        ("FAIL", None, "not on the list"),
        ("ok", "qemu: no seccomp filter", "is on the list"),
        ("ok", "sometimes: slow", None),
        ("FAIL", "sometimes: slow", None),
    ],
)
def test_results_are_held_against_the_list(
    result: str, reason: str | None, word: str | None, tmp_path: Path
) -> None:
    junit = tmp_path / "junit.xml"
    said = f"ok   other (0.1 ms)\n{result:<4} this (2.0 ms)\ntests: 2 passed"
    junit.write_text(f'<a><testcase name="base/x"><system-out>{said}</system-out></testcase></a>')
    cannot = {("base/x", "this"): reason} if reason else {}
    totals, problems = cross_judge.judge(junit, cannot)
    assert totals.startswith("2 passed" if result == "ok" else "1 passed")
    assert len(problems) == (0 if word is None else 1)
    assert word is None or word in problems[0]


def test_a_program_without_results_is_a_problem(tmp_path: Path) -> None:
    junit = tmp_path / "junit.xml"
    junit.write_text('<a><testcase name="base/x"><system-out>crash</system-out></testcase></a>')
    assert cross_judge.judge(junit, {})[1] == ["base/x: printed no result of a test"]


def test_the_list_names_tests_that_exist() -> None:
    listed = cross_judge.read_list(ROOT / "ci" / "cross_cannot.txt")
    assert listed
    for program, test in listed:
        source = (ROOT / "tests" / "c" / f"{program}.c").read_text(encoding="utf-8")
        assert f"({test}" in source, f"{program} has no test {test}"


def test_a_program_that_fails_without_a_test_that_does_is_a_problem(tmp_path: Path) -> None:
    """A sanitizer's word at the exit, or a crash after the last test."""
    junit = tmp_path / "junit.xml"
    said = "ok   this (2.0 ms)\ntests: 1 passed"
    junit.write_text(
        f'<a><testcase name="base/x" status="fail"><system-out>{said}</system-out></testcase></a>'
    )
    _, (problem,) = cross_judge.judge(junit, {})
    assert problem.startswith("base/x: failed, and no test of it did")
