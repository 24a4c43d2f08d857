"""The hooks that a program has on its parameters and modules."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tests.fuzz_training.case import Case
from tests.fuzz_training.model import Model


def register(case: Case, model: Model, when: str, held: list[Tensor]) -> None:
    """Register the case's hooks that belong before, or after, the model is wrapped."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    if case.get("tensor_hook") == when:
        for parameter in parameters[::2]:
            parameter.register_hook(lambda grad: grad * 0.5)
    way = case.get("accumulated_hook")
    if way == when or (way in ("replace", "keep") and when == "before"):
        hook = {"replace": _replace, "keep": lambda p: _keep(p, held)}.get(way, _scale)
        for parameter in parameters[::2]:
            parameter.register_post_accumulate_grad_hook(hook)
    if case.get("module_hook") is not None and when == "before":
        for module in [*model.parts, model.head]:
            _on_module(module, case.get("module_hook"))


def _scale(parameter: Tensor) -> None:
    assert parameter.grad is not None
    with torch.no_grad():
        parameter.grad.mul_(0.5)
        if not parameter.grad.is_sparse and not parameter.is_complex():
            parameter.grad.clamp_(-0.1, 0.1)


def _replace(parameter: Tensor) -> None:
    assert parameter.grad is not None
    parameter.grad = parameter.grad.detach() * 0.5


def _keep(parameter: Tensor, held: list[Tensor]) -> None:
    assert parameter.grad is not None
    if not parameter.grad.is_sparse:
        held.append(parameter.grad)


def _on_module(module: Any, kind: str) -> None:
    if kind == "full":
        module.register_full_backward_hook(lambda *_: None)
    elif kind == "pre":
        module.register_full_backward_pre_hook(lambda *_: None)
    else:
        module.register_forward_hook(lambda _module, _args, output: output * 1.0)
