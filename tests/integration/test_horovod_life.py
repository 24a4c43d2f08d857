"""Horovod's API: meeting, the first operations, the fast lane."""

from __future__ import annotations

from pathlib import Path

import jobs
import pytest


@pytest.mark.parametrize("world", [1, 2, 3])
def test_a_process_inits_twice(world: int, path_forced: dict[str, str], tmp_path: Path) -> None:
    ranks = jobs.run("roles_horovod:life", world, tmp_path, environment=path_forced)
    for rank, result in enumerate(jobs.results(ranks)):
        assert result["place"] == [rank, world, rank, world, 1]
        assert result["average"] == [(world - 1) / 2] * 2
        assert result["gathered"] == [one for one in range(world) for _ in range(one + 1)]
        assert result["sent"] == [world - 1]
        assert result["again"] == [float(sum(range(world)))] * 2


@pytest.mark.parametrize("ready", ["in_order", "shuffled"])
def test_no_control_message_from_the_fourth_step_on(
    ready: str, path_forced: dict[str, str], tmp_path: Path
) -> None:
    ranks = jobs.run("roles_horovod:steps", 3, tmp_path, environment=path_forced, ready=ready)
    for sent in jobs.results(ranks):
        assert sent[1] > sent[0] > 0, "the first steps are negotiated"
        # The last count may have the answer to a rank that has left already.
        assert sent[3:-1] == sent[2:3] * 4
