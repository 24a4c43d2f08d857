"""The recorder finds the step that repeats, names what crosses in it, and the ranks compare it."""

from __future__ import annotations

import contextlib
from collections import Counter
from dataclasses import replace
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jobs
import pytest
import roles_record
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._C._distributed_c10d import ErrorType

import rdmatensor
from graph_analysis import RecordedOp, RecordedTensor, record_plan
from graph_analysis.recording import recording_to_json
from rdmatensor import _record
from rdmatensor._plan_memory import PlanMismatch
from rdmatensor._record_agree import agreed


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
        # The graph of the module shows none of that; the plan of both has it, and what it computes.
        assert rank["of_graph"] == []
        assert rank["merged"] == [[*entry, "recorded"] for entry in rank["crossing"]]
        assert {"activation", "gradient", "parameter"} <= set(rank["roles"])


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


def test_a_step_that_comes_back_is_not_read_again(cases: list[dict[str, Any]]) -> None:
    for rank in cases:
        first, second = rank["again"]
        assert first == ["locked", 0, "yes", 1, 1]  # what both ranks left is the same text
        assert second == ["locked", 1, "yes", 1, 1]


def test_ranks_that_send_other_tensors_are_told_which(cases: list[dict[str, Any]]) -> None:
    for rank in cases:
        assert "tensor 0.weight.grad" in rank["differ"]
        assert "ranks 0 and 1" in rank["differ"]


class _Store:
    """A group whose store holds these bytes."""

    def __init__(self, said: list[bytes]) -> None:
        self._said = said
        self.broken_by: list[str] = []

    def get_error(self) -> ErrorType:
        return ErrorType.SUCCESS

    def posted(self, _what: str) -> list[str]:
        return [one.decode() for one in self._said]  # as the extension makes text of them

    def break_group(self, reason: str) -> None:
        self.broken_by.append(reason)


def compared(said: list[bytes]) -> tuple[str, list[str]]:
    """How a comparison with what the store holds ended, and what it ended the group with."""
    store, followed = _Store(said), _record._Watch(cycle=1, asks_left=3)
    module = SimpleNamespace(find_group=lambda _: store)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_record._process, "module", module)
        with contextlib.suppress(_record.PlanMismatch):
            _record._compare(1, followed)
    assert followed.asks_left == 0
    return followed.compared, store.broken_by


@pytest.mark.parametrize("said", [b"{", b"\xff", b'"\\ud800"', b"[" * 100_000])
def test_damaged_words_of_a_peer_end_no_step(said: bytes) -> None:
    found, broken_by = compared([said, b"[]"])
    assert found.startswith("no: ")
    assert broken_by == []


OP = RecordedOp("all_reduce", "float32", 4, 8, 8, 0, None, None, 0, True, ())
GRADIENT = RecordedTensor("w.grad", "gradient", "float32", 4, (2,), "w")
MINE = (replace(OP, operation="broadcast", root=0), replace(OP, tensors=(GRADIENT,)), OP)
WORDS = recording_to_json(MINE).encode()


@settings(deadline=None)  # a loaded machine is no finding
@given(st.binary(max_size=60) | st.text(max_size=40).map(str.encode))
def test_whatever_the_store_holds_a_comparison_ends(said: bytes) -> None:
    assert compared([WORDS, WORDS]) == ("yes", [])
    found, broken_by = compared([WORDS, said])
    assert found.startswith("no: ")
    assert broken_by == []


@settings(deadline=None)
@given(st.integers(0, 1 << 16), st.integers(0, 255))
def test_a_changed_byte_in_the_store_is_seen_or_ends_the_group(at: int, byte: int) -> None:
    damaged = bytearray(WORDS)
    damaged[at % len(damaged)] = byte
    found, broken_by = compared([WORDS, bytes(damaged)])
    assert found.startswith(("yes", "no: ")) or len(broken_by) == 1
    assert all("the ranks recorded different steps" in why for why in broken_by)


def test_steps_without_an_optimizer_are_known_by_their_tensors(tmp_path: Path) -> None:
    for rank in jobs.results(jobs.run("roles_record:unmarked", 2, tmp_path)):
        assert rank["before"] == ["watching"] * 5
        assert rank["after"]["state"] == "locked"
        assert rank["after"]["operations"] == 6
        assert sorted(size for _, _, size in rank["crossing"]) == [12] + [16] * 5


def by_file(model: str, plan: str, out: Path) -> list[dict[str, Any]]:
    return jobs.results(jobs.run("roles_record:by_file", 2, out, model=model, path=plan))


def test_a_plan_that_one_rank_alone_has(tmp_path: Path) -> None:
    files = roles_record.written(tmp_path)
    for rank in by_file("alone", files["right"], tmp_path / "alone"):
        assert "RDMATENSOR_PLAN of rank" in rank["error"]


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
        # Gradients and buffers, and what rank 0 tells, of which the graph knows nothing.
        assert rank["last"]["known_from"] == {"both": 11, "recorded": 1}
        assert Counter(entry[3] for entry in rank["known_from"]) == rank["last"]["known_from"]
        (told,) = (entry for entry in rank["known_from"] if entry[3] == "recorded")
        assert (told[0], told[2]) == ("broadcast", 12)
        # Trained by, it leaves that to the program.
        assert (rank["applied"]["steps"], rank["applied"]["copied"]) == (1, 8)
        assert rank["merged"] == found[0]["merged"]
    merged = tmp_path / "merged.json"
    merged.write_text(found[0]["merged"], encoding="utf-8")
    for rank in by_file("other", str(merged), tmp_path / "other"):
        assert (
            "tensor 4.bias.grad: the plan has all_reduce of 16 bytes, recorded were 20"
            in rank["error"]
        )


def test_a_plan_with_what_has_no_name_is_not_of_every_group() -> None:
    """A merged or recorded plan calls some tensors by a number, as every other group does."""

    def summed(*tensors: RecordedTensor) -> RecordedOp:
        return RecordedOp("all_reduce", "float32", 4, 4, 4, 0, None, None, 0, True, tensors)

    gradient = RecordedTensor("w.grad", "gradient", "float32", 4, (1,), "w")
    plan = record_plan([(summed(), summed(gradient))] * 2)
    others = [(summed(), summed())] * 2
    assert agreed(others, plan) == record_plan(others)
    with pytest.raises(PlanMismatch, match="tensor all_reduce 0: the plan has"):
        agreed([(summed(gradient),)] * 2, plan)
    # Where the plan itself has no names, it is of the groups that have a tensor of such a number.
    nameless = record_plan([(summed(),) * 3] * 2)
    with pytest.raises(PlanMismatch, match="tensor all_reduce 2: "):
        agreed(others, nameless)


def test_the_recorder_can_be_switched_off(tmp_path: Path) -> None:
    environment = {"RDMATENSOR_PLAN": "off"}
    for rank in jobs.results(
        jobs.run("roles_record:switched_off", 2, tmp_path, environment=environment)
    ):
        assert rank["state"] == {"state": "off", "reason": "RDMATENSOR_PLAN=off", "changes": 0}
        assert rank["plan"] == []
