"""Ranks that treat each other as remote, on one machine: two or three hosts of several ranks."""

from __future__ import annotations

from pathlib import Path

import jobs
import pytest
from roles_coalesced import ALGORITHMS

pytestmark = pytest.mark.turns("layout")

# The host of each rank, and what is forced.
CASES = [
    ("0011", "auto"),
    ("0011", "ring"),
    ("0011", "hierarchical"),
    ("0101", "hierarchical"),
    ("0001", "hierarchical"),
    ("00112", "hierarchical"),
]


def test_ranks_of_a_host_share_memory_and_others_do_not(tmp_path: Path) -> None:
    ranks = jobs.run("roles_hosts:paths", 4, tmp_path)

    costs, chosen = (jobs.results(ranks)[0]["collectives"][key] for key in ("costs", "chosen"))
    assert (costs["source"], costs["between"]) == ("measured", "tcp")
    assert chosen["all_gather"]["0"] == "direct"
    assert costs["tcp.alpha_ns"] > 0
    for number, rank in enumerate(jobs.results(ranks)):
        assert rank["is_right"]
        collectives = rank["collectives"]
        assert collectives["way"] == "hosts"
        assert collectives["hosts"] == [0, 0, 1, 1]
        assert collectives["costs"] == costs
        assert collectives["chosen"] == chosen
        near = number ^ 1
        assert {int(peer): path for peer, path in rank["paths"].items()} == {
            peer: "shm" if peer == near else "tcp" for peer in range(4) if peer != number
        }
        far = (number + 2) % 4
        reasons = {int(peer): reason for peer, reason in rank["reasons"].items()}
        assert "RDMATENSOR_TEST_HOST says that the peer is on another host" in reasons[far]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("layout", "algorithm"), CASES)
def test_every_collective_gives_the_bits_of_gloo(
    layout: str, algorithm: str, tmp_path: Path
) -> None:
    environment = {"LAYOUT": layout, "RDMATENSOR_ALGO": algorithm}
    ranks = jobs.run(
        "roles_hosts:compare_with_gloo",
        len(layout),
        tmp_path,
        timeout_s=250.0,
        environment=environment,
    )

    for rank in jobs.results(ranks):
        assert rank["different"] == []
        assert rank["compared"] > 500, "too few cases to mean anything"


def test_operations_in_flight_together(tmp_path: Path) -> None:
    ranks = jobs.run("roles_hosts:asynchronous", 4, tmp_path)

    for rank in jobs.results(ranks):
        assert rank == {"sums": True, "then": True, "dropped": True, "success": True}


def test_a_table_of_costs_is_kept_and_taken(tmp_path: Path) -> None:
    table = tmp_path / "costs"
    forced = {"RDMATENSOR_COST_TABLE": str(table)}
    seen = []
    for folder in ("first", "second"):
        (tmp_path / folder).mkdir()
        ranks = jobs.run("roles_hosts:paths", 4, tmp_path / folder, environment=forced)
        seen.append([rank["collectives"]["costs"] for rank in jobs.results(ranks)])

    assert all(costs == seen[0][0] for costs in seen[0])
    assert all(costs == {**seen[0][0], "source": "file"} for costs in seen[1])
    lines = dict(line.split() for line in table.read_text().splitlines())
    assert int(lines["tcp.alpha_ns"]) == seen[0][0]["tcp.alpha_ns"]


@pytest.mark.parametrize("name", ["", "two words", "x" * 64])
def test_a_name_that_is_none_is_refused(name: str, tmp_path: Path) -> None:
    environment = {"RDMATENSOR_TEST_HOST": name}
    ranks = jobs.run("roles_collectives:messages", 2, tmp_path, environment=environment)

    if name == "":  # as if it were not set
        assert jobs.results(ranks) == [[], []]
        return
    assert all(rank.exit == 1 for rank in ranks)
    assert all("RDMATENSOR_TEST_HOST is '" in rank.log for rank in ranks)


def test_rdma_that_is_required_and_is_not_there_ends_every_rank(tmp_path: Path) -> None:
    """And each is told why, before its deadline. No device has that name, wherever this runs."""
    environment = {"RDMATENSOR_REQUIRE": "verbs", "RDMATENSOR_VERBS_DEVICES": "none_such"}
    ranks = jobs.run("roles_hosts:nothing_but_rdma", 4, tmp_path, environment=environment)

    for rank in jobs.results(ranks):
        assert "verbs is required, but the best path to rank " in rank["text"]
        assert "RDMATENSOR_TEST_HOST says that the peer is on another host" in rank["text"]
        assert "RDT_ETIMEDOUT" not in rank["text"]
        assert rank["seconds"] < rank["timeout"]


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_small_tensors_go_together_and_keep_their_bits(tmp_path: Path) -> None:
    ranks = jobs.run("roles_hosts:coalesced", 4, tmp_path, timeout_s=180.0)

    for rank in jobs.results(ranks):
        for algorithm in ALGORITHMS:
            ways = dict(rank[algorithm])
            assert ways.pop("many small")["right"]
            assert len(ways) == 4
            for way, seen in ways.items():
                assert seen["different"] == [], (algorithm, way)
