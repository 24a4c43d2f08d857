"""Methods of c10d::Backend next to the collectives, and large tensors adopted or not."""

from __future__ import annotations

import itertools
import signal
from pathlib import Path

import jobs
import pytest

pytestmark = pytest.mark.turns("transport", first=1)

SIZES = [1 << 20, 16 << 20]


@pytest.mark.parametrize("world", [2, 3])
def test_pending_works_are_waited_for(
    world: int, path_forced: dict[str, str], tmp_path: Path
) -> None:
    ranks = jobs.run("roles_methods:pending", world, tmp_path, environment=path_forced)

    late_s = jobs.results(ranks)[world - 1]["begun_s"]
    for rank in jobs.results(ranks):
        assert rank["sums"] == [world * (world + 1) / 2] * 8
        assert rank["waited_until_s"] > late_s, "it did not wait for the late rank"
    for text in jobs.results(ranks)[0]["texts"]:
        assert "the timeout passed: earlier collectives of this rank are not done" in text


def test_two_threads_wait_for_the_same_works(path_forced: dict[str, str], tmp_path: Path) -> None:
    ranks = jobs.run("roles_methods:pending_together", 2, tmp_path, environment=path_forced)

    assert jobs.results(ranks) == [[True, True]] * 2


@pytest.mark.parametrize(
    ("how", "first", "second"),
    [
        ("aborted", ["DistBackendError", "REMOTE_ERROR"], ["COMM_ERROR"]),  # by the second
        ("late", ["DistNetworkError", "TIMEOUT"], ["REMOTE_ERROR"]),  # of the first
        ("killed", ["DistBackendError", "COMM_ERROR"], None),
    ],
)
def test_a_group_says_what_went_wrong(
    how: str,
    first: list[str],
    second: list[str] | None,
    path_forced: dict[str, str],
    tmp_path: Path,
) -> None:
    ranks = jobs.run("roles_methods:errors", 2, tmp_path, environment=path_forced, how=how)

    assert [rank.exit for rank in ranks] == [0, 0 if second else -signal.SIGKILL]
    assert ranks[0].result == ["SUCCESS", *first]
    assert second is None or ranks[1].result == ["SUCCESS", *second]


def test_sequence_numbers_are_in_step(path_forced: dict[str, str], tmp_path: Path) -> None:
    """Each collective is one; so is a list of small tensors, which go as one."""
    ranks = jobs.run("roles_methods:numbers", 3, tmp_path, environment=path_forced)

    first, second, third = jobs.results(ranks)
    assert first == second
    steps = [after - before for before, after in itertools.pairwise(third)]
    assert steps == [1, 3, 1, 1]
    assert first[:4] == third[:4]
    assert first[4:] == [1, third[4]]


@pytest.mark.parametrize("world", [2, 3])
def test_groups_do_not_take_each_others_messages(
    world: int, path_forced: dict[str, str], tmp_path: Path
) -> None:
    role = "roles_methods:same_tag_in_two_groups"
    ranks = jobs.run(role, world, tmp_path, environment=path_forced)

    assert jobs.results(ranks)[world - 1] == [1.0, 2.0, 3.0]


@pytest.mark.parametrize("size_bytes", SIZES)
def test_an_adopted_tensor_is_summed_without_a_copy(
    size_bytes: int, transport: str, path_forced: dict[str, str], tmp_path: Path
) -> None:
    role = "roles_methods:large_on_request"
    ranks = jobs.run(role, 2, tmp_path, environment=path_forced, size_bytes=size_bytes)

    for rank in jobs.results(ranks):
        private, adopted = rank["private"], rank["adopted"]
        assert all(turn["is_right"] for turn in (*private, *adopted))
        assert [turn["is_in_arena"] for turn in adopted] == [True] * 3
        assert len({turn["address"] for turn in adopted}) == 1
        assert [turn["copied"] for turn in adopted[1:]] == [0, 0]
        assert not any(turn["is_in_arena"] for turn in private)
        if transport == "shm":  # over TCP what the kernel copies is in no counter of ours
            assert all(turn["copied"] >= size_bytes / 2 for turn in private)


@pytest.mark.parametrize("size_bytes", SIZES)
def test_a_gradient_that_repeats_is_summed_without_a_copy(
    size_bytes: int, path_forced: dict[str, str], tmp_path: Path
) -> None:
    role = "roles_methods:large_by_default"
    ranks = jobs.run(role, 2, tmp_path, environment=path_forced, size_bytes=size_bytes)

    for steps in jobs.results(ranks):
        assert all(step["is_right"] for step in steps)
        assert all(step["is_in_arena"] for step in steps[1:])
        assert len({step["address"] for step in steps[2:]}) == 1
        assert [step["copied"] for step in steps[3:]] == [0, 0]


@pytest.mark.parametrize("world", [2, 3])
def test_a_completion_hook_hears_of_each_operation_once(
    world: int, path_forced: dict[str, str], tmp_path: Path
) -> None:
    """Also of those that nobody waits for; the job ends with the hook in place."""
    ranks = jobs.run("roles_methods:hooked", world, tmp_path, environment=path_forced)

    late_s = jobs.results(ranks)[world - 1]["begun_s"]
    for number, rank in enumerate(jobs.results(ranks)):
        heard = rank["heard"]
        sent = {0: ["SEND"], 1: ["RECV"]}.get(number, [])
        begun = ["ALLREDUCE"] * 3 + ["_ALLGATHER_BASE", "BROADCAST"]
        assert [op for op, *_ in heard] == begun + sent
        assert [seq for _, seq, *_ in heard[:5]] == [2, 3, 4, 5, 6]
        assert all(active_s >= 0 and is_in_order for *_, active_s, is_in_order in heard)  # whole us
        assert rank["in_time"] == 5, "it did not wait for the hook"
        assert rank["kept"]
        assert rank["twice"] == "rdmatensor: the group has a completion hook already"
        assert "a completion hook failed" in ranks[number].log
        if number < world - 1:
            left_s = rank["left_s"]
            assert left_s < late_s, "nobody was late"
            assert left_s + heard[3][2] > late_s, "it ended before the late rank came"


@pytest.mark.slow
def test_a_slow_hook_is_called_once_at_a_time(path_forced: dict[str, str], tmp_path: Path) -> None:
    """In order; and a receive that is given up takes nothing away from the next."""
    ranks = jobs.run("roles_methods:slow_hook", 2, tmp_path, environment=path_forced)

    for rank in jobs.results(ranks):
        assert rank["numbers"] == [1, 2, 3]
        assert rank["most_inside"] == 1
    assert jobs.results(ranks)[1]["got"] == [1.0, 1.0]


def test_durations_are_known_once_they_are_asked_for(
    path_forced: dict[str, str], tmp_path: Path
) -> None:
    ranks = jobs.run("roles_methods:timed", 2, tmp_path, environment=path_forced)

    first, second = jobs.results(ranks)
    for rank in (first, second):
        assert rank["texts"] == [
            "rdmatensor:all_reduce was not timed: call _enable_collectives_timing() of the group"
            " before it begins"
        ]
        assert 0 < rank["took_ms"] < 1000 * (rank["waited_until_s"] - rank["begun_s"])
    assert first["left_s"] < second["begun_s"], "nobody was late"
    assert first["left_s"] + first["took_ms"] / 1000 > second["begun_s"]
