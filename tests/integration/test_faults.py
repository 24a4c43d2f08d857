"""Faults end as exceptions that name the rank and the operation, and never hang."""

from __future__ import annotations

import itertools
import re
import signal
from pathlib import Path

import jobs
import pytest
from meeting import SCALE

pytestmark = pytest.mark.turns("transport", first=1)

COMPUTING_S = (15.0, 60.0)
# A death is heard of, not inferred: well before the silence of a peer counts as one.
PEER_TIMEOUT_S = 20.0
# A wait ends by its own time-out, not by one that is a hundred times as long, however busy the
# machine is: in so many of its own.
MOST_TIMEOUTS = 30.0 * SCALE
# Of roles_faults.differing_call(): rank 1's, and the others'.
USUAL_CALL = "all_reduce (sum) of 5 float32"
ODD_CALLS = {
    "count": "all_reduce (sum) of 6 float32",
    "large count": "all_reduce (sum) of 1048577 float32",
    "dtype": "all_reduce (sum) of 5 int32",
    "reduction": "all_reduce (max) of 5 float32",
    "operation": "broadcast of 5 float32",
}
# torch's words for both ranks' calls in TORCH_DISTRIBUTED_DEBUG=DETAIL.
DETAIL = {
    "shape": ("OpType=ALLREDUCE, TensorShape=[3],", "OpType=ALLREDUCE, TensorShape=[4],"),
    "operation": ("OpType=BROADCAST, TensorShape=[3],", "OpType=ALLREDUCE, TensorShape=[3],"),
}
COMPUTING = list(itertools.product(("shm", "tcp"), COMPUTING_S))


@pytest.fixture(scope="module", autouse=True)
def computing(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[tuple[str, float], jobs.Job]:
    """Start what sleeps for a minute before the other tests; it is looked at after them."""
    calls = [item for item in request.session.items if "holds_the_gil" in item.name]
    wanted = {
        (item.callspec.params["transport"], item.callspec.params["seconds"]) for item in calls
    }
    return {
        (transport, seconds): jobs.start(
            "roles_faults:a_rank_computes",
            2,
            tmp_path_factory.mktemp(f"computing-{transport}-{seconds:.0f}"),
            timeout_s=seconds + 30.0,
            environment={"RDMATENSOR_TRANSPORT": transport},
            seconds=seconds,
        )
        for transport, seconds in COMPUTING
        if (transport, seconds) in wanted
    }


@pytest.mark.parametrize("how", ["all_reduce", "recv", "future", "transfer"])
@pytest.mark.parametrize("victim", [0, 1, 2])
def test_killed_rank_is_named_by_every_survivor(
    victim: int, how: str, path_forced: dict[str, str], tmp_path: Path
) -> None:
    died_at = tmp_path / "died_at"
    ranks = jobs.run(
        "roles_faults:a_rank_is_killed",
        3,
        tmp_path,
        environment={**path_forced, "RDMATENSOR_PEER_TIMEOUT_S": f"{PEER_TIMEOUT_S:.0f}"},
        victim=victim,
        how=how,
        died_at=str(died_at),
    )

    assert ranks[victim].exit == -9
    survivors = jobs.results([rank for rank in ranks if rank.number != victim])
    for survivor in survivors:
        assert f"rank {victim}" in survivor["text"]
        assert f"rank {victim}" in survivor["again"]
        assert "aborted" not in survivor["again"]
        assert survivor["left"] == {}
        assert ("recv" if how == "recv" else "all_reduce") in survivor["text"]
        heard_s = survivor["at_s"] - float(died_at.read_text(encoding="utf-8"))
        assert heard_s < PEER_TIMEOUT_S / 2


@pytest.mark.parametrize(("what", "odd"), ODD_CALLS.items(), ids=str)
def test_ranks_that_disagree_learn_how(
    what: str, odd: str, path_forced: dict[str, str], tmp_path: Path
) -> None:
    """Both calls in words, and of two ranks which one made which: on every rank."""
    ranks = jobs.run("roles_faults:ranks_disagree", 3, tmp_path, environment=path_forced, what=what)

    seen = jobs.results(ranks)
    assert [rank["type"] for rank in seen] == ["DistBackendError"] * 3, seen
    for rank in seen:
        assert re.search(rf"rank 1 (called|\(this one\)) {re.escape(odd)}\b", rank["text"]), seen
        usual = re.escape(USUAL_CALL)
        assert re.search(rf"rank [02] (called|\(this one\)) {usual}\b", rank["text"]), seen


def test_torchs_own_comparison_of_calls_works(tmp_path: Path) -> None:
    """TORCH_DISTRIBUTED_DEBUG=DETAIL, which wraps this backend as it does Gloo."""
    environment = {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}
    for seen in jobs.results(
        jobs.run("roles_faults:detailed", 2, tmp_path, environment=environment)
    ):
        assert seen.pop("level") == "DETAIL"
        assert seen.pop("sum") == "1.0"
        assert set(seen) == set(DETAIL)
        for what, text in seen.items():
            assert "Detected mismatch between collectives on ranks" in text
            for rank, words in enumerate(DETAIL[what]):
                ran = re.search(rf"Rank {rank} is running collective: (\w+\([^)]*\))", text)
                assert ran is not None, text
                assert words in ran[1], text


def test_what_cannot_be_moved_is_refused_on_the_rank_that_gave_it(tmp_path: Path) -> None:
    expected = {
        "expanded": "ValueError: rdmatensor:broadcast: the tensor of shape [3] and strides [0]",
        "recv": "ValueError: rdmatensor:recv: the tensor of shape [3] and strides [0] has several",
        "device": "ValueError: rdmatensor:all_reduce: the tensor is on meta",
        "lengths": "ValueError: rdmatensor:all_gather: the tensors differ in size",
        "list": "ValueError: rdmatensor:all_gather: the list has 1 tensors for a group of 2",
        "dtypes": "ValueError: rdmatensor:all_gather: the tensors differ in dtype",
        "average": "ValueError: rdmatensor:all_reduce: avg is not defined for bool",
        "float8": "ValueError: rdmatensor:all_reduce: tensors of Float8_e4m3fn cannot be reduced",
        "splits": "ValueError: rdmatensor:all_to_all: the split sizes",
        "tag": "ValueError: rdmatensor:send: the tag is -1",
        "rank": "ValueError: rdmatensor:send: rank 2 of a group of 2",
        "conjugate": "ValueError: rdmatensor:broadcast: the tensor is a lazy conjugate",
        "afterwards": "sum [2.0, 2.0, 2.0]",
    }
    for errors in jobs.results(jobs.run("roles_faults:bad_arguments", 2, tmp_path)):
        assert set(errors) == set(expected)
        for case, text in expected.items():
            assert errors[case].startswith(text), case
        assert "cpu:rdmatensor,cuda:nccl" in errors["device"]


def test_waits_end_at_their_deadline(path_forced: dict[str, str], tmp_path: Path) -> None:
    ranks = jobs.run("roles_faults:deadlines_pass", 2, tmp_path, environment=path_forced)

    seen = jobs.results(ranks)[0]
    for case in ("wait", "again", "recv"):
        assert seen[case].startswith("DistNetworkError: rdmatensor:recv from rank 1, tag "), seen
        assert "timeout passed: not done after 0.3 s" in seen[case]
    assert 2 <= seen["took"] < MOST_TIMEOUTS
    # The receive that timed out must not swallow the message that a later one waits for.
    assert seen["later"] == "no error"
    assert seen["value"] == [5.0, 5.0, 5.0]


def test_collective_ends_at_its_deadline(path_forced: dict[str, str], tmp_path: Path) -> None:
    ranks = jobs.run("roles_faults:a_collective_times_out", 2, tmp_path, environment=path_forced)

    seen = jobs.results(ranks)[0]
    assert seen["text"].startswith("DistNetworkError: rdmatensor:all_reduce: the timeout passed")
    assert "rank 1" in seen["text"]
    assert 1 <= seen["took"] < MOST_TIMEOUTS


@pytest.mark.slow
@pytest.mark.timeout(90)
def test_a_wait_that_gives_up_before_the_library_names_who_is_missing(tmp_path: Path) -> None:
    """The library waits on, as the peer may use the tensor until it counts as dead."""
    environment = {"RDMATENSOR_TRANSPORT": "tcp", "RDMATENSOR_PEER_TIMEOUT_S": "60"}
    ranks = jobs.run("roles_faults:a_rank_is_stopped", 2, tmp_path, environment=environment)

    assert [rank.exit for rank in ranks] == [0, -signal.SIGKILL]
    text = ranks[0].result["text"]
    assert text.startswith("DistNetworkError: rdmatensor:all_reduce: the timeout passed: not done")
    assert "nothing from rank 1" in text


@pytest.mark.parametrize("what", ["wait", "barrier", "dropped"])
def test_a_wait_that_is_shorter_than_the_groups_names_who_is_missing(
    what: str, path_forced: dict[str, str], tmp_path: Path
) -> None:
    """The group goes on: the collective is done once the other has come."""
    ranks = jobs.run(
        "roles_faults:a_wait_is_shorter", 2, tmp_path, environment=path_forced, what=what
    )

    seen = jobs.results(ranks)
    operation = "all_reduce" if what == "wait" else "barrier"
    assert seen[0]["text"].startswith(
        f"DistNetworkError: rdmatensor:{operation}: the timeout passed"
    )
    assert re.search(r"all_reduce #2: after [0-9.]+ s nothing from rank 1\b", seen[0]["text"])
    assert [rank["total"] for rank in seen] == [[4.0] * 3] * 2


def test_a_barrier_gives_up_though_what_it_waits_for_ends_a_moment_later(tmp_path: Path) -> None:
    seen = jobs.results(jobs.run("roles_faults:a_dropped_one_ends_late", 2, tmp_path))

    assert "rdmatensor:barrier: the timeout passed" in seen[0]["text"]


@pytest.mark.parametrize("what", ["wait", "barrier"])
def test_a_second_thread_gives_up_at_its_own_deadline(what: str, tmp_path: Path) -> None:
    """And names who is missing, though the first thread drives the operation all the time."""
    seen = jobs.results(jobs.run("roles_faults:two_threads_wait", 2, tmp_path, what=what))[0]

    assert "the timeout passed" in seen["text"]
    assert "nothing from rank 1" in seen["text"]
    assert 1 <= seen["took"] < MOST_TIMEOUTS
    assert seen["total"] == [4.0] * 3


@pytest.mark.timeout(90)
def test_a_wait_that_is_shorter_than_the_groups_names_who_is_stopped(tmp_path: Path) -> None:
    environment = {"RDMATENSOR_TRANSPORT": "tcp", "RDMATENSOR_PEER_TIMEOUT_S": "60"}
    ranks = jobs.run(
        "roles_faults:a_wait_beside_a_stopped_rank", 3, tmp_path, environment=environment
    )

    assert [rank.exit for rank in ranks] == [0, 0, -signal.SIGKILL]
    for rank in ranks[:2]:
        assert "rdmatensor:all_reduce: the timeout passed" in rank.result["text"]
        assert re.search(r"all_reduce #2: after [0-9.]+ s .*\brank 2\b", rank.result["text"])


def test_group_whose_members_do_not_come_says_who_is_missing(tmp_path: Path) -> None:
    seen = jobs.results(jobs.run("roles_faults:nobody_comes", 2, tmp_path))[1]

    assert "rank 0 of 2 did not join the group within 2000 ms" in seen["text"]
    assert 1 <= seen["took"] < MOST_TIMEOUTS / 3


def test_signals_are_heard_during_a_wait(path_forced: dict[str, str], tmp_path: Path) -> None:
    ranks = jobs.run("roles_faults:ctrl_c", 2, tmp_path, environment=path_forced)

    assert 1 <= jobs.results(ranks)[0]["took"] < MOST_TIMEOUTS


@pytest.mark.slow
@pytest.mark.timeout(140)
@pytest.mark.parametrize(("transport", "seconds"), COMPUTING)
def test_rank_that_holds_the_gil_is_not_called_dead(
    transport: str, seconds: float, computing: dict[tuple[str, float], jobs.Job]
) -> None:
    assert jobs.results(computing[transport, seconds].finish()) == [2.0, 2.0]
