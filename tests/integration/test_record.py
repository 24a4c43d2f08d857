"""The recorder finds the step that repeats, names what crosses in it, and the ranks compare it."""

from __future__ import annotations

from collections import Counter
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jobs
import pytest
import roles_record
from torch._C._distributed_c10d import ErrorType

import rdmatensor
from rdmatensor import _record


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What two ranks say of every program; one job runs them all."""
    out = tmp_path_factory.mktemp("record")
    return jobs.results(jobs.run("roles_record:cases", 2, out, timeout_s=60.0))


pytestmark = pytest.mark.timeout(120)


def test_ddp_without_a_change_of_the_script(cases: list[dict[str, Any]]) -> None:
    for rank in (case["ddp"] for case in cases):
        # The buckets are made anew after the first step: the second and the third are equal.
        assert rank["states"] == ["watching"] * 2 + ["locked"] * 4
        assert rank["last"]["compared"] == "yes"
        assert rank["last"]["steps"] == 3
        assert rank["source"] == "recorded"
        sent = {(operation, name): size for operation, name, size in rank["crossing"]}
        wanted = {("all_reduce", name): size for name, size in rank["gradients"].items()}
        wanted |= {("broadcast", name): size for name, size in rank["buffers"].items()}
        assert sent == wanted
        assert len(rank["crossing"]) == len(wanted)
        assert len(rank["buckets"]) > 1
        assert sorted(chain.from_iterable(rank["buckets"])) == sorted(rank["gradients"])
        assert rank["last"]["bytes"] == sum(wanted.values())
    assert cases[0]["ddp"]["fingerprint"] == cases[1]["ddp"]["fingerprint"]


def test_a_buffer_that_the_module_assigns_anew(cases: list[dict[str, Any]]) -> None:
    for rank in (case["moving"] for case in cases):
        assert (rank["last"]["state"], rank["last"]["compared"]) == ("locked", "yes")
        assert ("broadcast", "average", 16) in [tuple(entry) for entry in rank["crossing"]]


def test_what_one_rank_repeated_before_training_does_no_harm(cases: list[dict[str, Any]]) -> None:
    assert [case["early"]["state"] for case in cases] == ["locked", "watching"]
    for rank in cases:
        assert rank["early"]["compared"] == ["yes", "yes"]


def test_hooks_of_fsdp(cases: list[dict[str, Any]]) -> None:
    for rank in (case["fsdp"] for case in cases):
        assert (rank["last"]["state"], rank["last"]["compared"]) == ("locked", "yes")
        operations = [operation for operation, _, _ in rank["crossing"]]
        assert operations.count("all_gather") >= 2
        assert operations.count("reduce_scatter") == 2
        # Halves of two layers: each gathers what it has and hands in all that it computed.
        reduced = [size for operation, _, size in rank["crossing"] if operation == "reduce_scatter"]
        assert sorted(reduced) == sorted([4 * (16 * 64 + 64), 4 * (64 * 4 + 4)])


def test_eager_code_and_messages(cases: list[dict[str, Any]]) -> None:
    for rank in cases:
        assert rank["eager"]["last"]["state"] == "locked"
        assert [size for _, _, size in rank["eager"]["crossing"]] == [256, 32]
        # Each rank recorded its own ends alone; the plan has both messages.
        sent = [entry for entry in rank["messages"]["crossing"] if entry[0] == "send"]
        assert [size for _, _, size in sent] == [32, 36]
        assert [entry[0] for entry in rank["messages"]["crossing"]].count("all_reduce") == 1


def test_where_nothing_repeats_nothing_is_claimed(cases: list[dict[str, Any]]) -> None:
    for rank in cases:
        assert rank["never"]["state"]["state"] == "watching"
        assert rank["never"]["unused"]["state"] == "watching"
        assert rank["never"]["plan"] == []
        assert rank["loop"]["state"] == "watching"  # this process's steps are an optimizer's


def test_a_changed_step_is_noticed_at_once(cases: list[dict[str, Any]]) -> None:
    for rank in cases:
        assert [tuple(entry) for entry in rank["changed"]] == [
            ("watching", 0, 0),
            ("locked", 0, 16),
            ("locked", 0, 16),
            ("locked", 0, 16),  # sent nothing
            ("locked", 0, 16),
            ("watching", 1, 0),
            ("locked", 1, 24),
            ("locked", 1, 24),
        ]


def test_ranks_that_send_other_tensors_are_told_which(cases: list[dict[str, Any]]) -> None:
    for rank in cases:
        assert "tensor 0.weight.grad" in rank["differ"]
        assert "ranks 0 and 1" in rank["differ"]


def test_damaged_words_of_a_peer_end_no_step(monkeypatch: pytest.MonkeyPatch) -> None:
    group = SimpleNamespace(get_error=lambda: ErrorType.SUCCESS, posted=lambda _: ["{", "[]"])
    module = SimpleNamespace(find_group=lambda _: group)
    monkeypatch.setattr(_record._process, "module", module)
    followed = _record._Watch(cycle=1, asks_left=3)
    _record._compare(1, followed)
    assert followed.asks_left == 0
    assert followed.compared.startswith("no: not a recording")


def test_steps_without_an_optimizer_are_known_by_their_tensors(tmp_path: Path) -> None:
    for rank in jobs.results(jobs.run("roles_record:unmarked", 2, tmp_path)):
        assert rank["before"] == ["watching"] * 5
        assert rank["after"]["state"] == "locked"
        assert rank["after"]["operations"] == 6
        assert sorted(size for _, _, size in rank["crossing"]) == [12] + [16] * 5


def by_file(model: str, plan: str, out: Path) -> list[dict[str, Any]]:
    return jobs.results(jobs.run("roles_record:by_file", 2, out, model=model, path=plan))


def test_a_plan_from_a_file(tmp_path: Path) -> None:
    """The graph's plan is merged in: what it has must be what was recorded; and so read back."""
    files = roles_record.written(tmp_path)
    for name in ("bad", "absent"):
        with pytest.raises(rdmatensor.InvalidArgument, match=r"RDMATENSOR_PLAN=.* no plan: "):
            _record.is_wanted(files[name])
    found = by_file("small", files["right"], tmp_path / "small")
    for rank in found:
        assert rank["error"] == ""
        assert (rank["last"]["state"], rank["last"]["compared"]) == ("locked", "yes")
        # Gradients and buffers, and the metric's sum, of which the graph knows nothing.
        assert rank["last"]["known_from"] == {"both": 11, "recorded": 1}
        assert Counter(entry[3] for entry in rank["known_from"]) == rank["last"]["known_from"]
        (metric,) = (entry for entry in rank["known_from"] if entry[3] == "recorded")
        assert (metric[0], metric[2]) == ("all_reduce", 12)
        assert rank["merged"] == found[0]["merged"]
    merged = tmp_path / "merged.json"
    merged.write_text(found[0]["merged"], encoding="utf-8")
    for rank in by_file("other", str(merged), tmp_path / "other"):
        assert (
            "tensor 4.bias.grad: the plan has all_reduce of 16 bytes, recorded were 20"
            in rank["error"]
        )


def test_the_recorder_can_be_switched_off(tmp_path: Path) -> None:
    environment = {"RDMATENSOR_PLAN": "off"}
    for rank in jobs.results(
        jobs.run("roles_record:switched_off", 2, tmp_path, environment=environment)
    ):
        assert rank["state"] == {"state": "off", "reason": "RDMATENSOR_PLAN=off", "changes": 0}
        assert rank["plan"] == []
