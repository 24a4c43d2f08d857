"""By a plan a model trains as with DDP on Gloo, and its gradients are born where they are sent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jobs
import pytest

START_S = 90.0  # two ranks capture a graph each


def run(tmp_path: Path, world: int = 2, **arguments: Any) -> list[Any]:
    ranks = jobs.run("roles_plan:against_gloo", world, tmp_path, timeout_s=START_S, **arguments)
    return jobs.results(ranks)


@pytest.mark.timeout(150)
@pytest.mark.parametrize("model", ["mlp", "cnn", "lstm", "gpt"])
def test_gradients_are_born_in_their_places(model: str, tmp_path: Path) -> None:
    ranks = run(tmp_path, model=model)  # one place for all five steps

    for rank in ranks:
        assert rank["losses"] == pytest.approx(rank["gloo_losses"], rel=1e-6)
        assert rank["is_same"]
        assert rank["keys"]
        last, second = rank["seen"][-1], rank["seen"][1]
        gradients = len(rank["planned_offsets"])
        assert last["steps"] == 5
        # The first step copies each once; from the second on there is no copy left.
        assert rank["seen"][0]["copied"] == second["copied"] == gradients
        assert last["copied"] == second["copied"]
        assert last["in_place"] - second["in_place"] == 3 * gradients
        for step in rank["offsets"]:  # in the arena, of each parameter's gradient
            assert step == rank["planned_offsets"]
    assert ranks[0]["bits"] == ranks[1]["bits"]


@pytest.mark.timeout(150)
@pytest.mark.parametrize(
    ("model", "world", "transport"),
    [("mlp", 2, "tcp"), ("cnn", 2, "tcp"), ("mlp", 3, "shm"), ("cnn", 3, "tcp")],
)
def test_it_trains_as_ddp_on_gloo_on_other_paths_and_with_three_ranks(
    model: str, world: int, transport: str, tmp_path: Path
) -> None:
    """Three sum in another order than Gloo's ring, but all in the same."""
    environment = {"RDMATENSOR_TRANSPORT": transport}
    ranks = run(tmp_path, world, model=model, environment=environment)
    for rank in ranks:
        assert rank["losses"] == pytest.approx(rank["gloo_losses"], rel=1e-5)
        assert rank["is_same"]
        assert rank["bits"] == ranks[0]["bits"]
        assert rank["seen"][-1]["steps"] == 5


@pytest.mark.timeout(150)
def test_parameters_that_a_rank_did_not_use(tmp_path: Path) -> None:
    first, second = jobs.results(jobs.run("roles_plan:unused", 2, tmp_path, timeout_s=START_S))

    assert first["steps"] == second["steps"]
    # One of two ranks used each, and each sample of the two gives a gradient of one.
    assert first["steps"]["first.weight"] == first["steps"]["second.weight"] == 1.0


@pytest.mark.timeout(150)
@pytest.mark.parametrize("is_found", [True, False])
def test_parameters_that_no_rank_used(is_found: bool, tmp_path: Path) -> None:
    """None where it was None, as with DistributedDataParallel that looks for them; else zeros."""
    ranks = jobs.results(
        jobs.run("roles_plan:unused_against_ddp", 2, tmp_path, timeout_s=START_S, is_found=is_found)
    )
    for rank in ranks:
        for mine, theirs in rank["losses"]:
            assert mine == pytest.approx(theirs, rel=1e-5)
        assert max(rank["differences"]) < 1e-6
        assert all(mine == theirs for mine, theirs in rank["absent"])
        absent = [mine for mine, _ in rank["absent"]]
        second = ["second.weight", "second.bias"] if is_found else []
        first = ["first.weight", "first.bias"] if is_found else []
        assert absent == [[], second, [], second, first, first, []]
    assert ranks[0]["bits"] == ranks[1]["bits"]


@pytest.mark.timeout(150)
def test_what_does_not_fit_is_named(tmp_path: Path) -> None:
    for said in jobs.results(jobs.run("roles_plan:refused", 2, tmp_path, timeout_s=START_S)):
        assert "the plan of rank 0 is for 3 ranks" in said["world"]
        assert "different plans: here is rank 1, there rank 0: tensor " in said["ranks"]
        assert "3.bias is (4,)" in said["model"]
        assert "0.weight" in said["frozen"]
        assert "2.weight" in said["changed"]


@pytest.mark.timeout(150)
@pytest.mark.parametrize(
    ("way", "words"),
    [
        ("added", "parameter extra is trained now"),
        ("replaced", "parameter 3.weight is trained now"),
        ("removed", "parameter 3.bias of the plan is not in the model any more"),
        ("unfrozen", "parameter 0.weight is trained now"),
        ("frozen", "parameter 0.weight is frozen now"),
        ("turned", "parameter 3.weight is ("),
        ("used", "parameter second.weight has a gradient, and none in the plan"),
    ],
)
def test_a_model_that_is_changed_is_noticed_at_once(way: str, words: str, tmp_path: Path) -> None:
    """Else the gradient stays on each rank, and the ranks part in silence."""
    for rank in jobs.results(
        jobs.run("roles_plan:changed", 2, tmp_path, timeout_s=START_S, way=way)
    ):
        assert words in rank["said"].replace("second.bias", "second.weight")


@pytest.mark.timeout(150)
def test_a_parameter_may_be_frozen_while_nothing_is_sent(tmp_path: Path) -> None:
    way = "frozen for a while"
    done = jobs.run("roles_plan:changed", 2, tmp_path, timeout_s=START_S, way=way)
    assert jobs.results(done) == [{"said": ""}, {"said": ""}]


def test_places_may_be_dropped_in_the_midst_of_backward(tmp_path: Path) -> None:
    assert jobs.results(jobs.run("roles_births:dropped", 1, tmp_path)) == [True]
