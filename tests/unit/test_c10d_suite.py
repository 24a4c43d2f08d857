"""The runner of PyTorch's own tests: what it lets in, and what it calls a failure."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

SUITE = Path(__file__).parents[1] / "c10d_suite"
sys.path.insert(0, str(SUITE))

from outcome import Baseline, Outcome, problems, write_baseline  # noqa: E402
from settings import CANNOT_PASS, RUNS, UNEVEN_LISTS, Shard, select  # noqa: E402

(NEVER,) = CANNOT_PASS


def outcomes(**status: str) -> list[Outcome]:
    return [Outcome(test, word, 0.1, "RuntimeError: why") for test, word in status.items()]


def found(
    results: Sequence[Outcome], *passed_by_gloo: str, wanted: Sequence[str], persona: str = "gloo"
) -> list[str]:
    return problems(results, wanted, Baseline("2.13.0", frozenset(passed_by_gloo)), persona)


def test_what_gloo_passes_must_pass() -> None:
    results = outcomes(test_a="pass", test_b="skip", test_c="skip")

    assert found(results, "test_a", wanted=["test_a", "test_b", "test_c"]) == []
    assert found(results, "test_a", "test_b", wanted=["test_a", "test_b", "test_c"]) == [
        "Gloo passes it, here it is skip: test_b"
    ]
    assert found(results, "test_d", wanted=["test_a", "test_d"]) == [
        "Gloo passes it, here it is lost: test_d"
    ]
    assert found(results, "test_of_another_shard", wanted=["test_a"]) == []


@pytest.mark.parametrize("status", ["fail", "error", "hang"])
def test_whatever_ends_badly_is_told_with_its_reason(status: str) -> None:
    results = outcomes(test_a=status)

    assert found(results, wanted=["test_a"]) == [f"{status}: test_a: RuntimeError: why"]
    assert found(results, "test_a", wanted=["test_a"]) == [f"{status}: test_a: RuntimeError: why"]


def test_what_cannot_pass_may_fail_and_must_not_pass_unnoticed() -> None:
    assert found(outcomes(**{NEVER: "error"}), NEVER, wanted=[NEVER]) == []
    assert "passes now" in found(outcomes(**{NEVER: "pass"}), NEVER, wanted=[NEVER])[0]


def test_lists_that_gloo_fails_must_pass() -> None:
    results = outcomes(**dict.fromkeys(UNEVEN_LISTS, "pass"))
    lacking = outcomes(**dict.fromkeys(UNEVEN_LISTS, "skip"))

    assert found(results, wanted=UNEVEN_LISTS, persona="mpi") == []
    assert len(found(lacking, wanted=UNEVEN_LISTS, persona="mpi")) == len(UNEVEN_LISTS) == 4
    assert found(lacking, wanted=UNEVEN_LISTS) == []


def test_an_error_is_told_by_its_most_telling_line() -> None:
    detail = "RuntimeError: Process 1 exited with error code 10\nValueError: the cause: x\nlast\n"

    assert Outcome("test_a", "error", 0.1, detail).brief() == "ValueError: the cause: x"
    assert Outcome("test_a", "error", 0.1, "no error here\n").brief() == "no error here"
    assert Outcome("test_a", "error", 0.1).brief() == ""


def test_shards_share_the_tests_out() -> None:
    names = [f"test_{number}" for number in range(23)]
    shards = [select(names, RUNS["two"], Shard.parse(f"{index}/5")) for index in range(5)]

    assert sorted(name for shard in shards for name in shard) == sorted(names)
    assert {len(shard) for shard in shards} == {4, 5}
    for text in ("5/5", "-1/3", "x"):
        with pytest.raises(ValueError, match=r"shard|invalid literal|not enough"):
            Shard.parse(text)


def test_runs_let_in_what_they_are_for() -> None:
    names = ["test_all_to_all", "test_broadcast", "test_ddp_device"]

    assert select(names, RUNS["lists"], Shard()) == ["test_all_to_all"]
    assert select(names, RUNS["two"], Shard(), "ddp") == ["test_ddp_device"]
    assert select(names, RUNS["four"], Shard()) == ["test_all_to_all", "test_broadcast"]


def test_baselines_are_written_and_read(tmp_path: Path) -> None:
    path = tmp_path / "two.json"
    write_baseline(path, "2.13.0", outcomes(test_b="pass", test_a="pass", test_c="error"))

    assert Baseline.load(path) == Baseline("2.13.0", frozenset({"test_a", "test_b"}))
    with pytest.raises(ValueError, match="hung"):
        write_baseline(path, "2.13.0", outcomes(test_a="hang"))


@pytest.mark.parametrize(("name", "least"), [("two", 90), ("three", 110), ("four", 190)])
def test_the_kept_baselines_mean_something(name: str, least: int) -> None:
    content = json.loads((SUITE / "baselines" / f"{name}.json").read_text(encoding="utf-8"))

    assert len(content["passed"]) >= least
    assert content["torch"].startswith("2.13.")
