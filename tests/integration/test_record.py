"""The recorder finds the step that repeats, names what crosses in it, and ends no job."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import jobs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graph_analysis import PlanError, RecordedOp, RecordedTensor, TransferPlan
from graph_analysis.recording import recording_to_json
from rdmatensor._record.recorder import plan_of
from rdmatensor.errors import PlanMismatchError


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What two ranks say of every program; one job runs them all."""
    out = tmp_path_factory.mktemp("record")
    return jobs.results(jobs.run("roles_record:cases", 2, out, timeout_s=60.0))


pytestmark = pytest.mark.timeout(120)


def test_ddp_without_a_change_of_the_script(cases: list[dict[str, Any]]) -> None:
    for rank in (case["ddp"] for case in cases):
        # The buckets are made again after the first step: the second and the third are equal.
        assert rank["states"] == ["watching"] * 2 + ["locked"] * 4
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
        assert rank["last"]["state"] == "locked"
        assert ("broadcast", "average", 16) in [tuple(entry) for entry in rank["crossing"]]


def test_what_one_rank_repeated_before_training_does_no_harm(cases: list[dict[str, Any]]) -> None:
    assert [case["early"]["state"] for case in cases] == ["locked", "watching"]
    for rank in cases:
        first, second = rank["early"]["crossings"]
        assert [size for _, _, size in first] == [20]
        assert [size for _, _, size in second] == [24]


def test_hooks_of_fsdp(cases: list[dict[str, Any]]) -> None:
    for rank in (case["fsdp"] for case in cases):
        assert rank["last"]["state"] == "locked"
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


def test_steps_that_end_elsewhere_on_each_rank_end_no_job(cases: list[dict[str, Any]]) -> None:
    """As those of a sharded optimizer. Only a program that asks for one plan of all is refused."""
    for rank in (case["sharded steps"] for case in cases):
        assert rank["sums"] == pytest.approx([-0.1 * 2 * 20 * 3, -0.1 * 2 * 20 * 5])
        assert rank["state"]["state"] == "locked"
        assert "the ranks recorded different steps" in rank["said"]


OP = RecordedOp("all_reduce", "float32", 4, 8, 8, 0, None, None, 0, True, ())
GRADIENT = RecordedTensor("w.grad", "gradient", "float32", 4, (2,), "w")
MINE = (replace(OP, operation="broadcast", root=0), replace(OP, tensors=(GRADIENT,)), OP)
WORDS = recording_to_json(MINE)


def compared(*said: str) -> TransferPlan | Exception:
    """Return the plan of two ranks, of which one says this, or the error that a program gets."""
    try:
        return plan_of([WORDS, *said])
    except (PlanError, PlanMismatchError) as error:
        return error


@pytest.mark.parametrize("said", ["{", '"\\ud800"', "[" * 100_000])
def test_damaged_words_of_a_peer_are_an_error(said: str) -> None:
    assert isinstance(compared(said), PlanError)


@settings(deadline=None)  # a loaded machine is no finding
@given(st.text(max_size=40))
def test_whatever_a_peer_says_a_comparison_ends(said: str) -> None:
    assert isinstance(compared(WORDS), TransferPlan)
    assert isinstance(compared(said), PlanError)


@settings(deadline=None)
@given(st.integers(0, 1 << 16), st.integers(0, 127))
def test_a_changed_byte_of_a_peer_is_seen_or_does_no_harm(at: int, byte: int) -> None:
    damaged = bytearray(WORDS.encode())
    damaged[at % len(damaged)] = byte
    found = compared(damaged.decode())
    assert isinstance(found, (TransferPlan, PlanError)) or "different steps" in str(found)


def test_ranks_that_send_other_tensors_learn_which() -> None:
    other = replace(GRADIENT, name="v.grad", of="v")
    theirs = recording_to_json((MINE[0], replace(MINE[1], tensors=(other,)), OP))
    assert "ranks 0 and 1 differ in collective 2" in str(compared(theirs))
    assert "tensor w.grad" in str(compared(theirs))


def test_steps_without_an_optimizer_are_known_by_their_tensors(tmp_path: Path) -> None:
    for rank in jobs.results(jobs.run("roles_record:unmarked", 2, tmp_path)):
        assert rank["before"] == ["watching"] * 5
        assert rank["after"]["state"] == "locked"
        assert rank["after"]["operations"] == 6
        assert sorted(size for _, _, size in rank["crossing"]) == [12] + [16] * 5


def test_the_recorder_can_be_switched_off(tmp_path: Path) -> None:
    environment = {"RDMATENSOR_PLAN": "off"}
    off = "RDMATENSOR_PLAN=off or RDMATENSOR_HOOKS=0"
    for rank in jobs.results(
        jobs.run("roles_record:switched_off", 2, tmp_path, environment=environment)
    ):
        assert rank["state"] == {"state": "off", "reason": off, "changes": 0}
        assert rank["plan"] == []
