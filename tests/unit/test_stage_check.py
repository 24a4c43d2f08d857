"""What a pipeline's stage sends, held against what torch has made places for; no ranks run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rdmatensor._torch.pipeline import stage_check
from rdmatensor._torch.pipeline.stage_check import check_sends, difference
from rdmatensor.errors import PlanMismatchError

PLACE = SimpleNamespace(shape=torch.Size((4, 8)), dtype=torch.float32)


def stage_of(
    *,
    made: tuple[object, ...] = (),
    gradients: tuple[object, ...] | None = None,
    input_grads: tuple[object, ...] | None = None,
) -> Any:
    """Return the middle one of three stages, with two tensors each way; the first is for all."""
    root = SimpleNamespace(is_root_arg=True, source=None)
    received = SimpleNamespace(is_root_arg=False, source=0)
    return SimpleNamespace(
        stage_index=1,
        num_stages=3,
        group=object(),
        fwd_cache={5: (made, ())},
        bwd_cache={} if gradients is None else {5: gradients},
        act_send_info={0: [2], 1: [None, 2]},
        args_recv_info={0: (root, received)},
        _stage_meta=SimpleNamespace(
            outputs=(PLACE, PLACE), inputs=(PLACE, PLACE), input_grads=input_grads
        ),
    )


RIGHT = torch.zeros(4, 8)


@pytest.mark.parametrize(
    ("made", "wanted"),
    [
        ((RIGHT, RIGHT), None),
        ((RIGHT, RIGHT.t().contiguous().t()), None),  # strides are no matter of a message
        ((torch.zeros(3, 8), RIGHT), "activation 0 for stage 2 is (3, 8) of float32"),
        ((RIGHT, torch.zeros(8, 4)), "activation 1 for stage 2 is (8, 4) of float32"),
        ((RIGHT, RIGHT.to(torch.int32)), "activation 1 for stage 2 is (4, 8) of int32"),
        ((RIGHT,), "activation 1 for stage 2 is None"),
        ((SimpleNamespace(_local_tensor=RIGHT), RIGHT), None),  # as a DTensor has it
    ],
)
def test_activations(made: tuple[object, ...], wanted: str | None) -> None:
    found = difference(stage_of(made=made), 5, "forward")
    if wanted is None:
        assert found is None
    else:
        assert found == (
            f"pipeline stage 1, forward, micro-batch 5: {wanted}, its place is planned for (4, 8) "
            "of float32"
        )


def test_gradients() -> None:
    """The first input is the program's, and has no stage that it came from."""
    odd = torch.zeros(2, 8)
    words = (
        "pipeline stage 1, backward, micro-batch 5: gradient of activation 1 for stage 0 is (2, 8) "
        "of float32, its place is planned for (4, 8) of float32"
    )
    assert difference(stage_of(gradients=(odd, RIGHT)), 5, "backward") is None
    assert difference(stage_of(gradients=(RIGHT, odd)), 5, "backward") == words
    # torch sends zeros where there is none, and nothing where none is expected.
    assert difference(stage_of(gradients=(RIGHT, None)), 5, "backward") is None
    unexpected = stage_of(gradients=(RIGHT, odd), input_grads=(None, None))
    assert difference(unexpected, 5, "backward") is None
    assert difference(stage_of(), 5, "backward") is None  # without a backward pass


def test_the_others_are_told_before_it_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    backend = SimpleNamespace(break_group=told.append)
    monkeypatch.setattr(stage_check, "backend_of", lambda _group: backend)
    check_sends(stage_of(made=(RIGHT, RIGHT)), 5, "forward")
    assert told == []
    with pytest.raises(PlanMismatchError, match=r"activation 0 for stage 2.*schedule\.eval\(\)"):
        check_sends(stage_of(made=(torch.zeros(1), RIGHT)), 5, "forward")
    (words,) = told
    assert words.startswith("ends the group: pipeline stage 1, forward, micro-batch 5: activation")
