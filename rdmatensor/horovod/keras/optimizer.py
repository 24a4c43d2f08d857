"""Keras optimizers that apply the gradients of all ranks.

A wrapped optimizer is an instance of a class that is made from its own and has its name: models
that are saved with it load in plain Keras.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import keras
import torch
from keras.optimizers import Optimizer
from torch import Tensor

import rdmatensor.horovod.torch as hvd
from rdmatensor.horovod.torch.compression import Compression, Compressor

if keras.backend.backend() != "torch":
    raise ImportError(
        f"keras uses the backend {keras.backend.backend()!r}: set KERAS_BACKEND=torch, or import "
        "rdmatensor.horovod.keras before keras"
    )

_ATTRIBUTE = "_rdmatensor"  # of a wrapped optimizer


@dataclass
class _Reducing:
    """How a wrapped optimizer reduces, and what it has added up so far."""

    compression: type[Compressor]
    op: int
    predivide: float
    passes: int
    averages_passes: bool
    process_set: hvd.ProcessSet
    groups: int | Sequence[Sequence[keras.Variable]]
    local: set[int] = field(default_factory=set)  # id() of variables whose gradients stay local
    scales_local: bool = True
    pass_count: int = 0
    sums: list[Tensor | None] = field(default_factory=list)

    def add(self, grads: Sequence[Tensor | None]) -> list[Tensor | None] | None:
        """Add one pass's gradients; return the sums after the last pass, else None."""
        if self.passes == 1:
            return list(grads)
        if self.pass_count == 0:
            self.sums = [None if one is None else one.clone() for one in grads]
        else:
            for at, one in enumerate(grads):
                if one is not None:
                    so_far = self.sums[at]
                    self.sums[at] = one.clone() if so_far is None else so_far.add_(one)
        self.pass_count += 1
        if self.pass_count < self.passes:
            return None
        self.pass_count = 0
        if self.averages_passes:
            return [None if one is None else one / self.passes for one in self.sums]
        return self.sums

    def reduce(
        self, grads: list[Tensor | None], variables: Sequence[keras.Variable]
    ) -> list[Tensor | None]:
        """Return the gradients of all ranks; None where no rank has one."""
        size = self.process_set.size()
        if size is None or size == 1:
            return grads
        ours = [at for at, one in enumerate(variables) if id(one) not in self.local]
        has = torch.tensor([float(grads[at] is not None) for at in ours])
        has = hvd.allreduce(
            has, op=hvd.Sum, name="DistributedOptimizer.has", process_set=self.process_set
        )
        found = list(grads)
        for number, part in enumerate(self._parts(ours, variables)):
            sent = [
                torch.zeros_like(variables[at].value) if (one := grads[at]) is None else one
                for at in part
            ]
            packed = [self.compression.compress(one.detach().contiguous()) for one in sent]
            summed = hvd.grouped_allreduce(
                [one for one, _ in packed],
                op=self.op,
                name=f"DistributedOptimizer.{number}",
                prescale_factor=1.0 / self.predivide,
                postscale_factor=self.predivide,
                process_set=self.process_set,
            )
            for at, one, (_, context) in zip(part, summed, packed, strict=True):
                found[at] = self.compression.decompress(one, context)
        for at, count in zip(ours, has.tolist(), strict=True):
            if count == 0:
                found[at] = None
        if self.scales_local:
            for at in set(range(len(grads))) - set(ours):
                one = grads[at]
                found[at] = None if one is None else one / size
        return found

    def _parts(self, ours: Sequence[int], variables: Sequence[keras.Variable]) -> list[list[int]]:
        """Return the indices of variables that are reduced together."""
        if isinstance(self.groups, int):
            count = max(1, min(self.groups or 1, len(ours)))
            return [list(ours[at::count]) for at in range(count)] if ours else []
        index = {id(variables[at]): at for at in ours}
        parts = [[index[id(one)] for one in group if id(one) in index] for group in self.groups]
        named = {at for part in parts for at in part}
        return [part for part in [*parts, [at for at in ours if at not in named]] if part]


class _Distributed:
    """Added in front of an optimizer's own class."""

    def apply(
        self, grads: Sequence[Tensor | None], trainable_variables: Sequence[Any] | None = None
    ) -> None:
        """Apply the gradients of all ranks."""
        reducing: _Reducing = getattr(self, _ATTRIBUTE)
        variables = trainable_variables
        if variables is None:
            variables = self._trainable_variables  # type: ignore[attr-defined]
        summed = reducing.add(grads)
        if summed is None:
            self.iterations.assign_add(1)  # type: ignore[attr-defined]
            return
        reduced = reducing.reduce(summed, variables)
        super().apply(reduced, trainable_variables)  # type: ignore[misc]


def _wrap(optimizer: Optimizer, reducing: _Reducing) -> Optimizer:
    if not isinstance(optimizer, Optimizer):
        raise ValueError(f"{type(optimizer).__name__} is not a Keras optimizer")
    if isinstance(optimizer, _Distributed):
        raise ValueError("the optimizer is wrapped already: wrap it once")
    if reducing.passes < 1:
        raise ValueError(f"backward_passes_per_step={reducing.passes}: must be at least 1")
    if reducing.passes > 1 and optimizer.gradient_accumulation_steps:
        raise ValueError(
            "backward_passes_per_step and the optimizer's gradient_accumulation_steps both add "
            "gradients up: use one of them"
        )
    if reducing.op not in (hvd.Average, hvd.Sum):
        raise ValueError("op must be Average or Sum")
    if reducing.predivide != 1.0 and reducing.op != hvd.Average:
        raise ValueError("gradient_predivide_factor needs op=Average")
    own = type(optimizer)
    # Its own class, and no public one: Keras replaces those where an object is made.
    made = type(own.__name__, (_Distributed, own), {"__doc__": own.__doc__})
    made.__module__, made.__qualname__ = own.__module__, own.__qualname__
    optimizer.__class__ = made
    object.__setattr__(optimizer, _ATTRIBUTE, reducing)
    return optimizer


# over budget: the parameters are Horovod's
def DistributedOptimizer(  # noqa: N802 - Horovod's name
    optimizer: Optimizer,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = hvd.Average,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[keras.Variable]] | None = None,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    process_set: hvd.ProcessSet = hvd.global_process_set,
    scale_local_gradients: bool = True,
) -> Optimizer:
    """Have an optimizer apply the gradients of all ranks.

    Args:
        optimizer: A Keras optimizer; it is changed, and returned.
        name: Has no effect: the optimizer keeps its name, so that saved models load anywhere.
        device_dense: Has no effect: tensors are the CPU's.
        device_sparse: Has no effect.
        compression: Compression.none, Compression.fp16 or another Compressor.
        sparse_as_dense: Has no effect: Keras's gradients are dense on torch.
        gradient_predivide_factor: Divides before the sum; the rest of the average is after it.
        op: Average or Sum.
        num_groups: How many groups of gradients are reduced together; 0: one.
        groups: The same, or lists of variables; the others are a group of their own.
        backward_passes_per_step: Batches whose gradients are added up before each step.
        average_aggregated_gradients: Divide that sum by the number of batches.
        process_set: The ranks that train together.
        scale_local_gradients: Divide gradients of local layers by the number of ranks.

    Returns:
        The same object. Its class has the name of the one that it had.

    Raises:
        ValueError: It is wrapped already, or options contradict each other.

    Example:
        >>> optimizer = DistributedOptimizer(keras.optimizers.SGD(0.01 * hvd.size()))
        >>> isinstance(optimizer, keras.optimizers.Optimizer)
        True
    """
    del name, device_dense, device_sparse, sparse_as_dense
    return _wrap(
        optimizer,
        _Reducing(
            compression=compression,
            op=op,
            predivide=gradient_predivide_factor,
            passes=backward_passes_per_step,
            averages_passes=average_aggregated_gradients,
            process_set=process_set,
            groups=num_groups if groups is None else groups,
            scales_local=scale_local_gradients,
        ),
    )


# over budget: the parameters are Horovod's
def PartialDistributedOptimizer(  # noqa: N802 - Horovod's name
    optimizer: Optimizer,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = hvd.Average,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[keras.Variable]] | None = None,
    process_set: hvd.ProcessSet = hvd.global_process_set,
    local_layers: keras.Layer | Sequence[keras.Layer] | None = None,
    scale_local_gradients: bool = True,
) -> Optimizer:
    """Have an optimizer apply the gradients of all ranks, except those of local layers.

    Args:
        optimizer: As for DistributedOptimizer().
        name: As for DistributedOptimizer().
        device_dense: As for DistributedOptimizer().
        device_sparse: As for DistributedOptimizer().
        compression: As for DistributedOptimizer().
        sparse_as_dense: As for DistributedOptimizer().
        gradient_predivide_factor: As for DistributedOptimizer().
        op: As for DistributedOptimizer().
        num_groups: As for DistributedOptimizer().
        groups: As for DistributedOptimizer().
        process_set: As for DistributedOptimizer().
        local_layers: Built layers whose gradients stay on their rank.
        scale_local_gradients: Divide the local gradients by the number of ranks.

    Returns:
        The same object.

    Raises:
        ValueError: As for DistributedOptimizer(); or a local layer is not built.

    Example:
        >>> dense = keras.layers.Dense(2)
        >>> dense.build((None, 3))
        >>> optimizer = PartialDistributedOptimizer(keras.optimizers.SGD(), local_layers=dense)
    """
    layers = [local_layers] if isinstance(local_layers, keras.Layer) else list(local_layers or [])
    for layer in layers:
        if not layer.built:
            raise ValueError(f"the local layer {layer.name} has no variables yet: build it first")
    wrapped = DistributedOptimizer(
        *(optimizer, name, device_dense, device_sparse, compression, sparse_as_dense),
        *(gradient_predivide_factor, op, num_groups, groups),
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
    )
    reducing: _Reducing = getattr(wrapped, _ATTRIBUTE)
    reducing.local.update(id(one) for layer in layers for one in layer.trainable_variables)
    return wrapped


def load_model(
    filepath: str | Path,
    custom_optimizers: Sequence[type[Optimizer]] | None = None,
    custom_objects: Mapping[str, object] | None = None,
    compression: type[Compressor] = Compression.none,
) -> keras.Model:
    """Load a model, and wrap its optimizer.

    Args:
        filepath: A `.keras` or `.h5` file, from this or from plain Keras.
        custom_optimizers: Optimizer classes that the file names and Keras does not know.
        custom_objects: Other objects that the file names.
        compression: As for DistributedOptimizer().

    Returns:
        The model; training continues with the optimizer's state of the file.

    Raises:
        ValueError: The file has no model, or names an unknown object.

    Example:
        >>> model = load_model("checkpoint-3.keras")  # doctest: +SKIP
    """
    known = {one.__name__: one for one in custom_optimizers or ()}
    model: keras.Model = keras.models.load_model(
        filepath, custom_objects={**known, **(custom_objects or {})}
    )
    if model.optimizer is not None:
        DistributedOptimizer(model.optimizer, compression=compression)
    return model
