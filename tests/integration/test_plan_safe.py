"""A planned step is right, or an error says why it is not: never silently wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jobs
import pytest

pytestmark = [pytest.mark.timeout(150), pytest.mark.turns("transport")]

START_S = 100.0


def run(role: str, out: Path, environment: dict[str, str] | None = None, **words: Any) -> list[Any]:
    ranks = jobs.run(
        role if ":" in role else f"roles_plan_safe:{role}",
        2,
        out,
        timeout_s=START_S,
        environment=environment,
        **words,
    )
    return jobs.results(ranks)


@pytest.mark.parametrize("name", ["positions", "flat"])
def test_no_peer_writes_what_autograd_reads(
    name: str, path_forced: dict[str, str], tmp_path: Path
) -> None:
    for errors in run("aliases", tmp_path, path_forced, name=name):
        assert max(errors) < 1e-6


def test_hooks_that_are_registered_later_act_before_the_sum(
    path_forced: dict[str, str], tmp_path: Path
) -> None:
    for errors in run("late_hooks", tmp_path, path_forced):
        assert max(errors) == 0.0


def test_one_rank_evaluates_alone(path_forced: dict[str, str], tmp_path: Path) -> None:
    for rank in run("alone", tmp_path, path_forced):
        assert all(rank["is_same"])
        assert all(rank["outputs"])


def test_buffers_that_the_program_changes_stay_changed(tmp_path: Path) -> None:
    for seen in run("swapped_buffers", tmp_path):
        assert seen == [5.0, 7.0]


def test_an_error_of_one_rank_ends_the_group_at_once(
    path_forced: dict[str, str], tmp_path: Path
) -> None:
    first, second = run("refused", tmp_path, path_forced, on_all=False)
    (said,) = second["said"]
    assert said.startswith("PlanMismatchError: parameter 0.weight is frozen now")
    (said,) = first["said"]
    assert "rank 1" in said
    assert max(first["taken_s"], second["taken_s"]) < 30.0  # of a time-out of 60 s


def test_an_error_of_all_ranks_leaves_the_group_usable(tmp_path: Path) -> None:
    for rank in run("refused", tmp_path, on_all=True):
        (said,) = rank["said"]
        assert said.startswith("PlanMismatchError: parameter 0.weight is frozen now")


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_the_whole_model_in_a_checkpoint(use_reentrant: bool, tmp_path: Path) -> None:
    for errors in run("nested", tmp_path, use_reentrant=use_reentrant):
        assert max(errors) == 0.0


def test_two_plans_on_one_parameter(tmp_path: Path) -> None:
    for rank in run("shared_layer", tmp_path):
        assert "parameter 0." in rank["said"]
        assert "has the plan of another model" in rank["said"]
        assert rank["steps"] == 1


def test_a_copy_is_an_ordinary_model(tmp_path: Path) -> None:
    for types in run("copies", tmp_path):
        assert set(types.values()) == {"Sequential"}


@pytest.mark.parametrize("to_none", [False, True])
def test_a_loop_that_survives_a_backward_pass_that_raised(to_none: bool, tmp_path: Path) -> None:
    for errors in run("raised", tmp_path, to_none=to_none):
        assert max(errors) < 1e-5


@pytest.mark.parametrize("is_functional", [False, True])
def test_sparse_gradients_are_refused_with_what_helps(is_functional: bool, tmp_path: Path) -> None:
    for said in run("roles_plan_kinds:sparse", tmp_path, is_functional=is_functional):
        assert "sparse" in said
        assert "sparse=False" in said
        assert ("is made with" in said) is not is_functional


def test_dense_parameters_of_any_layout_are_planned(tmp_path: Path) -> None:
    for errors in run("roles_plan_kinds:layouts", tmp_path):
        assert max(errors) < 1e-6


@pytest.mark.parametrize("how", ["broadcast", "evaluated", "rank 0"])
def test_buffers_that_change_between_steps_are_rank_0s(how: str, tmp_path: Path) -> None:
    for errors in run("roles_plan_kinds:changed_buffers", tmp_path, how=how):
        assert max(errors) < 1e-5


@pytest.mark.parametrize("way", ["data", "set_"])
def test_a_gradient_that_is_given_other_memory_gets_the_sum(
    way: str, path_forced: dict[str, str], tmp_path: Path
) -> None:
    for seen in run("roles_plan_order:swapped_memory", tmp_path, path_forced, way=way):
        assert len(set(seen)) == 1
        assert seen[0] == pytest.approx(3.0, rel=0.1)


@pytest.mark.parametrize("kind", ["two plans", "middle"])
def test_a_rank_that_leaves_a_layer_out_beside_other_collectives(
    kind: str, path_forced: dict[str, str], tmp_path: Path
) -> None:
    for errors in run("roles_plan_order:unused", tmp_path, path_forced, kind=kind):
        assert max(errors) < 1e-5


def test_a_loss_that_reaches_no_parameter_counts_as_zeros(tmp_path: Path) -> None:
    for seen in run("roles_plan_order:unreached", tmp_path):
        assert seen == [2.0, 1.0, 2.0]


def test_an_empty_gradient_may_be_dropped_as_its_bucket_leaves(tmp_path: Path) -> None:
    for seen in run("roles_plan_order:empty_dropped", tmp_path):
        assert all(seen)


@pytest.mark.parametrize("is_late", [False, True])
def test_a_loss_that_uses_what_no_output_leads_to(is_late: bool, tmp_path: Path) -> None:
    for said in run("roles_plan_order:unseen", tmp_path, is_late=is_late):
        assert ("no output of the model leads to it" in said) is is_late
        assert is_late or said == ""
