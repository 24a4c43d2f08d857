"""Ranks that split one model, with the model in one process as the oracle; see test_parallel.py."""

from __future__ import annotations

import copy
import functools
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from roles_collectives import TIMEOUT
from torch import nn

from graph_analysis import Machine, machine_from_json, machine_to_json
from graph_analysis.capture import capture
from graph_analysis.ir import Graph
from graph_analysis.machine import Cost
from graph_analysis.partition import (
    Partition,
    Prediction,
    UnitChoice,
    make_units,
)
from rdmatensor import parallel
from rdmatensor.errors import ClosedError
from rdmatensor.parallel._pairs import shareable_pairs
from rdmatensor.parallel._split import tied_names
from rdmatensor.parallel._stages import chain_of

STEPS = 4
SLOWED = ("all_gather.beta_ps", "all_reduce.beta_ps", "reduce_scatter.beta_ps")
ROWS = 4  # of each rank if all have equally many


class Attention(nn.Module):
    """Attention whose heads are counted by its layers' features."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(16, 16) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            one(x).view(*x.shape[:2], -1, 4).transpose(1, 2) for one in (self.q, self.k, self.v)
        )
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        out: torch.Tensor = self.o(y.transpose(1, 2).flatten(2))
        return out


class Decoder(nn.Module):
    """(B, T, 16) -> (B, T, 8)."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(16), Attention()
        self.mlp = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))
        self.head = nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm(x))
        head: torch.Tensor = self.head(x + self.mlp(x))
        return head


def make(kind: str) -> tuple[nn.Module, tuple[int, ...], tuple[int, ...]]:
    """A model, and the shapes of an input and of a target, without the batch."""
    torch.manual_seed(3)
    if kind == "decoder":
        return Decoder(), (5, 16), (5, 8)
    if kind == "tied":
        tied = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 64), nn.Linear(64, 8))
        tied.append(nn.Linear(8, 8, bias=False))
        tied[4].weight = tied[0].weight
        return tied, (8,), (8,)
    if kind == "again":
        act = nn.Tanh()
        return nn.Sequential(nn.Linear(8, 8), act, nn.Linear(8, 8), act), (8,), (8,)
    features = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Flatten())
    head = nn.Sequential(nn.Linear(4 * 36, 64), nn.ReLU(), nn.Linear(64, 8))
    return nn.Sequential(features, head), (3, 6, 6), (8,)


def partition_of(
    model: nn.Module,
    x: torch.Tensor,
    ways: str,
    shares: tuple[int, ...],
    graph: Graph | None = None,
) -> Any:
    """A partition in which pairs, or the rest, or both go the named ways."""
    world = len(shares)
    predicted = Prediction(1, 1, 1, 0, 0, (1,) * world, (1,) * world)
    if ways == "stages":
        names = list(chain_of(model))
        cuts = [len(names) * rank // world for rank in range(world + 1)]
        stages = tuple(
            UnitChoice(f"stage {r}", "stage", tuple(names[cuts[r] : cuts[r + 1]]), ())
            for r in range(world)
        )
        return Partition(ways, world, stages, shares, predicted, micro_batches=2)
    graph = graph or capture(model, (x,))
    pairs = shareable_pairs(model, graph, (x,), world)[0] if "column_row" in ways else []
    tied = [] if ways == "untied" else tied_names(model)
    units = make_units(graph, [name for name, _ in model.named_children()], pairs, {}, tied)
    rest: Any = "fsdp" if "fsdp" in ways or ways == "untied" else "replicate"
    chosen = tuple(
        UnitChoice(u.name, "column_row", u.modules, (), u.pair.around)
        if u.pair is not None
        else UnitChoice(u.name, rest if u.may_shard else "replicate", u.modules, u.excluded)
        for u in units
    )
    assert len(pairs) == (0 if "column_row" not in ways else 2 if hasattr(model, "mlp") else 1)
    return Partition(ways, world, chosen, shares, predicted, is_planned=ways != "ddp")


def whole(parameter: torch.Tensor) -> torch.Tensor:
    full = getattr(parameter, "full_tensor", None)
    found: torch.Tensor = parameter.detach() if full is None else full().detach()
    return found


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.2, momentum=0.9)


def trained(rank: int, world: int, kind: str, ways: list[str]) -> list[list[float]]:
    """Train by partitions, one after the other; of each the worst difference, and what is held."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    model, shape, _ = make(kind)
    graph = capture(model, (torch.randn(ROWS, *shape),))
    found = [_trained(rank, world, kind, one, graph) for one in ways]
    dist.destroy_process_group()
    return found


def _trained(rank: int, world: int, kind: str, ways: str, graph: Graph) -> list[float]:
    model, shape, wanted = make(kind)
    oracle = copy.deepcopy(model).double()
    if rank:  # rank 0's values count
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.zero_()
    shares = (ROWS,) * world
    if "unequal" in ways:
        shares = (ROWS - 1, *shares[2:], ROWS + 1)
    x = torch.randn(STEPS, sum(shares), *shape, generator=torch.Generator().manual_seed(1))
    y = torch.randn(STEPS, sum(shares), *wanted, generator=torch.Generator().manual_seed(2))
    choice = partition_of(model, x[0, :ROWS], ways, shares, graph)
    total = sum(p.numel() * 4 for p in model.parameters())
    split = parallel.apply(model, choice, sgd, loss_fn=nn.functional.mse_loss)
    reference = sgd(oracle.parameters())
    begin = sum(shares[:rank])
    mine = slice(begin, begin + shares[rank])
    worst = 0.0
    for step in range(STEPS):
        split.optimizer.zero_grad()
        split.step((x[step, mine],), y[step, mine])
        reference.zero_grad()
        nn.functional.mse_loss(oracle(x[step].double()), y[step].double()).backward()
        worst = max(worst, *(difference(got.grad, oracle, n, True) for n, got in held_by(model)))
        split.optimizer.step()
        reference.step()
        worst = max(worst, *(difference(got, oracle, n, False) for n, got in held_by(model)))
    described = split.describe()
    assert described["steps"] == STEPS
    assert described["measured_ns"] > 0
    split.close()
    return [worst, described["held_bytes"] / total]


def difference(got: torch.Tensor | None, oracle: nn.Module, name: str, is_grad: bool) -> float:
    """Of a weight or a gradient to the oracle's, relative to the largest element."""
    parameter = oracle.get_parameter(name)
    wanted = parameter.grad if is_grad else parameter.detach()
    assert got is not None
    assert wanted is not None
    scale = float(wanted.abs().max()) + 1e-3  # some gradients are zero but for noise
    return float((whole(got).double() - wanted).abs().max()) / scale


def held_by(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """The parameters that this rank has."""
    found = [(name, p) for name, p in model.named_parameters() if not p.is_meta]
    assert found
    return found


def machine_with(machine: Machine, more_ps: int) -> Machine:
    """The machine with equal ranks, and collectives that take so much longer for each byte."""
    costs = tuple(
        Cost(cost.name, cost.value + more_ps if cost.name in SLOWED else cost.value)
        for cost in machine.costs
    )
    devices = tuple(replace(device, speed_permille=1000) for device in machine.devices)
    return Machine(devices, machine.links, costs)


def chosen(rank: int, world: int) -> list[Any]:
    """Choose on a machine that sums slowly, and in a race; return names and texts."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    model, shape, wanted = make("tail")
    before = [p.detach().clone() for p in model.parameters()]
    generator = torch.Generator().manual_seed(rank)
    x = torch.randn(ROWS, *shape, generator=generator)
    y = torch.randn(ROWS, *wanted, generator=generator)
    machine = parallel.measure_machine()
    slow = machine_from_json(machine_to_json(machine_with(machine, 10**6)))
    ask = functools.partial(parallel.choose, model, (x,), y, loss_fn=nn.functional.mse_loss)
    random = torch.get_rng_state()
    trusted = ask(machine=slow, race=False)
    raced = ask(machine=slow)
    assert torch.equal(random, torch.get_rng_state())
    same = all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert all(p.grad is None for p in model.parameters())
    split = parallel.apply(model, raced, sgd, loss_fn=nn.functional.mse_loss)
    split.step((x,), y)
    dist.destroy_process_group()
    names = {cost.name for cost in machine.costs}
    return [trusted.name, raced.text(), trusted.text(), same, sorted(names), raced.fingerprint()]


def refused(rank: int, world: int, asked: list[str]) -> list[str]:
    """Ask for what cannot be, one after the other; return the words."""
    dist.init_process_group("rdmatensor", timeout=TIMEOUT)
    found = []
    for what in asked:
        try:
            _ask_for(what, rank, world)
        except (ValueError, RuntimeError, ClosedError) as error:
            found.append(f"{type(error).__name__}: {error}")
        else:
            found.append("nothing was refused")
    dist.destroy_process_group()
    return found


def _ask_for(what: str, rank: int, world: int) -> None:
    model, shape, wanted = make("tail")
    x, y = torch.randn(ROWS, *shape), torch.randn(ROWS, *wanted)
    loss_fn = nn.functional.mse_loss
    even = (ROWS,) * world

    def ask(one: nn.Module, inputs: torch.Tensor, **options: Any) -> None:
        parallel.choose(one, (inputs,), y, loss_fn=loss_fn, race=False, **options)

    def take(one: nn.Module, choice: Partition) -> Any:
        return parallel.apply(one, choice, sgd, loss_fn=loss_fn)

    def on(change: Any) -> None:
        machine = parallel.measure_machine()
        ask(model, x, machine=Machine(change(machine.devices), (), machine.costs))

    normal = nn.Sequential(nn.BatchNorm1d(8), nn.Linear(8, 8))
    tied = make("tied")[0]
    asked = {
        "control flow": lambda: ask(Branching(), torch.randn(ROWS, 8)),
        "memory": lambda: ask(model, x, memory=1000),
        "size": lambda: parallel.measure_machine(memory="two gigs" if rank else "2GiB"),
        "world": lambda: on(lambda devices: devices[:1]),
        "host": lambda: on(lambda devices: tuple(map(elsewhere, devices))),
        "rows": lambda: take(model, partition_of(model, x, "replicate", even)).step((x[:1],), y),
        "closed": lambda: closed(take(model, partition_of(model, x, "replicate", even)), x, y),
        "statistics": lambda: take(
            normal, partition_of(normal, torch.randn(ROWS, 8), "replicate", (ROWS - 1, ROWS + 1))
        ),
        "module": lambda: take(nn.Linear(2, 2), partition_of(model, x, "column_row", even)),
        "untied": lambda: take(tied, partition_of(tied, torch.randn(ROWS, 8), "untied", even)),
        "stages": lambda: take(tied, partition_of(tied, torch.randn(ROWS, 8), "stages", even)),
        "differs": lambda: take(
            model, partition_of(model, x, "fsdp" if rank else "replicate", even)
        ),
    }
    asked[what]()


def closed(trained: parallel.ParallelModel, x: torch.Tensor, y: torch.Tensor) -> None:
    """Close a model, and use it."""
    trained.step((x,), y)
    trained.close()
    trained.close()
    trained.step((x,), y)


class Branching(nn.Linear):
    """Which layer runs depends on the data."""

    def __init__(self) -> None:
        super().__init__(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) if x.sum() > 0 else x


def elsewhere(device: Any) -> Any:
    """The device, on another host."""
    return replace(device, host="elsewhere")
