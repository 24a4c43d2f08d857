"""What the ranks of a group recorded, compared; and merged with the plan that a file has."""

from __future__ import annotations

from dataclasses import replace

from graph_analysis import PlanError, TransferPlan, merge_plans, missing_from, record_plan
from graph_analysis.recording import (
    Recording,
    form_difference,
    recorded_difference,
    recording_from_json,
)
from rdmatensor._plan_memory import PlanMismatch


def settled(texts: list[str], planned: TransferPlan | None) -> tuple[str, TransferPlan | None]:
    """Return how the comparison of all ranks' recordings ends, and their plan; as agreed()."""
    try:
        recordings = recordings_of(texts)
        why = form_difference(recordings) or difference_of_names(recordings)
        if why is not None:  # each rank may well be right
            return f"no: {why}", None
        return "yes", agreed(recordings, planned)
    except PlanError as error:  # damaged words of a peer, or a step that no plan can say
        return f"no: {error}", None


def recordings_of(texts: list[str]) -> list[Recording]:
    """Return all ranks' recordings; equal ones, as of data parallelism, are read once.

    PlanError if one is none.
    """
    read = {text: recording_from_json(text) for text in dict.fromkeys(texts)}
    return [read[text] for text in texts]


def difference_of_names(recordings: list[Recording]) -> str | None:
    """Return what differs where only names do, unless the ranks sent one set in other orders.

    Memory that is used again may bear an old name, on one rank and not on the other; then the names
    are not the same ones.
    """
    bare = [tuple(replace(op, tensors=()) for op in recording) for recording in recordings]
    names = [sorted(t.name for op in recording for t in op.tensors) for recording in recordings]
    if recorded_difference(bare) is not None or all(other == names[0] for other in names):
        return None
    return recorded_difference(recordings)


def agreed(recordings: list[Recording], planned: TransferPlan | None) -> TransferPlan:
    """Return the plan of all ranks; PlanMismatch names the first tensor that differs.

    planned: this rank's RDMATENSOR_PLAN, which is merged in if it is about the same group.
    """
    why = recorded_difference(recordings)
    if why is not None:
        raise PlanMismatch(f"the ranks recorded different steps: {why}")
    plan = record_plan(recordings)
    if planned is None or not _is_about(planned, plan):
        return plan
    why = missing_from(plan, planned)
    if why is None:
        try:
            return plan if planned.source == "recorded" else merge_plans(planned, plan)
        except PlanError as error:
            why = str(error)
    raise PlanMismatch(f"the step is not the one that RDMATENSOR_PLAN plans: {why}")


def _is_about(planned: TransferPlan, plan: TransferPlan) -> bool:
    """Whether the file's plan is for this group; a job has others, of metrics for example."""
    of_model = {t.name for t in planned.tensors if t.role in ("parameter", "gradient", "buffer")}
    named = of_model or {t.name for t in planned.tensors}  # the latter are numbers, as others have
    is_named = any(tensor.name in named for tensor in plan.tensors)
    return planned.strategy.world_size == plan.strategy.world_size and is_named
