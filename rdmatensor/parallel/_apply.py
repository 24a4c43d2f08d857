"""Train a model by a partition, with torch's own parts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from time import perf_counter_ns
from typing import Any, TypedDict

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel

from graph_analysis import DataParallel, analyze
from graph_analysis.partition import Partition, UnitChoice, held_outside
from rdmatensor import plan
from rdmatensor._backend.groups import backend_of
from rdmatensor._plan.agree import broadcast_all
from rdmatensor.errors import ClosedError
from rdmatensor.parallel._ranks import Ranks, refuse
from rdmatensor.parallel._split import shard, split_pair, tied_names
from rdmatensor.parallel._stages import Loss, Stage, chain_of

MakeOptimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
_STEPS_KEPT = 50  # whose times describe() reports


class Described(TypedDict):
    """The result of ParallelModel.describe(). Times in ns, 0 before a step; sizes in bytes."""

    name: str
    steps: int
    predicted_ns: int
    low_ns: int
    high_ns: int
    measured_ns: int
    held_bytes: int


def apply(
    model: nn.Module,
    partition: Partition,
    optimizer: MakeOptimizer,
    *,
    loss_fn: Loss,
    group: dist.ProcessGroup | None = None,
) -> ParallelModel:
    """Split a model over the ranks of a group as a partition says.

    Blocks until all ranks of the group have called it: they compare their partitions, and all take
    rank 0's parameters and buffers. Pairs of linear layers go through parallelize_module(), sharded
    units through fully_shard(), the rest through DistributedDataParallel. A model that is
    replicated whole trains by a plan, if the group's backend is rdmatensor.

    Ownership:
        The model is changed: its layers hold parts of their weights, as DTensors, from then on.

    Args:
        model: The model, with its parameters on the CPU.
        partition: From choose() or graph_analysis.partition.partition_from_json().
        optimizer: Makes the optimizer from the parameters, which exist only once they are split.
        loss_fn: loss_fn(output, target) is the mean over the rows.
        group: None is the default group.

    Returns:
        The model that trains in parts.

    Raises:
        InvalidArgumentError: The partition is for another number of ranks, or names a module that
            the model does not have, or a layer of a pair that is not an nn.Linear, or splits a
            part that shares a parameter with the rest.
        PlanMismatchError: The ranks have different partitions.

    Example:
        >>> trained = apply(model, choice, SGD, loss_fn=loss_fn)  # doctest: +SKIP
        >>> loss = trained.step((x,), y)  # doctest: +SKIP
        >>> trained.optimizer.step()  # doctest: +SKIP
    """
    ranks = Ranks(group)
    ranks.check_same("the partition", partition.fingerprint())
    ranks.together(lambda: _check(model, partition, ranks))
    return ParallelModel(model, partition, optimizer, loss_fn, ranks)


def _check(model: nn.Module, partition: Partition, ranks: Ranks) -> None:
    if partition.world_size != ranks.size:
        refuse(
            "apply",
            f"the partition is for {partition.world_size} ranks, the group has {ranks.size}",
        )
    modules = dict(model.named_modules(remove_duplicate=False))
    for unit in partition.units:
        for name in unit.modules:
            module = modules.get(name)
            is_linear = type(module) is nn.Linear
            if module is None or (unit.way == "column_row" and not is_linear):
                kind = "absent" if module is None else f"a {type(module).__name__}"
                refuse("apply", f"the partition splits module {name!r}, which is {kind} here")
    _check_tied(model, partition)
    staged = [name for unit in partition.of_way("stage") for name in unit.modules]
    if staged and staged != list(chain_of(model)):
        refuse("apply", f"the stages have the modules {staged}, the model {list(chain_of(model))}")
    for unit in partition.of_way("stage"):
        if not sum(len(list(modules[name].parameters())) for name in unit.modules):
            refuse("apply", f"{unit.unit} of the pipeline has no parameter")
    _check_rows(model, partition)


def _check_tied(model: nn.Module, partition: Partition) -> None:
    """Refuse to split a parameter for some of its modules only: the others would keep their own."""
    tied = tied_names(model)
    for unit in partition.units:
        if unit.way == "replicate":
            continue
        together = [unit.modules] if unit.way == "stage" else [(name,) for name in unit.modules]
        for modules in together:
            found = held_outside(modules, unit.excluded, tied)
            if found is not None:
                refuse(
                    "apply",
                    f"{unit.unit} cannot go the way {unit.way!r}: its parameter {found[0]!r} is"
                    f" also {found[1]!r}, outside of it",
                )


def _check_rows(model: nn.Module, partition: Partition) -> None:
    if len(set(partition.shares)) == 1:
        return
    if partition.of_way("column_row"):
        refuse("apply", "pairs of layers need equally many rows on all ranks")
    norm = first_batch_norm(model)
    if norm is not None:
        refuse("apply", f"{norm} has statistics of its rows: shares must be equal with it")


def first_batch_norm(model: nn.Module) -> str | None:
    """The name of the first module with statistics of a batch, None if there is none."""
    kinds = (nn.modules.batchnorm._BatchNorm,)
    found = (name for name, module in model.named_modules() if isinstance(module, kinds))
    return next(found, None)


class ParallelModel:
    """A model in parts. step() runs forward and backward; the optimizer is the caller's to step.

    Gradients are those of the mean loss over the rows of all ranks, whatever the shares are.

    Attributes:
        module: The model. A call of one with split layers is a collective call; of a pipeline each
            rank has one stage only.
        partition: What is split how.
        optimizer: Of the parameters, as the caller's function made it.

    Example:
        >>> trained.optimizer.zero_grad()  # doctest: +SKIP
        >>> loss = trained.step((x,), y)  # doctest: +SKIP
    """

    def __init__(
        self,
        model: nn.Module,
        partition: Partition,
        optimizer: MakeOptimizer,
        loss_fn: Loss,
        ranks: Ranks,
    ) -> None:
        self.module = model
        self.partition = partition
        self._ranks = ranks
        self._loss_fn = loss_fn
        self._times_ns: list[int] = []
        self._is_closed = False
        self._count = 0
        root = dist.get_global_rank(ranks.group, 0)
        broadcast_all([*model.parameters(), *model.buffers()], root, ranks.group)
        self._share = partition.shares[ranks.rank]
        self._scale = self._share * ranks.size / partition.batch
        self._stage: Stage | None = None
        if partition.of_way("stage"):
            self._stage = Stage(model, partition, loss_fn, ranks)
        split = _split(model, partition, ranks)
        self.optimizer = optimizer(self.parameters())
        self._planned: plan.PlannedModel | None = None
        is_even = len(set(partition.shares)) == 1  # plans have the sizes of inputs
        is_whole = self._stage is None and not split
        may_plan = partition.is_planned and _has_plans(ranks.group)
        self._is_planned = is_whole and is_even and may_plan
        self._runner: Any = model
        if not self._is_planned and self._stage is None:
            self._runner = _replicated(model, split, ranks.group)

    def parameters(self) -> Iterator[nn.Parameter]:
        """Yield this rank's parameters, of split layers its parts.

        Yields:
            Each parameter once.

        Example:
            >>> list(trained.parameters())  # doctest: +SKIP
        """
        return (p for p in self.module.parameters() if not p.is_meta)

    @property
    def shares(self) -> tuple[int, ...]:
        """Return the rows of each rank in a global batch.

        Example:
            >>> trained.shares  # doctest: +SKIP
            (32, 32)
        """
        return self.partition.shares

    def step(self, inputs: Sequence[object], target: object) -> torch.Tensor:
        """Run forward and backward on this rank's rows; adds to the gradients.

        Blocks until all ranks of the group have called it and gradients are averaged.

        Args:
            inputs: The arguments of the model's forward, with this rank's rows.
            target: What loss_fn takes with the output.

        Returns:
            The mean loss of this rank's rows, of a pipeline that of all rows; without a graph.

        Raises:
            InvalidArgumentError: The first tensor of inputs has other rows than this rank's share;
                nothing was sent.
            ClosedError: After close().

        Example:
            >>> trained.step((x,), y)  # doctest: +SKIP
            tensor(0.6931)
        """
        if self._is_closed:
            raise ClosedError("RDT_ECLOSED", "parallel.step", "the model was closed")
        began_ns = perf_counter_ns()
        rows = next((len(x) for x in inputs if isinstance(x, torch.Tensor) and x.ndim), None)
        if rows != self._share:
            refuse("step", f"{rows} rows of this rank, its share is {self._share}")
        loss = self._run(tuple(inputs), target)
        self._times_ns = [*self._times_ns[1 - _STEPS_KEPT :], perf_counter_ns() - began_ns]
        self._count += 1
        return loss

    def _run(self, inputs: tuple[object, ...], target: object) -> torch.Tensor:
        if self._stage is not None:
            return self._stage.step(inputs, target)
        if self._is_planned and self._planned is None:
            self._planned = self._plan(inputs, target)
            self._runner = self._planned
        loss = self._loss_fn(self._runner(*inputs), target)
        torch.autograd.backward(loss if self._scale == 1 else loss * self._scale)
        return loss.detach()

    def _plan(self, inputs: tuple[object, ...], target: object) -> plan.PlannedModel:
        made = analyze(
            self.module,
            inputs,
            loss_fn=lambda output, *_: self._loss_fn(output, target),
            strategy=DataParallel(self._ranks.size),
        )
        return plan.apply(self.module, made, self.optimizer, self._ranks.group)

    def describe(self) -> Described:
        """Return the predicted step next to the measured one, without the optimizer.

        Returns:
            A dictionary; Described names its keys. measured_ns is the median of the last 50 steps.

        Example:
            >>> trained.describe()["steps"]  # doctest: +SKIP
            10
        """
        times, predicted = sorted(self._times_ns), self.partition.predicted
        return {
            "name": self.partition.name,
            "steps": self._count,
            "predicted_ns": predicted.step_ns,
            "low_ns": predicted.low_ns,
            "high_ns": predicted.high_ns,
            "measured_ns": times[len(times) // 2] if times else 0,
            "held_bytes": sum(local_bytes(p) for p in self.parameters()),
        }

    def close(self) -> None:
        """Remove the hooks of a plan. Idempotent. Split layers stay split; step() raises.

        Example:
            >>> trained.close()  # doctest: +SKIP
        """
        if self._planned is not None:
            self._planned.close()
        self._planned, self._runner, self._is_closed = None, None, True


def local_bytes(parameter: torch.Tensor) -> int:
    """The bytes of a parameter that this rank holds."""
    local: torch.Tensor = getattr(parameter, "_local_tensor", parameter)
    return local.numel() * local.element_size()


def _has_plans(group: dist.ProcessGroup) -> bool:
    try:
        backend_of(group)
    except ValueError:  # another backend
        return False
    return True


def _split(model: nn.Module, partition: Partition, ranks: Ranks) -> list[str]:
    """Split pairs and sharded units; returns the names of their parameters."""
    pairs, sharded = partition.of_way("column_row"), partition.of_way("fsdp")
    if not pairs and not sharded:
        return []
    mesh = DeviceMesh.from_group(ranks.group, "cpu", mesh_dim_names=("ranks",))
    named = {id(p): name for name, p in model.named_parameters()}
    of_units = {
        unit.unit: {id(p): p for p in _own_parameters(model, unit)} for unit in partition.units
    }
    split = [named[key] for unit in (*pairs, *sharded) for key in of_units[unit.unit]]
    for unit in pairs:
        split_pair(model, unit.modules, unit.around, mesh)
    replicas = dict(model.named_parameters())
    for unit in sharded:
        own = {replicas[named[key]] for key in of_units[unit.unit]}
        for name in unit.modules:
            shard(model.get_submodule(name), mesh, own)
    return split


def _own_parameters(model: nn.Module, unit: UnitChoice) -> Iterator[nn.Parameter]:
    """The parameters of a unit, without those of units inside it."""
    for name in unit.modules:
        prefix = f"{name}." if name else ""
        inside = tuple(f"{other}." for other in unit.excluded)
        for key, parameter in model.get_submodule(name).named_parameters():
            if not f"{prefix}{key}".startswith(inside):
                yield parameter


def _replicated(model: nn.Module, split: Sequence[str], group: dist.ProcessGroup) -> nn.Module:
    """The model with averaged gradients of what is not split."""
    names = set(split)
    if not any(p.requires_grad for name, p in model.named_parameters() if name not in names):
        return model
    ignore: Any = DistributedDataParallel._set_params_and_buffers_to_ignore_for_model
    ignore(model, list(split))
    return DistributedDataParallel(model, process_group=group, gradient_as_bucket_view=True)
