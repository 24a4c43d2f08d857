"""What the compression tool is worth on small models, compared with torch and torchao."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from compress_tasks import MODELS, STEPS, Task, pruned, pruned_by_torch
from torch import nn

from rdmatensor import compress

BLOCK = (1, 4)


@pytest.fixture(scope="module")
def tasks() -> dict[str, Task]:
    torch.set_num_threads(1)
    return {name: Task(make) for name, make in MODELS.items()}


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_steps_and_contributions_are_worth_their_time(tasks: dict[str, Task]) -> None:
    """Ten per cent at a time beats all at once; contributions are no worse in two of three."""
    found = {
        name: {
            "near_zero": pruned(task, "near_zero", 0.1, 1),
            "contribution": pruned(task, "contribution", 0.1, 1),
            "at once": pruned(task, "contribution", 1.0, STEPS),
        }
        for name, task in tasks.items()
    }
    better = [one["contribution"] <= one["near_zero"] for one in found.values()]
    assert sum(better) >= 2, found
    steps = [one["contribution"] <= one["at once"] for one in found.values()]
    assert sum(steps) >= 2, found


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_the_loss_is_not_above_torch_s_own_pruning(tasks: dict[str, Task]) -> None:
    """Of linear layers: torch's blocks are not of convolutions."""
    theirs = pruned_by_torch(tasks["mlp"])
    assert pruned(tasks["mlp"], "near_zero", 0.1, 1, "cubic") <= 1.05 * theirs


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", MODELS)
def test_chosen_degrees_lose_less_than_equal_ones(tasks: dict[str, Task], name: str) -> None:
    equal = copy.deepcopy(tasks[name])
    one = compress.Policy(compress.Prune("*", block=BLOCK, to=0.7))
    flat = compress.run(equal.model, one, progress=False)
    chosen = copy.deepcopy(tasks[name])
    share = flat.size_bytes / flat.dense_bytes
    policy = compress.Policy(compress.Prune("*", block=BLOCK), total=compress.Target(bytes=share))
    curve = compress.sensitivity(chosen.model, policy, chosen.evaluate, progress=False)
    result = compress.run(chosen.model, policy, curve=curve, progress=False)
    assert result.size_bytes <= flat.size_bytes
    assert chosen.evaluate(chosen.model) < equal.evaluate(equal.model)


def test_eight_bits_are_as_near_as_torchao_s() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 64))
    x = torch.randn(512, 256)
    dense = model(x).detach()
    result = compress.run(model, compress.Policy(compress.Quantize(nn.Linear, bits=8)))
    mine = (model(x).detach() - dense).norm() / dense.norm()
    exported = result.export("torchao")
    theirs = (exported(x).detach() - dense).norm() / dense.norm()
    assert "Int8" in type(exported[0].weight).__name__ or hasattr(exported[0].weight, "qdata")
    assert 0 < float(mine) <= 1.1 * float(theirs)


def test_pruned_weights_stay_zero_in_torchao_s_layers() -> None:
    torch.manual_seed(0)
    model: Any = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
    rules = (compress.Prune("0", to=0.5), compress.Quantize("0", bits=8, group=32))
    exported = compress.run(model, compress.Policy(*rules)).export("torchao")
    weight = exported[0].weight.dequantize()
    assert (weight == 0).float().mean() >= 0.5
    assert type(model[0]).__name__ == "Linear"
    assert torch.equal(exported[1].weight, model[1].weight)
