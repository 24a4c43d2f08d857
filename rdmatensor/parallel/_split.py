"""Split layers with torch's own parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn
from torch.distributed.device_mesh import DeviceMesh


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
    for layer in (*first, last):
        for parameter in layer.parameters():
            # A part has the rows of all ranks: its gradient is a sum over the ranks.
            register: Any = parameter.register_hook
            register(lambda gradient: gradient / mesh.size())


def shard(module: nn.Module, mesh: DeviceMesh, own: set[nn.Parameter]) -> None:
    """Shard those parameters of a module over the ranks of a mesh."""
    from torch.distributed.fsdp import fully_shard

    others = {p for p in module.parameters() if p not in own}
    fully_shard(module, mesh=mesh, ignored_params=others)
