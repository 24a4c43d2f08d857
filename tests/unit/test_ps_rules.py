"""Update rules against torch's optimizers, on random rows and gradients."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rdmatensor import errors, ps
from rdmatensor._native.ffi import check, ffi, lib, new_error

_MAKERS: dict[str, tuple[ps.Rule, Callable[[list[torch.Tensor]], torch.optim.Optimizer], bool]] = {
    "sgd": (ps.SGD(0.1), lambda p: torch.optim.SGD(p, 0.1), False),
    "decay": (
        ps.SGD(0.1, weight_decay=0.01),
        lambda p: torch.optim.SGD(p, 0.1, weight_decay=0.01),
        False,
    ),
    "momentum": (
        ps.SGD(0.1, 0.9, weight_decay=0.01),
        lambda p: torch.optim.SGD(p, 0.1, 0.9, weight_decay=0.01),
        False,
    ),
    "nesterov": (
        ps.SGD(0.1, 0.9, nesterov=True),
        lambda p: torch.optim.SGD(p, 0.1, 0.9, nesterov=True),
        False,
    ),
    "adagrad": (
        ps.Adagrad(0.1, initial=0.5),
        lambda p: torch.optim.Adagrad(p, 0.1, initial_accumulator_value=0.5),
        False,
    ),
    "sparse adagrad": (ps.Adagrad(0.1), lambda p: torch.optim.Adagrad(p, 0.1), True),
    "lazy adam": (ps.Adam(0.01), lambda p: torch.optim.SparseAdam(p, 0.01), True),
    "adam": (
        ps.Adam(0.01, weight_decay=0.1, lazy=False),
        lambda p: torch.optim.Adam(p, 0.01, weight_decay=0.1),
        False,
    ),
    "adamw": (
        ps.AdamW(0.01, weight_decay=0.1),
        lambda p: torch.optim.AdamW(p, 0.01, weight_decay=0.1),
        False,
    ),
}
_STATES = {"MOMENTUM": 1, "ADAGRAD": 1, "LAZY_ADAM": 2, "ADAM": 2, "ADAMW": 2}


def apply(
    rule: ps.Rule, step: int, value: torch.Tensor, state: torch.Tensor, gradient: torch.Tensor
) -> None:
    """One application of the C library to a vector."""
    err = new_error()
    status = lib.rdt_ps_rule_apply(
        rule._struct(), step, 1.0, *(ffi.cast("float *", one.data_ptr()) for one in
        (value, state, gradient)), value.numel(), err,
    )  # fmt: skip
    check(status, "apply", err)


@pytest.mark.parametrize("name", _MAKERS)
@settings(max_examples=30, deadline=None)
@given(count=st.integers(1, 70), steps=st.integers(1, 6), seed=st.integers(0, 1 << 30))
def test_a_rule_does_what_torch_s_optimizer_does(
    name: str, count: int, steps: int, seed: int
) -> None:
    rule, make, is_sparse = _MAKERS[name]
    draw = torch.Generator().manual_seed(seed)
    value = torch.randn(count, generator=draw)
    oracle = torch.nn.Parameter(value.clone().reshape(1, -1))
    optimizer = make([oracle])
    state = torch.full((_STATES.get(rule.kind, 0) * count + 1,), rule.initial)

    for step in range(1, steps + 1):
        gradient = torch.randn(count, generator=draw) * 10 ** float(
            torch.randint(-3, 2, (), generator=draw)
        )
        apply(rule, step, value, state, gradient)
        oracle.grad = gradient.reshape(1, -1).clone()
        if is_sparse:
            oracle.grad = oracle.grad.to_sparse(1)
        optimizer.step()
        torch.testing.assert_close(value, oracle.detach()[0], rtol=3e-6, atol=3e-7)
    assert state[-1] == rule.initial, "it wrote behind its state"


def test_row_adagrad_keeps_one_sum_for_a_row() -> None:
    rule = ps.RowAdagrad(0.1, 1e-8)
    value, state = torch.zeros(5), torch.zeros(2)
    total = 0.0
    oracle = torch.zeros(5)
    for step in range(1, 4):
        gradient = torch.randn(5, generator=torch.Generator().manual_seed(step))
        apply(rule, step, value, state, gradient)
        total += float((gradient**2).mean())
        oracle -= 0.1 * gradient / (total**0.5 + 1e-8)
        torch.testing.assert_close(value, oracle)
    assert state[1] == 0


@pytest.mark.parametrize(
    "make",
    [
        lambda: ps.SGD(-1.0),
        lambda: ps.SGD(float("nan")),
        lambda: ps.SGD(0.1, nesterov=True),
        lambda: ps.Adam(betas=(1.0, 0.9)),
        lambda: ps.Adam(weight_decay=0.1),
        lambda: ps.Adagrad("fast"),  # type: ignore[arg-type]
        lambda: ps.Adagrad(initial=-1.0),
        lambda: ps.uniform(1.0, 0.0),
        lambda: ps.normal(0.0, -1.0),
        lambda: ps.SSP(-1),
    ],
)
def test_wrong_numbers_are_refused(make: Callable[[], object]) -> None:
    with pytest.raises(errors.InvalidArgumentError):
        make()
