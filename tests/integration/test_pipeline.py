"""Pipelines of torch, unchanged: activations and their gradients go straight into their places.

The same losses and gradients as over Gloo, to the bit; once the first steps have told the places a
step costs no copy, no control message and no registration, as the library's counters say and the
witnesses of test_counts.py confirm.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jobs
import pytest

pytestmark = [pytest.mark.timeout(180), pytest.mark.turns("transport", first=1)]

# As in roles_pipeline.py, which imports torch.
STEPS = 5
MICRO_BATCHES = 4
ZERO = ("copied_bytes", "control_messages", "registrations")
SLACK_BYTES = 64 * 1024  # heartbeats and goodbyes
HEADS = 64  # bytes of a message that says what was written, or what may be


def run(world: int, out: Path, name: str, **environment: str) -> list[dict[str, Any]]:
    found = jobs.results(
        jobs.run(
            "roles_pipeline:trains",
            world,
            out,
            timeout_s=100.0,
            environment=environment,
            is_imported_first=True,
            name=name,
        )
    )
    for rank in found:
        assert rank["is_same"]
        assert rank["gradients"] > 0
    return found


def neighbours(rank: int, world: int) -> int:
    """Return how many stages this one sends to, and as many does it receive from."""
    return 1 if rank in (0, world - 1) else 2


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("name", ["GPipe", "1F1B"])
def test_over_shared_memory_a_step_is_writes_and_credits(
    name: str, world: int, witness: str, tmp_path: Path
) -> None:
    found = run(world, tmp_path, name, LD_PRELOAD=witness, RDMATENSOR_TRANSPORT="shm")
    for rank, seen in enumerate(found):
        messages = STEPS * MICRO_BATCHES * neighbours(rank, world)
        assert {name: seen[name] for name in ZERO} == dict.fromkeys(ZERO, 0)
        # Each tensor is a write that says that it is there; each receive says that it may come.
        assert seen["writes"] == 2 * messages
        assert seen["credits_alone"] == messages
        assert 0 <= seen["moved_bytes"] - messages * seen["bytes"] <= seen["writes"] * HEADS
        # The witnesses: nothing went through a memcpy of ours or through a socket.
        assert seen["copied_by_rdmatensor"] == 0
        assert seen["kernel_sent"] + seen["kernel_received"] < SLACK_BYTES
        buffers = [entry for entry in seen["adopted"] if entry["what"].startswith("buffers of")]
        assert sum(entry["bytes"] for entry in buffers) == MICRO_BATCHES * seen["bytes"] * (
            neighbours(rank, world)
        )
        assert all(entry["missed"] == 0 for entry in buffers)


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("name", ["GPipe", "1F1B"])
def test_over_tcp_a_step_is_what_the_sockets_carry(name: str, world: int, tmp_path: Path) -> None:
    """The kernel copies; the library neither copies nor asks, and registers nothing."""
    for rank, seen in enumerate(run(world, tmp_path, name, RDMATENSOR_TRANSPORT="tcp")):
        messages = STEPS * MICRO_BATCHES * neighbours(rank, world)
        assert {name: seen[name] for name in ZERO} == dict.fromkeys(ZERO, 0)
        assert seen["credits_alone"] == messages
        payload = messages * seen["bytes"]
        assert payload <= seen["wire_bytes"] < payload + SLACK_BYTES
        assert abs(seen["kernel_sent"] - seen["wire_bytes"]) < SLACK_BYTES


@pytest.mark.parametrize("name", ["GPipe", "1F1B"])
def test_sums_are_compared_in_the_places(
    name: str, path_forced: dict[str, str], tmp_path: Path
) -> None:
    for rank, seen in enumerate(run(2, tmp_path, name, RDMATENSOR_VERIFY="crc32c", **path_forced)):
        assert {name: seen[name] for name in ZERO} == dict.fromkeys(ZERO, 0)
        messages = STEPS * MICRO_BATCHES * neighbours(rank, 2)
        assert seen["verified_bytes"] >= messages * seen["bytes"]


def test_without_adoption_messages_are_offered_and_asked_for(tmp_path: Path) -> None:
    for seen in run(2, tmp_path, "1F1B", RDMATENSOR_ADOPT="0", RDMATENSOR_TRANSPORT="shm"):
        assert seen["control_messages"] >= STEPS * MICRO_BATCHES
        assert seen["adopted"] == []


@pytest.mark.parametrize("name", ["GPipe", "1F1B"])
def test_what_devices_read_is_born_in_the_arena(name: str, tmp_path: Path) -> None:
    """From the second micro-batch of a direction on; the first one tells which births it sends."""
    ranks = jobs.run(
        "roles_pipeline:sends_from_the_arena",
        3,
        tmp_path,
        timeout_s=100.0,
        is_imported_first=True,
        name=name,
    )
    for rank, seen in enumerate(jobs.results(ranks)):
        assert seen["is_same"]
        for step in seen["places"][1:]:
            assert step == [True] * MICRO_BATCHES * neighbours(rank, 3)
        what = [entry["what"] for entry in seen["adopted"] if "sends" in entry["what"]]
        assert (f"activations that stage {rank} sends" in what) == (rank < 2)
        assert (f"gradients that stage {rank} sends" in what) == (rank > 0)
        assert len(what) <= 2 * MICRO_BATCHES


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_a_stage_that_dies_is_named_by_the_others(
    victim: int, path_forced: dict[str, str], tmp_path: Path
) -> None:
    ranks = jobs.run(
        "roles_pipeline:a_stage_is_killed",
        3,
        tmp_path,
        timeout_s=60.0,
        environment=path_forced,
        is_imported_first=True,
        name="1F1B",
        victim=victim,
    )
    for rank in ranks:
        if rank.number == victim:
            assert rank.exit == -9
        else:
            assert rank.exit == 0, rank.log
            assert f"rank {victim}" in rank.result["error"], rank.result
