"""Which of torch's operators are collectives, and over which group."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch.fx import Node

from graph_analysis.ir import Collective, Operation

_NAMESPACES = ("_c10d_functional", "_c10d_functional_autograd", "_dtensor")
# By the operator's name, which may end in _coalesced.
_OPERATIONS: dict[str, Operation] = {
    "all_reduce": "all_reduce",
    "all_gather_into_tensor": "all_gather",
    "reduce_scatter_tensor": "reduce_scatter",
    "all_to_all_single": "all_to_all",
    "shard_dim_alltoall": "all_to_all",
    "broadcast": "broadcast",
}


def is_wait(node: Node) -> bool:
    """Whether the node waits for a collective."""
    return _operator(node) == "wait_tensor"


def collective_of(node: Node) -> Collective | None:
    """The node's communication between ranks; None if it is not a collective."""
    operation = _OPERATIONS.get(_operator(node).removesuffix("_coalesced"))
    if operation is None:
        return None
    group = str(_argument(node, "group_name"))
    # The name is private to torch, and the only way from a graph to its process groups.
    resolve: Callable[[str], dist.ProcessGroup] = vars(dist.distributed_c10d)[
        "_resolve_process_group"
    ]
    ranks = tuple(dist.get_process_group_ranks(resolve(group)))
    root = _argument(node, "src") if operation == "broadcast" else None
    assert root is None or isinstance(root, int)
    return Collective(operation, group, ranks, None if root is None else ranks[root])


def _operator(node: Node) -> str:
    """The operator's name without its namespace; empty for a node that cannot be a collective."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or target.namespace not in _NAMESPACES:
        return ""
    return str(target._schema.name).rpartition("::")[2]


def _argument(node: Node, name: str) -> object:
    assert isinstance(node.target, torch._ops.OpOverload)
    for index, argument in enumerate(node.target._schema.arguments):
        if argument.name == name:
            return node.args[index] if index < len(node.args) else node.kwargs[name]
    raise KeyError(f"{node.target} has no argument {name}")
