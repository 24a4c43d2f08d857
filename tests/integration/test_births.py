"""DistributedDataParallel's gradients are allocated in their buckets, and nothing else changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jobs
import pytest
from births_cases import CASES as PLAIN
from births_sums import SUMS
from births_surprises import SURPRISES

pytestmark = pytest.mark.timeout(150)

OFF = {"RDMATENSOR_ADOPT": "0"}
CASES = {**PLAIN, **SURPRISES, **SUMS}


def trained(out: Path, environment: dict[str, str] | None = None) -> list[dict[str, Any]]:
    ranks = jobs.run(
        "roles_births:train",
        2,
        out,
        timeout_s=100.0,
        environment=environment,
        cases=list(CASES),
    )
    return jobs.results(ranks)


@pytest.fixture(scope="module")
def on(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return trained(tmp_path_factory.mktemp("on"))


@pytest.fixture(scope="module")
def off(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return trained(tmp_path_factory.mktemp("off"), OFF)


@pytest.mark.slow
@pytest.mark.parametrize("name", list(CASES))
def test_a_script_as_it_is(name: str, on: list[dict[str, Any]], off: list[dict[str, Any]]) -> None:
    """Bits are those of torch's own memory, and of Gloo; gradients are born where they leave."""
    case = CASES[name]
    for ours, others in zip(on, off, strict=True):
        found = ours[name]
        assert found["ours"]["losses"] == others[name]["ours"]["losses"]
        assert found["ours"]["losses"] == found["gloo"]["losses"]
        assert found["ours"]["digest"] == others[name]["ours"]["digest"]
        assert found["ours"]["digest"] == found["gloo"]["digest"]
        assert not any(any(step) for step in others[name]["ours"]["born"])
        assert not any(any(step) for step in found["gloo"]["born"])
        born = found["ours"]["born"]
        assert (found["told"]["in_place"] > 0) == case.is_born
        assert case.why in found["told"]["why_off"]
        assert bool(case.why) == bool(found["told"]["why_off"])
        if case.born_from is not None:
            assert all(all(step) and step for step in born[case.born_from :]), born


def test_ranks_have_the_same_weights(on: list[dict[str, Any]]) -> None:
    for name in PLAIN.keys() - {"asked before"}:  # what others keep is each rank's own
        assert len({rank[name]["ours"]["digest"] for rank in on}) == 1, name


def test_two_modules_in_turn(tmp_path: Path) -> None:
    for rank in jobs.results(jobs.run("roles_births:adversaries", 2, tmp_path, timeout_s=60.0)):
        assert rank["ours"] == rank["gloo"]
        judge, maker = rank["born"]
        assert all(all(step) and step for step in judge[2:])
        assert all(all(step) and step for step in maker[1:])


def test_unused_parameters_are_left_to_torch(tmp_path: Path) -> None:
    for rank in jobs.results(jobs.run("roles_births:without", 2, tmp_path, timeout_s=60.0)):
        assert rank["ours"] == rank["gloo"]
        assert rank["told"]["in_place"] == rank["told"]["copied"] == 0
        assert "find_unused_parameters=True" in rank["told"]["why_off"]
        assert "0.bias" in rank["outside"]
        assert all(all(step) and step for step in rank["born"][1:])


def test_sparse_gradients_beside_others(tmp_path: Path) -> None:
    for rank in jobs.results(jobs.run("roles_births:mixed", 2, tmp_path)):
        assert rank["is_sparse"]
        assert rank["born"] == [True]
        assert rank["told"]["why_off"] == ""


def test_ranks_that_join_early(tmp_path: Path) -> None:
    for number, rank in enumerate(jobs.results(jobs.run("roles_births:joined", 2, tmp_path))):
        assert rank["ours"] == rank["gloo"]
        assert len(rank["born"]) == (4 if number == 0 else 3)
        assert all(all(step) and step for step in rank["born"][1:])


def test_a_module_outlives_its_group_and_is_not_kept(tmp_path: Path) -> None:
    for rank in jobs.results(jobs.run("roles_births:ends", 2, tmp_path)):
        assert all(all(step) and step for step in rank["born"][1:])
        assert rank["is_gone"]
        assert rank["is_kept"]
        assert rank["is_used"]
        assert not rank["is_used_then"]


def test_nothing_is_traced_where_nothing_is_to_be_born(tmp_path: Path) -> None:
    for rank in jobs.results(jobs.run("roles_births:small", 2, tmp_path)):
        assert "32768 bytes" in rank["small"]["why_off"]
        assert (
            rank["small"]["in_place"] == rank["added"]["in_place"] == rank["added"]["copied"] == 0
        )
        assert rank["added"]["why_off"] == ""


def test_a_reducer_that_moves_later_is_left_alone(tmp_path: Path) -> None:
    for rank in jobs.results(jobs.run("roles_births:batched", 2, tmp_path)):
        if rank:
            assert "batched_grad_copy" in rank["told"]["why_off"]
            assert rank["told"]["in_place"] == 0


def test_another_thread_may_ask_all_the_while(tmp_path: Path) -> None:
    for rank in jobs.results(jobs.run("roles_births:asked", 2, tmp_path)):
        assert rank["times"] > 10


def test_a_pass_that_raised_leaves_nothing(tmp_path: Path) -> None:
    for rank in jobs.results(jobs.run("roles_births:left", 2, tmp_path)):
        assert rank["told"]["in_place"] > 0
        assert rank["before"]
        assert not rank["after"]


@pytest.mark.parametrize("is_ending", [True, False])
def test_a_pass_that_raised_on_another_thread_keeps_nothing(
    is_ending: bool, tmp_path: Path
) -> None:
    """Nothing is kept for a thread that has ended, or has allocated since."""
    ranks = jobs.run("roles_births_left:left_on_a_thread", 2, tmp_path, is_ending=is_ending)

    for rank in jobs.results(ranks):
        assert rank["told"]["in_place"] > 0
        assert rank["before"] == 1
        assert rank["after"] == 0
        assert not rank["is_used"]


def test_a_wrong_number_is_an_error_rather(tmp_path: Path) -> None:
    """Two tensors have one address, and the program has pointers to both: one could be moved."""
    for rank in jobs.results(jobs.run("roles_births:held", 2, tmp_path)):
        assert "RDMATENSOR_ADOPT=0" in rank["error"]
        assert rank["told"]["why_off"]


def test_a_forked_child_may_run_the_module(tmp_path: Path) -> None:
    for rank in jobs.results(jobs.run("roles_births:forked", 2, tmp_path)):
        assert rank["status"] == 0
        assert all(all(step) and step for step in rank["born"][1:])


def test_births_can_be_switched_off(tmp_path: Path) -> None:
    ranks = jobs.run("roles_births:mixed", 2, tmp_path, environment=OFF)

    for rank in jobs.results(ranks):
        assert rank["told"] is None
        assert rank["born"] == [False]
