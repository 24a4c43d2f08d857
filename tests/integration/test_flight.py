"""The last operations of a group: asked for, and told when one fails."""

from __future__ import annotations

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
    assert "timeout" in first["error"]
    assert ranks[0].log.count("the last ones of this rank:") == 1
    assert "rdmatensor:all_reduce, 4000 B Float, failed after" in ranks[0].log


def test_the_oldest_make_room_and_groups_are_apart(tmp_path: Path) -> None:
    for rank in jobs.results(jobs.run("roles_flight:many", 2, tmp_path)):
        numbers = [one["number"] for one in rank["default"]]
        assert numbers == list(range(numbers[0], numbers[0] + 128))
        assert {one["state"] for one in rank["default"]} == {"done"}
        assert rank["other"][-1]["operation"] == "rdmatensor:barrier"
        assert len(rank["other"]) < 10
