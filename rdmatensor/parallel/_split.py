"""Split layers with torch's own parts."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, cast

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh


def tied_names(model: nn.Module) -> list[list[str]]:
    """All names of each parameter that has several."""
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return [found for found in names.values() if len(found) > 1]


def split_pair(
    model: nn.Module, modules: Sequence[str], around: str | None, mesh: DeviceMesh
) -> None:
    """Split a pair of linear layers, the last one last, over the ranks of a mesh.

    Rows of all ranks are gathered at the module `around`, or at each of the first layers.
    """
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        parallelize_module,
    )

    *first, last = (model.get_submodule(name) for name in modules)
    # A part has the rows of all ranks: its gradients would be sums over the ranks, not means. The
    # activations are scaled for that, because they are smaller than the weights.
    for module in first if around is None else [model.get_submodule(around)]:
        module.register_forward_pre_hook(partial(_scale_input, factor=float(mesh.size())))
    columns = ColwiseParallel(input_layouts=Shard(0))
    if around is not None:
        gather = PrepareModuleInput(
            input_layouts=(Shard(0),), desired_input_layouts=(Replicate(),), use_local_output=False
        )
        parallelize_module(model.get_submodule(around), mesh, gather)
        columns = ColwiseParallel()
    for layer in first:
        parallelize_module(layer, mesh, columns, src_data_rank=None)
    parallelize_module(last, mesh, RowwiseParallel(output_layouts=Shard(0)), src_data_rank=None)
    last.register_forward_hook(partial(_scale_output, factor=1 / mesh.size()))


class _ScaledGradient(torch.autograd.Function):
    """The same tensor, with a gradient that is scaled."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, factor: float) -> torch.Tensor:  # noqa: ANN401
        """Return the tensor."""
        ctx.factor = factor
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:  # noqa: ANN401
        """Scale the gradient."""
        return gradient * ctx.factor, None


def _scaled(tensor: torch.Tensor, factor: float) -> torch.Tensor:
    made: Any = _ScaledGradient.apply
    return cast("torch.Tensor", made(tensor, factor))


def _scale_input(_: nn.Module, args: tuple[Any, ...], factor: float) -> tuple[Any, ...]:
    return (_scaled(args[0], factor), *args[1:])


def _scale_output(_: nn.Module, __: object, output: torch.Tensor, factor: float) -> torch.Tensor:
    return _scaled(output, factor)


def shard(module: nn.Module, mesh: DeviceMesh, own: set[nn.Parameter]) -> None:
    """Shard those parameters of a module over the ranks of a mesh."""
    from torch.distributed.fsdp import fully_shard

    others = {p for p in module.parameters() if p not in own}
    fully_shard(module, mesh=mesh, ignored_params=others)
