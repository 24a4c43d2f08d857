"""The last operations of a group: asked for, and told when one fails."""

from __future__ import annotations

import re
from pathlib import Path

import jobs
import pytest


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_timeout_leaves_the_last_operations(transport: str, tmp_path: Path) -> None:
    ranks = jobs.run(
        "roles_flight:until_a_timeout", 2, tmp_path, environment={"RDMATENSOR_TRANSPORT": transport}
    )

    first = ranks[0].result
    done = [
        ("rdmatensor:all_reduce", 8, "torch.float32", "done"),
        ("rdmatensor:send to rank 1, tag 0", 24, "torch.float64", "done"),
    ]
    last = ("rdmatensor:all_reduce", 4000, "torch.float32")
    for when, state in (("meanwhile", "in flight"), ("after", "failed")):
        found = [
            (one["operation"], one["bytes"], one["dtype"], one["state"]) for one in first[when]
        ]
        assert found[-3:] == [*done, (*last, state)]
    assert 0.1 <= first["meanwhile"][-1]["seconds"] <= first["after"][-1]["seconds"]
    number = first["after"][-1]["sequence"]
    assert first["meanwhile"][-1]["sequence"] == first["sequence_number"] == number
    assert re.search(rf"timeout.*\ball_reduce #{number}: after ", first["error"])
    assert ranks[0].log.count("the last ones of this rank:") == 1
    assert f"rdmatensor:all_reduce #{number}, 4000 B Float, failed after" in ranks[0].log


def test_the_oldest_make_room_and_groups_are_apart(tmp_path: Path) -> None:
    for rank in jobs.results(jobs.run("roles_flight:many", 2, tmp_path)):
        numbers = [one["number"] for one in rank["default"]]
        assert numbers == list(range(numbers[0], numbers[0] + 128))
        assert {one["state"] for one in rank["default"]} == {"done"}
        assert rank["other"][-1]["operation"] == "rdmatensor:barrier"
        assert len(rank["other"]) < 10


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_one_number_names_a_collective_everywhere(transport: str, tmp_path: Path) -> None:
    """On all ranks, however many messages each had: in errors, in the last ones and in the log."""
    ranks = jobs.run(
        "roles_flight:stayed_away", 3, tmp_path, environment={"RDMATENSOR_TRANSPORT": transport}
    )

    for rank in ranks[:2]:
        for how, words in (("alone", "#3"), ("next to messages", "#3"), ("coalesced", "#3 to #4")):
            found = rank.result[how]
            last = found["last"]
            said = re.search(r": all_reduce #(\d+)[:,] ", found["error"])
            assert said is not None, found["error"]
            assert last["sequence"] == found["sequence_number"] == int(words[-1])
            assert last["collectives"] == int(words[-1]) - 2
            assert int(said[1]) in range(3, int(words[-1]) + 1)
            assert (last["operation"], last["state"]) == ("rdmatensor:all_reduce", "failed")
            assert f"rdmatensor:all_reduce {words}, {last['bytes']} B Float, failed" in rank.log
            # What is refused has no part in the group's order.
            again = rank.result[f"{how}, again"]
            assert (again["last"]["state"], again["last"]["sequence"]) == ("failed", None)
            assert again["last"]["collectives"] == 0
            assert again["sequence_number"] == found["sequence_number"]
    messages = [rank.result["next to messages"] for rank in ranks[:2]]
    assert [one["messages"] for one in messages] == [[None] * 3, []]
    assert messages[0]["last"]["number"] == messages[1]["last"]["number"] + 3
