"""Floating-point operations of torch's operators, and their arguments that are no tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Node
from torch.fx.node import map_arg
from torch.utils import _pytree as pytree
from torch.utils.flop_counter import flop_registry

from graph_analysis.work import attention_flops, recurrent_flops

SizeOf = Callable[[Any], int]  # from a size that may be symbolic to that of the example
Shape = tuple[int, ...]
_ATTENTION = "_scaled_dot_product_flash_attention_for_cpu"


def constants_of(node: Node) -> str:
    """The text of its arguments, with None for each tensor; without addresses."""
    args, kwargs = map_arg((node.args, dict(node.kwargs)), lambda _: None)
    given = {name: value for name, value in kwargs.items() if value is not None}
    return f"{args!r} {given!r}" if given else repr(args)


def flops_of(node: Node, size_of: SizeOf) -> int:
    """Of the example's sizes; 0 for an operator that neither torch nor this module knows."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return 0

    def shape_of(value: object) -> object:
        if isinstance(value, torch.Tensor):
            return torch.Size(size_of(size) for size in value.shape)
        return value

    def of_node(one: Node) -> Any:  # noqa: ANN401 - what the operator takes
        return pytree.tree_map(shape_of, one.meta.get("val"))

    args = map_arg(node.args, of_node)
    name = target._schema.name.rpartition("::")[2]
    known = flop_registry.get(target.overloadpacket)
    if known is not None and not getattr(known, "_get_raw", False):
        kwargs = map_arg(dict(node.kwargs), of_node)
        return int(known(*args, **kwargs, out_val=of_node(node)))
    return _unknown_to_torch(name, args, of_node(node))


def _unknown_to_torch(name: str, args: Any, made: Any) -> int:  # noqa: ANN401 - shapes, constants
    """Of operators of CPUs by their schemas; torch.Size stands for a tensor."""
    if name == _ATTENTION:
        is_causal = len(args) > 4 and bool(args[4])
        return attention_flops(args[0], args[1], is_causal=is_causal, is_backward=False)
    if name == f"{_ATTENTION}_backward":
        return attention_flops(args[1], args[2], is_causal=bool(args[7]), is_backward=True)
    if name == "mkldnn_rnn_layer":
        steps, batch, width = args[0]
        return recurrent_flops(steps, batch, width, args[10], mode=args[9], is_backward=False)
    if name == "mkldnn_rnn_layer_backward":
        steps, batch, width = args[0]
        return recurrent_flops(steps, batch, width, args[15], mode=args[14], is_backward=True)
    if name in ("lstm", "gru"):
        return _recurrent_module(args, made)
    return 0


def _recurrent_module(args: Any, made: Any) -> int:  # noqa: ANN401 - shapes, constants
    """Of all layers and directions: each weight matrix is multiplied once in each step."""
    rows = made[0].numel() // made[0][-1]
    return sum(2 * rows * size.numel() for size in args[2] if len(size) == 2)
