"""The life of groups: made, made again, shared, described, ended in every way."""

from __future__ import annotations

from pathlib import Path

import jobs
import pytest

pytestmark = pytest.mark.turns("transport")


def test_groups_are_made_again_with_other_ranks(
    path_forced: dict[str, str], tmp_path: Path
) -> None:
    store = str(tmp_path / "store")
    ranks = jobs.run(
        "roles_life:made_again", 3, tmp_path / "job", environment=path_forced, store=store
    )

    # Rank 0 is process 0, then 2, then 1.
    for rank, sums in enumerate(jobs.results(ranks)):
        assert sums[:4] == [3.0, 0.0, 2.0, 1.0]
        assert sums[4:] == ([2.0] if rank < 2 else [])


@pytest.mark.parametrize("world", [3, 4])
def test_sub_groups_overlap(world: int, path_forced: dict[str, str], tmp_path: Path) -> None:
    ranks = jobs.run("roles_life:sub_groups", world, tmp_path, environment=path_forced)

    for rank, seen in enumerate(jobs.results(ranks)):
        assert seen["everybody"] == world
        assert seen["right"]
        assert seen["last"] == (world - 1 if rank in (0, world - 1) else -1)


def test_threads_have_groups_of_their_own(path_forced: dict[str, str], tmp_path: Path) -> None:
    ranks = jobs.run("roles_life:threads", 2, tmp_path, environment=path_forced)

    assert jobs.results(ranks) == [[1.0, 3.0, 5.0, 7.0]] * 2


@pytest.mark.parametrize(
    ("how", "extra"),
    [
        ("not destroyed", 0.0),
        ("in flight", 0.0),
        ("destroyed in flight", 0.0),
        ("twice", 100.0),
        ("arena", 0.0),
        ("at exit: abort", 0.0),
        ("at exit: shutdown", 0.0),
        ("at exit: destroy", 0.0),
    ],
)
def test_processes_end_well_however_they_end(
    how: str, extra: float, path_forced: dict[str, str], tmp_path: Path
) -> None:
    ranks = jobs.run(
        "roles_life:exit_in_a_mess",
        2,
        tmp_path,
        timeout_s=15.0,
        environment=path_forced,
        how=how,
    )

    assert jobs.results(ranks) == [1.0 + extra] * 2
    for rank in ranks:
        assert ("at exit returned" in rank.log) == how.startswith("at exit")
        assert "terminate called" not in rank.log
        assert "Fatal" not in rank.log


def test_abort_ends_what_others_wait_for(path_forced: dict[str, str], tmp_path: Path) -> None:
    ranks = jobs.run("roles_life:aborted", 2, tmp_path, environment=path_forced)

    by_rank = jobs.results(ranks)
    assert by_rank[0]["error"] == "COMM_ERROR"
    assert "rank 0 called abort()" in by_rank[1]["text"]
    assert by_rank[1]["seconds"] < 2.0


def test_abort_passes_on_why(path_forced: dict[str, str], tmp_path: Path) -> None:
    """Who waits for the same rank hears its number, though another one gave up first."""
    role = "roles_life:aborted_for_one_that_never_came"
    store = str(tmp_path / "store")
    ranks = jobs.run(role, 3, tmp_path / "out", environment=path_forced, store=store)

    texts = [told["text"] for told in jobs.results(ranks)]
    assert "rank 2" in texts[0]
    assert "rank 0 called abort() after rdmatensor:all_reduce" in texts[1]
    assert "rank 2" in texts[1]


def test_abort_does_not_pass_on_what_was_overcome(
    path_forced: dict[str, str], tmp_path: Path
) -> None:
    """A receive timed out, and the group went on: it is not why somebody aborts later."""
    role = "roles_life:aborted_after_an_overcome_failure"
    seen = jobs.results(jobs.run(role, 2, tmp_path, environment=path_forced))

    assert len(seen[0]) == 2  # both have timed out
    assert "rank 0 called abort()" in seen[1]["overcome"]
    assert "abort() after" not in seen[1]["overcome"]
    assert "rank 0 called abort() after rdmatensor:recv" in seen[1]["not overcome"]


def test_group_destroyed_by_another_thread_ends_the_wait(
    path_forced: dict[str, str], tmp_path: Path
) -> None:
    ranks = jobs.run("roles_life:shut_down_while_waiting", 2, tmp_path, environment=path_forced)

    for seen in jobs.results(ranks):
        assert seen["ended"]
        assert "rdmatensor:recv from rank" in seen["text"]


def test_two_jobs_on_one_host_do_not_meet(path_forced: dict[str, str], tmp_path: Path) -> None:
    role = "roles_life:one_of_two_jobs"
    started = [
        jobs.start(role, 2, tmp_path / name, environment=path_forced, seed=seed, steps=200)
        for name, seed in (("one", 10.0), ("two", 1000.0))
    ]
    first, second = (job.finish() for job in started)

    assert jobs.results(first) == [21.0, 21.0]
    assert jobs.results(second) == [2001.0, 2001.0]


def test_describe_says_how_each_peer_is_reached(
    transport: str, path_forced: dict[str, str], tmp_path: Path
) -> None:
    ranks = jobs.run("roles_life:descriptions", 3, tmp_path, environment=path_forced)

    by_rank = jobs.results(ranks)
    for rank, seen in enumerate(by_rank):
        others = [other for other in range(3) if other != rank]
        assert [peer["rank"] for peer in seen["peers"]] == others
        assert {peer["path"] for peer in seen["before"]} == {"none"}
        assert seen["secret"] == "store"
        assert seen["name"] == "rdmatensor"
        assert seen["timeout_s"] == 20.0
        for place in seen["listens"]:  # all ranks are on one host
            assert place.startswith(("127.0.0.1:", "[::1]:"))
    for rank in (0, 1):
        (peer,) = by_rank[rank]["ours"]
        assert (peer["rank"], peer["path"]) == (1 - rank, transport)
        assert peer["reason"]


def test_process_groups_are_split(path_forced: dict[str, str], tmp_path: Path) -> None:
    ranks = jobs.run("roles_life:split", 4, tmp_path, environment=path_forced)

    for seen in jobs.results(ranks):
        assert seen["sum"] == seen["want"]


def test_monitored_barrier_names_who_did_not_come(tmp_path: Path) -> None:
    seen = jobs.results(jobs.run("roles_life:monitored", 3, tmp_path))

    assert "Rank 1 failed to pass monitoredBarrier in 1000 ms" in seen[0]["text"]
    assert "Rank 2 successfully reached monitoredBarrier" in seen[2]["text"]


@pytest.mark.parametrize(
    ("name", "text", "default", "same"),
    [
        ("RDMATENSOR_ALGO", "tree", "auto", "auto"),
        ("RDMATENSOR_DETERMINISTIC", "1", "0", "0"),
        ("RDMATENSOR_DETERMINISTIC", "true", "0", "off"),
    ],
)
def test_what_collectives_go_by_must_be_the_same(
    name: str, text: str, default: str, same: str, tmp_path: Path
) -> None:
    role = "roles_life:setting_on_one_rank_only"
    ranks = jobs.run(role, 2, tmp_path / "other", name=name, text=text)
    said = jobs.results(ranks)[1]
    shown = "1" if text == "true" else text
    assert f"{name} is '{shown}' on rank 1 and '{default}' on rank 0" in said
    ranks = jobs.run(role, 2, tmp_path / "same", name=name, text=same)
    assert jobs.results(ranks) == ["agreed", "agreed"]


def test_secret_must_be_given_to_all_ranks_or_none(tmp_path: Path) -> None:
    ranks = jobs.run(
        "roles_life:secret_on_one_rank_only",
        2,
        tmp_path / "job",
        file=str(tmp_path / "secret"),
    )

    text = jobs.results(ranks)[1]
    assert text.startswith("DistStoreError: ")
    assert "rank 1 has a secret from RDMATENSOR_SECRET" in text
    assert "rank 0 has none" in text


def test_who_reads_a_group_while_it_is_shut_down_breaks_nothing(
    path_forced: dict[str, str], tmp_path: Path
) -> None:
    ranks = jobs.run("roles_life:read_while_it_ends", 2, tmp_path, environment=path_forced)

    assert jobs.results(ranks)[1] == ["SUCCESS"] * 10
