"""Train a chain of modules in pipeline stages, one on each rank, with torch's pipelining."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn

from graph_analysis.partition import Partition
from rdmatensor.parallel._ranks import Ranks, refuse

if TYPE_CHECKING:
    from torch.distributed.pipelining import ScheduleGPipe

Loss = Callable[..., torch.Tensor]


def chain_of(model: nn.Module) -> dict[str, nn.Module]:
    """The modules of an nn.Sequential in order, those of inner ones in their place; else empty.

    A module that is in it several times has several names.
    """
    found: dict[str, nn.Module] = {}
    if type(model) is nn.Sequential:
        for name, child in model._modules.items():
            assert child is not None
            inner = chain_of(child)
            found |= {f"{name}.{key}": one for key, one in inner.items()} or {name: child}
    return found


def why_no_stages(model: nn.Module, inputs: Sequence[object], target: object) -> str | None:
    """Why a model cannot be cut into stages; None if it can."""
    chain = chain_of(model)
    if not chain:
        return "no pipeline: the model is not an nn.Sequential"
    if len(inputs) != 1 or not all(isinstance(x, torch.Tensor) for x in (*inputs, target)):
        return "no pipeline: it takes one tensor as input, and one as target"
    held = [id(t) for one in chain.values() for t in (*one.parameters(), *one.buffers())]
    if len(set(held)) < len(held):
        return "no pipeline: modules of the chain share a parameter or a buffer"
    return None


def make_schedule(own: nn.Module, micro_batches: int, loss_fn: Loss, ranks: Ranks) -> ScheduleGPipe:
    """A schedule of torch's pipelining, in which this rank has one stage."""
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    stage = PipelineStage(own, ranks.rank, ranks.size, torch.device("cpu"), group=ranks.group)
    return ScheduleGPipe(stage, micro_batches, loss_fn=loss_fn)


def run_schedule(
    schedule: ScheduleGPipe,
    x: torch.Tensor | None,
    y: torch.Tensor | None,
    ranks: Ranks,
) -> list[torch.Tensor]:
    """Run a step: x counts on the first rank, y on the last, which gets the losses."""
    losses: list[torch.Tensor] = []
    if ranks.rank == ranks.size - 1:
        schedule.step(target=y, losses=losses, return_outputs=False)
    else:
        schedule.step(*((x,) if ranks.rank == 0 else ()), return_outputs=False)
    return losses


class Stage:
    """One stage. Every rank gives its own rows: inputs go to the first rank, targets to the last.

    Modules of the other stages lose their memory.
    """

    def __init__(self, model: nn.Module, partition: Partition, loss_fn: Loss, ranks: Ranks) -> None:
        chain = chain_of(model)
        names = partition.units[ranks.rank].modules
        self._ranks = ranks
        own = nn.Sequential(*(chain[name] for name in names))
        for name, module in chain.items():
            if name not in names:
                module.to_empty(device="meta")
        self._schedule = make_schedule(own, partition.micro_batches, loss_fn, ranks)

    def step(self, inputs: Sequence[object], target: object) -> torch.Tensor:
        """Run forward and backward; return the mean loss of all rows, on all ranks."""
        if len(inputs) != 1 or not all(isinstance(x, torch.Tensor) for x in (*inputs, target)):
            refuse("step", "a pipeline takes one tensor as input, and one as target")
        last = self._ranks.size - 1
        x, y = self._gathered(inputs[0], 0), self._gathered(target, last)
        losses = run_schedule(self._schedule, x, y, self._ranks)
        loss = torch.stack(losses).mean().detach() if losses else torch.zeros(())
        root = dist.get_global_rank(self._ranks.group, last)
        dist.broadcast(loss, src=root, group=self._ranks.group)
        return loss

    def _gathered(self, rows: Any, to: int) -> torch.Tensor | None:  # noqa: ANN401 - a tensor
        is_here = self._ranks.rank == to
        parts = [torch.empty_like(rows) for _ in range(self._ranks.size)] if is_here else None
        root = dist.get_global_rank(self._ranks.group, to)
        dist.gather(rows.contiguous(), parts, dst=root, group=self._ranks.group)
        return torch.cat(parts) if parts is not None else None
