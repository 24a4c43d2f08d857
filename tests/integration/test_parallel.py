"""Models in parts: gradients and weights of one process, choices, and what is refused."""

from __future__ import annotations

from pathlib import Path

import jobs
import pytest

CLOSE = 2e-5  # of float32, in another order of sums
# torch's first use of DTensor and FSDP takes seconds where other processes are busy.
SECONDS = 120.0
pytestmark = pytest.mark.timeout(200)


@pytest.mark.parametrize("kind", ["tail", "decoder"])
def test_two_ranks_train_as_one_process(kind: str, tmp_path: Path) -> None:
    ways = ["replicate", "ddp", "column_row", "fsdp", "column_row fsdp", "unequal"]
    ranks = jobs.run("roles_parallel:trained", 2, tmp_path, timeout_s=SECONDS, kind=kind, ways=ways)
    for found in jobs.results(ranks):
        for way, (worst, held) in zip(ways, found, strict=True):
            assert worst < CLOSE, way
            assert (held < 0.8) == ("fsdp" in way or "column_row" in way), way


def test_tied_weights_stay_tied_where_the_rest_is_sharded(tmp_path: Path) -> None:
    ranks = jobs.run(
        "roles_parallel:trained", 2, tmp_path, timeout_s=SECONDS, kind="tied", ways=["fsdp"]
    )
    for ((worst, held),) in jobs.results(ranks):
        assert worst < CLOSE
        assert held < 0.8


@pytest.mark.parametrize(("kind", "world"), [("tail", 2), ("tail", 3), ("again", 2)])
def test_stages_train_as_one_process(kind: str, world: int, tmp_path: Path) -> None:
    ranks = jobs.run(
        "roles_parallel:trained", world, tmp_path, timeout_s=SECONDS, kind=kind, ways=["stages"]
    )
    found = [of_rank[0] for of_rank in jobs.results(ranks)]
    assert all(worst < CLOSE for worst, _ in found)
    assert sum(held for _, held in found) == pytest.approx(1)


@pytest.mark.slow
def test_four_ranks_train_as_one_process(path_forced: dict[str, str], tmp_path: Path) -> None:
    ranks = jobs.run(
        "roles_parallel:trained",
        4,
        tmp_path,
        timeout_s=SECONDS,
        environment=path_forced,
        kind="decoder",
        ways=["column_row fsdp"],
    )
    for found in jobs.results(ranks):
        assert all(worst < CLOSE and held < 0.4 for worst, held in found), found


def test_ranks_choose_alike_and_explain_it(path_forced: dict[str, str], tmp_path: Path) -> None:
    ranks = jobs.run(
        "roles_parallel:chosen", 2, tmp_path, timeout_s=SECONDS, environment=path_forced
    )
    first, second = jobs.results(ranks)
    assert first == second
    name, raced, trusted, same, costs, _ = first
    assert same
    assert name.startswith(("pairs: 1", "pipeline"))  # the sum of gradients is what is slow
    assert "Others:" in trusted
    assert "data parallel" in trusted
    for raced_too in ("data parallel", "pairs: 1 of", "DistributedDataParallel"):
        assert f"measured in 5 steps: {raced_too}" in raced
    assert {"all_reduce.alpha_ns", "all_gather.beta_ps", "overlap_permille"} <= set(costs)
    is_tcp = path_forced["RDMATENSOR_TRANSPORT"] == "tcp"
    assert is_tcp == ("tcp.alpha_ns" in costs)


REFUSED = {
    "control flow": "cannot be captured whole",
    "memory": "the least needs",
    "size": "'two gigs'",
    "world": "the machine has 1 ranks",
    "host": "elsewhere",
    "rows": "1 rows of this rank, its share is 4",
    "closed": "ClosedError: the model was closed",
    "statistics": "shares must be equal",
    "module": "'1.0', which is absent",
    "untied": "its parameter '0.weight' is also '4.weight', outside of it",
    "stages": "its parameter '0.weight' is also '4.weight', outside of it",
    "differs": "the partition differs between rank 1 and rank 0",
}


def test_what_cannot_be_is_refused_on_all_ranks(tmp_path: Path) -> None:
    ranks = jobs.run("roles_parallel:refused", 2, tmp_path, timeout_s=SECONDS, asked=list(REFUSED))
    for said in jobs.results(ranks):
        for (what, words), answer in zip(REFUSED.items(), said, strict=True):
            assert words in answer, what
