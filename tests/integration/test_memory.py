"""Requests for memory that are refused while operations end: each ends as it should anyway."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import jobs
import pytest


@pytest.fixture(scope="module")
def refusing(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment in which a rank can have requests of the backend refused."""
    library = tmp_path_factory.mktemp("refusing") / "librefused.so"
    source = Path(__file__).with_name("refused_new.cpp")
    flags = ["-std=c++20", "-O2", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror"]
    subprocess.run(["g++", *flags, str(source), "-o", str(library), "-ldl"], check=True)
    return {"LD_PRELOAD": str(library)}


@pytest.mark.parametrize(
    ("whose", "said"),
    [
        ("ours", "a completion hook does not hear of an operation"),
        ("torch", "a completion hook failed"),
    ],
)
def test_a_completion_hook_keeps_in_step(
    whose: str, said: str, refusing: dict[str, str], tmp_path: Path
) -> None:
    """A call that fails takes its own record with it, not the one of the next."""
    ranks = jobs.run("roles_memory:hooked", 1, tmp_path, environment=refusing, whose=whose)

    lags = jobs.results(ranks)[0]
    assert len(lags) > 1, "nothing was refused"
    assert {tuple(lag) for lag in lags} == {(0, 0)}
    assert said in ranks[0].log


def test_a_receive_is_given_up_or_goes_on(
    refusing: dict[str, str], path_forced: dict[str, str], tmp_path: Path
) -> None:
    """Where there is no memory to give it up it is as before, and gets its message."""
    environment = {**refusing, **path_forced}
    ranks = jobs.run("roles_memory:given_up", 2, tmp_path, environment=environment)

    told = jobs.results(ranks)[1]
    assert len(told) > 1, "nothing was refused"
    assert {raised for raised, *_ in told} == {"DistNetworkError", "MemoryError"}
    assert {is_over for _, is_over, *_ in told} == {False, True}
    for raised, is_over, early, late in told:
        assert is_over or raised == "MemoryError"
        assert (late if is_over else early) == 0


def test_a_receive_that_cannot_begin_is_not_listed_as_in_flight(
    refusing: dict[str, str], tmp_path: Path
) -> None:
    ranks = jobs.run("roles_memory:refused_receives", 2, tmp_path, environment=refusing)

    raised, states = jobs.results(ranks)[0]
    assert raised > 0, "nothing was refused"
    assert set(states) == {"failed", "done"}
    assert states["failed"] <= raised


def test_a_work_that_is_dropped_ends_nothing_else(
    refusing: dict[str, str], path_forced: dict[str, str], tmp_path: Path
) -> None:
    environment = {**refusing, **path_forced}
    ranks = jobs.run("roles_memory:dropped", 2, tmp_path, environment=environment)

    refused = jobs.results(ranks)[1]
    assert len(refused) > 1, "nothing was refused"


@pytest.mark.slow
@pytest.mark.timeout(90)
def test_a_collective_without_a_work_has_a_deadline(
    refusing: dict[str, str], tmp_path: Path
) -> None:
    """A silent peer may use the tensor as long as it is not dead, and nobody waits for that."""
    environment = {
        **refusing,
        "RDMATENSOR_TRANSPORT": "tcp",
        "RDMATENSOR_PEER_TIMEOUT_S": "600",
    }
    ranks = jobs.run("roles_memory:without_work", 2, tmp_path, environment=environment)

    assert [rank.exit for rank in ranks] == [0, -signal.SIGKILL], ranks[0].log
    seen = ranks[0].result
    assert seen["was_refused"]
    assert seen["text"].startswith("DistNetworkError: rdmatensor:all_reduce: the timeout passed")
    assert "nothing from rank 1" in seen["text"]
    assert "nothing from rank 1" in seen["again"]


def test_the_future_of_a_batch_ends(refusing: dict[str, str], tmp_path: Path) -> None:
    """Also where there is no memory for its result."""
    ends = jobs.results(jobs.run("roles_memory:batched", 2, tmp_path, environment=refusing))[1]

    assert ends[-1] == "done"
    assert "failed" in ends, "no result was refused"
    assert "never" not in ends
