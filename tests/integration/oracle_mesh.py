"""A mesh of two axes, 2 x 2: sub-groups next to and over each other."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch
import torch.distributed as dist
from oracle import Results, Turn
from oracle_ddp import WIDTH, loss_of, net, state_of, steps
from oracle_pipeline import stage_of
from oracle_pipeline import train as train_stages
from oracle_sharded import check_group_memory, sharded, whole_of
from oracle_sharded import train as train_sharded
from oracle_tensor import net as language_net
from oracle_tensor import tokens_of_all
from oracle_tensor import train as train_tokens
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import post_localSGD_hook
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.algorithms.model_averaging.hierarchical_model_averager import (
    HierarchicalModelAverager,
)
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy, fully_shard
from torch.distributed.optim import PostLocalSGDOptimizer
from torch.distributed.pipelining import Schedule1F1B
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

import rdmatensor


def mesh_of(turn: Turn, *names: str) -> DeviceMesh:
    return init_device_mesh("cpu", (2, turn.world // 2), mesh_dim_names=names)


def axes(turn: Turn) -> Results:
    """Each axis' group, what is made of both, and groups that a mesh did not make."""
    mesh = mesh_of(turn, "outer", "inner")
    results: dict[str, Any] = {"coordinate": mesh.get_coordinate()}
    flat = mesh["outer", "inner"]._flatten("all")
    groups = {name: mesh[name].get_group() for name in ("outer", "inner")}
    groups |= {"flat": flat.get_group()}
    for name, group in groups.items():
        whole = (turn.data(5) * 8).round()  # so that the order of a sum does not matter
        dist.all_reduce(whole, group=group)
        parts = [torch.empty(5) for _ in range(dist.get_world_size(group))]
        dist.all_gather(parts, turn.data(5), group=group)
        results[name] = [whole, parts, dist.get_process_group_ranks(group)]
    first, second = turn.data(40_000), turn.data(30, salt=1)
    both = [
        dist.all_reduce(first, group=groups["outer"], async_op=True),
        dist.all_reduce(second, group=groups["inner"], async_op=True),
    ]
    for work in both:
        work.wait()
    return {**results, "together": [first, second]}


def redistribution(turn: Turn) -> Results:
    mesh = mesh_of(turn, "outer", "inner")
    sources = [
        [Shard(0), Shard(1)],
        [Shard(0), Shard(0)],
        [Replicate(), Shard(1)],
        [Shard(1), Replicate()],
    ]
    results: dict[str, Any] = {}
    for source in sources:
        tensor = distribute_tensor(turn.data(7, 6, rank=0), mesh, source)
        for target in ([Replicate(), Replicate()], *sources):
            results[f"{source} {target}"] = tensor.redistribute(mesh, target).to_local().clone()
    partial = DTensor.from_local((turn.data(4, 6) * 8).round(), mesh, [Partial(), Partial()])
    for target in ([Replicate(), Replicate()], [Shard(0), Shard(1)], [Shard(0), Shard(0)]):
        results[f"partial {target}"] = partial.redistribute(mesh, target).to_local().clone()
    return results


def parted(turn: Turn, lists: list[list[int]]) -> Any:
    """Return this rank's group. torch's split_group() wants an accelerator; ours needs none."""
    if turn.backend == "rdmatensor":
        return rdmatensor.distributed.split_group(lists)
    return dist.new_subgroups_by_enumeration(lists)[0]


def made_of_groups(turn: Turn) -> Results:
    """A mesh of groups that were split off the default one, and one whose backend is named."""
    ranks = [[0, 1], [2, 3]]
    split = DeviceMesh.from_group(
        [parted(turn, [[0, 2], [1, 3]]), parted(turn, ranks)],
        "cpu",
        mesh=torch.tensor(ranks),
        mesh_dim_names=("outer", "inner"),
    )
    named = init_device_mesh(
        "cpu",
        (2, 2),
        mesh_dim_names=("outer", "inner"),
        backend_override={"outer": turn.backend, "inner": turn.backend},
    )
    results: dict[str, Any] = {}
    for name, mesh in {"split": split, "named": named}.items():
        tensor = distribute_tensor(turn.data(6, 5, rank=0), mesh, [Shard(0), Shard(1)])
        model = sharded(mesh["inner"], has_group_memory=turn.backend == "rdmatensor")
        results[name] = [
            tensor.redistribute(mesh, [Shard(1), Replicate()]).to_local().clone(),
            (tensor @ tensor.T).full_tensor(),
            train_sharded(turn, model, lambda: torch.tensor(0.0)),
        ]
    return results


def reshaped(turn: Turn) -> Results:
    """One axis cut in two, parts of a mesh, and both axes as one."""
    line = init_device_mesh("cpu", (turn.world,), mesh_dim_names=("all",))
    square = line._unflatten(0, (2, 2), ("outer", "inner"))
    results: dict[str, Any] = {"coordinate": square.get_coordinate()}
    whole = (turn.data(8, 3, rank=0) * 8).round()
    for name, mesh in {
        "line": line,
        "square": square,
        "flat": square._flatten("flat"),
        "outer": square["outer"],
        "inner": square["inner"],
    }.items():
        tensor = distribute_tensor(whole, mesh, [Shard(0)] * mesh.ndim)
        results[name] = [
            tensor.to_local().clone(),
            tensor.full_tensor(),
            tensor.sum(0).full_tensor(),
        ]
    return results


def hybrid_sharding(turn: Turn) -> Results:
    """Sharded within one axis, the same on the other: FSDP2 and FSDP1."""
    mesh = mesh_of(turn, "replicate", "shard")
    model = sharded(mesh, has_group_memory=turn.backend == "rdmatensor")
    clip = lambda: torch.tensor(0.0)  # noqa: E731
    results: dict[str, Any] = {"2": [train_sharded(turn, model, clip), whole_of(model)]}
    if turn.backend == "rdmatensor":
        check_group_memory()
    first = FullyShardedDataParallel(
        net(),
        device_mesh=mesh,
        sharding_strategy=ShardingStrategy.HYBRID_SHARD,
        device_id=torch.device("cpu"),
    )
    losses = train_sharded(turn, first, clip)
    with FullyShardedDataParallel.summon_full_params(first):
        whole = {key: value.detach().clone() for key, value in first.named_parameters()}
    return {**results, "1": [losses, whole]}


def tensor_and_data(turn: Turn) -> Results:
    """Layers split along one axis, then spread (FSDP2) or reduced (DDP) along the other."""
    plan = {
        "0": RowwiseParallel(input_layouts=Replicate()),
        "1.up": ColwiseParallel(),
        "1.down": RowwiseParallel(),
        "2": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False),
    }
    mesh = mesh_of(turn, "data", "tensor")
    tokens = tokens_of_all()[mesh["data"].get_local_rank() :: 2]
    model = parallelize_module(language_net(), mesh["tensor"], plan)
    for part in (*model, model):
        fully_shard(part, mesh=mesh["data"])
    return train_tokens(model, tokens)


def stages_and_data(turn: Turn) -> Results:
    """Two pipelines of two stages; each stage is trained by DDP over both."""
    mesh = mesh_of(turn, "stage", "data")
    number = mesh["stage"].get_local_rank()
    stage = stage_of(turn, number, 2, mesh["stage"].get_group())
    stage.submod = DistributedDataParallel(
        stage.submod, process_group=mesh["data"].get_group(), gradient_as_bucket_view=True
    )
    schedule = Schedule1F1B(stage, 4, loss_fn=nn.functional.mse_loss)
    return train_stages(turn, schedule, [stage.submod], number == 0, number == 1)


def local_sgd(turn: Turn) -> Results:
    """Gradients within pairs, parameters among all."""
    pairs, _ = dist.new_subgroups(2)
    state = post_localSGD_hook.PostLocalSGDState(None, pairs, start_localSGD_iter=2)
    model = DistributedDataParallel(net())
    model.register_comm_hook(state, post_localSGD_hook.post_localSGD_hook)
    optimizer = PostLocalSGDOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.05), PeriodicModelAverager(2, warmup_steps=2)
    )
    return {"losses": steps(turn, model, optimizer, 6), **state_of(model)}


def hierarchical_averaging(turn: Turn) -> Results:
    """Pairs every second step, all every fourth."""
    model = net()
    averager = HierarchicalModelAverager(OrderedDict([(2, 2), (4, turn.world)]))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    for _ in range(6):
        losses += steps(turn, model, optimizer, 1)
        averager.average_parameters(model.parameters())
        losses.append(float(loss_of(model, turn.data(8, WIDTH, salt=30)).detach()))
    return {"losses": losses, **state_of(model)}
