"""Once a static model's step is known it costs no copy, no control message and no registration.

That is from the second step on with a plan that is not chosen again, from the twelfth on with one
that is, and from the fourth on in a script that knows of no plan. The library's own counters say
so; a preloaded memcpy() and the kernel's counters of TCP sockets, which know nothing of them,
agree.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jobs
import pytest

pytestmark = pytest.mark.timeout(120)

STEPS, WARM = 5, 4  # of roles_counts
ZERO = ("copied_bytes", "control_messages", "registrations")
SLACK_BYTES = 64 * 1024  # heartbeats and goodbyes


def run(
    role: str, out: Path, witness: str, *, environment: dict[str, str] | None = None, **words: Any
) -> list[dict[str, Any]]:
    return jobs.results(
        jobs.run(
            f"roles_counts:{role}",
            2,
            out,
            timeout_s=90.0,  # some capture a graph
            environment={"LD_PRELOAD": witness, **(environment or {})},
            **words,
        )
    )


@pytest.mark.parametrize("is_anew", [True, False], ids=["zero_grad()", "set_to_none=False"])
def test_a_ddp_script_over_shared_memory(is_anew: bool, tmp_path: Path, witness: str) -> None:
    for rank in run("script", tmp_path, witness, is_anew=is_anew):
        assert rank["before"]["state"] == rank["after"]["state"] == "locked"
        assert rank["after"]["changes"] == 0
        assert {name: rank[name] for name in ZERO} == dict.fromkeys(ZERO, 0)
        per_step = rank["after"]["per_step"]
        assert {name: per_step[name] for name in ZERO} == dict.fromkeys(ZERO, 0)
        buckets = rank["after"]["operations"]
        assert rank["after"]["bytes"] == rank["bytes"]
        # Each rank sums half of each bucket and writes it to both; a tick tells that it may.
        assert rank["writes"] == rank["credits_alone"] == STEPS * buckets
        assert 0.9 < rank["moved_bytes"] / (STEPS * rank["bytes"]) < 1.1
        # The witnesses: nothing went through a memcpy of ours or through a socket.
        assert rank["copied_by_rdmatensor"] == 0
        assert rank["copied_by_all"] < STEPS * rank["bytes"] / 16  # nor by torch
        assert rank["kernel_sent"] + rank["kernel_received"] < SLACK_BYTES
        # DistributedDataParallel's division would move each gradient that is elsewhere: a kernel of
        # torch's, of which no memcpy() tells. Its operands do: with zero_grad() as it is, biases,
        # which are too small for a place of their own.
        assert rank["moved_by_torch"] == (rank["gradients"] / 2 if is_anew else 0)
        assert rank["told"] == (rank["gradients"] / 2 * 512 * 4 if is_anew else 0)


def test_the_witness_sees_copies_where_there_are_some(tmp_path: Path, witness: str) -> None:
    """The same script with buckets in torch's own memory: every bucket is copied twice."""
    for rank in run("script", tmp_path, witness, environment={"RDMATENSOR_ADOPT": "0"}):
        assert rank["moved_by_torch"] == rank["gradients"]
        assert rank["copied_bytes"] >= STEPS * rank["bytes"] / 2
        assert rank["took"]["copying_s"] > 0
        assert rank["copied_by_rdmatensor"] >= STEPS * rank["bytes"] / 4


def check_bindings(rank: dict[str, Any], ways: list[str]) -> None:
    """Each bucket is bound, in one of these ways; none is left after close()."""
    bindings = rank["persistent"]
    assert sorted(one["bytes"] for one in bindings) == sorted(rank["buckets"])
    assert {one["way"] for one in bindings} == set(ways)
    assert {one["operation"] for one in bindings} == {"all_reduce"}
    assert {one["starts"] for one in bindings} == {WARM + 2 * STEPS}
    assert all(bool(one["reason"]) == (one["way"] != "in place") for one in bindings)
    assert all(one["rank"] is None for one in bindings)
    assert rank["left"] == []


def test_a_planned_model_over_shared_memory(tmp_path: Path, witness: str) -> None:
    for rank in run("planned", tmp_path, witness):
        first, *later = rank["steps"]
        assert first["copied_bytes"] == rank["bytes"]  # each gradient once, into its place
        assert first["control_messages"] == 0  # apply() has announced the places
        for step in later:
            assert {name: step[name] for name in ZERO} == dict.fromkeys(ZERO, 0)
            assert step["writes"] > 0
            assert 0.9 < step["moved_bytes"] / rank["bytes"] < 1.1
            assert step["posting_s"] > 0
            assert step["ending_s"] > 0
        assert 0 < rank["held_s"] < rank["steps_s"]
        assert rank["took"]["summing_s"] > 0
        assert rank["took"]["copying_s"] == 0
        check_bindings(rank, ["in place"])
        assert {name: rank[name] for name in ZERO} == dict.fromkeys(ZERO, 0)
        assert rank["copied_by_rdmatensor"] == 0
        # Nor did torch copy as much as one gradient's worth anywhere.
        assert rank["copied_by_all"] < STEPS * rank["bytes"] / 16


@pytest.mark.slow
@pytest.mark.parametrize("model", ["cnn", "lstm", "gpt"])
def test_planned_models_of_other_kinds(model: str, tmp_path: Path, witness: str) -> None:
    """What torch itself copies in their steps, by memcpy() as well, is not looked at."""
    for rank in run("planned", tmp_path, witness, model=model):
        first, *later = rank["steps"]
        assert first["copied_bytes"] == rank["bytes"]
        for step in later:
            assert {name: step[name] for name in ZERO} == dict.fromkeys(ZERO, 0), rank["buckets"]
            assert step["writes"] > 0
        assert {name: rank[name] for name in ZERO} == dict.fromkeys(ZERO, 0)
        assert rank["copied_by_rdmatensor"] == 0


def test_a_planned_model_over_tcp(tmp_path: Path, witness: str) -> None:
    for rank in run("planned", tmp_path, witness, environment={"RDMATENSOR_TRANSPORT": "tcp"}):
        first, *later = rank["steps"]
        assert first["copied_bytes"] == rank["bytes"]
        assert first["control_messages"] > 0
        check_bindings(rank, ["messages"])
        for step in later:
            assert {name: step[name] for name in ZERO} == dict.fromkeys(ZERO, 0)


def test_tcp_says_what_it_costs(tmp_path: Path, witness: str) -> None:
    """Over sockets the kernel copies the payload; the library neither copies nor asks."""
    for rank in run("script", tmp_path, witness, environment={"RDMATENSOR_TRANSPORT": "tcp"}):
        # The plan's own words go through a ring. What is received lands in the buckets, and what is
        # added in memory that each bucket has for itself.
        assert rank["control_messages"] == rank["registrations"] == 0
        assert rank["credits_alone"] > 0
        # A ring of two sends each half of a bucket twice, from where it is to where it belongs.
        assert STEPS * rank["bytes"] <= rank["wire_bytes"] < STEPS * rank["bytes"] + SLACK_BYTES
        assert abs(rank["kernel_sent"] - rank["wire_bytes"]) < SLACK_BYTES
        assert rank["copied_by_rdmatensor"] <= rank["copied_bytes"] + SLACK_BYTES


@pytest.mark.parametrize("world", [2, 3])
def test_collectives_that_repeat_ask_for_nothing_over_tcp(world: int, tmp_path: Path) -> None:
    """Whatever they are, in whatever memory: after the first rounds each receive is a credit."""
    ranks = jobs.run(
        "roles_counts:collectives",
        world,
        tmp_path,
        timeout_s=60.0,
        environment={"RDMATENSOR_TRANSPORT": "tcp"},
    )
    for rank in jobs.results(ranks):
        assert rank["control_messages"] == rank["registrations"] == 0
        assert rank["credits_alone"] > 0
