"""Programs that change gradients, or leave parameters unused, by thin plans; see test_thin.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from roles_plan import TIMEOUT, loss_of
from roles_thin import data, net
from torch import nn

import rdmatensor.plan
from graph_analysis import DataParallel, Mask, analyze, thin


def surprises(rank: int, world: int) -> dict[str, Any]:
    """Programs that do things to gradients, and parameters that no rank used."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    found: dict[str, Any] = {}
    few = {name: Mask((1, 16), tuple(range(0, 1024, 3))) for name in ("0.weight", "4.weight")}
    plan = thin(analyze(net(), (data(0, 0),), strategy=DataParallel(world)), few)

    def gradients(change: Callable[[Any], object]) -> list[torch.Tensor]:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), 0.05)
        planned = rdmatensor.plan.apply(model, plan, optimizer)
        change(model)
        loss_of(planned(data(0, rank))).backward()
        found_here = [p.grad.clone() for p in model.parameters()]
        planned.close()
        return found_here

    def on_first(call: Callable[[Any], object]) -> Callable[[Any], object]:
        """Call when the gradient of the first weight is there, the last of all."""
        return lambda model: model[0].weight.register_post_accumulate_grad_hook(call)

    def replace(parameter: Any) -> None:
        parameter.grad = parameter.grad.clone()

    def drop(parameter: Any) -> None:
        parameter.grad = None

    plain = gradients(lambda _: None)
    for what, call in (("replaced", replace), ("dropped", drop)):
        values = gradients(on_first(call))
        found[what] = [torch.equal(a, b) for a, b in zip(plain, values, strict=True)]
        found[what + " sum"] = float(values[0].abs().sum())

    found["written"] = written(rank, world)
    found["nothing"] = nothing(world)
    found["unused"] = unused(rank, world)
    dist.destroy_process_group()
    return found


def nothing(world: int) -> list[float]:
    """Nothing of the model is live: its bucket has no bytes."""
    model = nn.Linear(32, 32, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    plan = thin(
        analyze(model, (torch.ones(2, 32),), strategy=DataParallel(world)),
        {"weight": Mask((4, 4), ())},
    )
    planned = rdmatensor.plan.apply(model, plan, optimizer)
    sums = []
    for _ in range(3):
        planned(torch.ones(2, 32)).sum().backward()  # type: ignore[attr-defined]
        assert model.weight.grad is not None
        sums.append(float(model.weight.grad.abs().sum()))
    planned.close()
    return sums


def written(rank: int, world: int) -> str:
    """A hook writes the gradient of another parameter whose bucket has left."""
    torch.manual_seed(1)
    model: Any = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(6)])
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    batch = torch.ones(4, 1024)
    half = Mask((1, 32), tuple(range(0, 1024 * 32, 2)))
    dense = analyze(model, (batch,), strategy=DataParallel(world))
    plan = thin(dense, {f"{layer}.weight": half for layer in range(6)})
    assert "5.weight.grad" not in plan.buckets[-1].tensors
    planned = rdmatensor.plan.apply(model, plan, optimizer)

    def scale(_parameter: torch.Tensor) -> None:
        model[5].weight.grad.mul_(0.5)

    model[0].bias.register_post_accumulate_grad_hook(scale)
    try:
        loss_of(planned(batch)).backward()  # type: ignore[arg-type]
    except RuntimeError as error:
        return f"{type(error).__name__}: {error}"
    finally:
        planned.close()
    return "nothing was said"


class Branches(nn.Module):
    """Uses one of two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(32, 32), nn.Linear(32, 32)

    def forward(self, x: torch.Tensor, which: int = 0) -> torch.Tensor:
        chosen: torch.Tensor = self.first(x) if which == 0 else self.second(x)
        return chosen + (0 if which < 2 else self.first(x))


def unused(rank: int, world: int) -> dict[str, Any]:
    """Of two layers one is used, by one rank or by none; absent are gradients that are None."""
    found = {}
    for is_found in (False, True):
        torch.manual_seed(1)
        model = Branches()
        optimizer = torch.optim.SGD(model.parameters(), 0.05)
        plan = analyze(model, (torch.ones(2, 32), 2), strategy=DataParallel(world))
        few = {name: Mask((1, 16), (0, 5, 63)) for name in ("first.weight", "second.weight")}
        planned = rdmatensor.plan.apply(
            model, thin(plan, few), optimizer, find_unused_parameters=is_found
        )
        x = torch.ones(2, 32)
        planned(x, rank % 2).sum().backward()  # type: ignore[attr-defined]
        first: Any = model.first.weight.grad
        one = float(first.sum())
        optimizer.zero_grad()
        planned(x, 0).sum().backward()  # type: ignore[attr-defined]
        absent = [name for name, p in model.named_parameters() if p.grad is None]
        found[str(is_found)] = {"one rank": one, "absent": absent}
        planned.close()
    return found
