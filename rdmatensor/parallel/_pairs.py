"""Which linear layers of a model ranks can share, and what their products then cost."""

from __future__ import annotations

import copy
import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from time import thread_time_ns
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from graph_analysis.ir import Graph
from graph_analysis.partition import Pair, find_pairs
from rdmatensor.parallel._ranks import Ranks

_REPEATS = 3
_MOST_REASON = 160  # characters


def shareable_pairs(
    model: nn.Module, graph: Graph, inputs: Sequence[object], degree: int
) -> tuple[list[Pair], list[str]]:
    """The pairs whose layers run in parts, and why other layers do not."""
    if degree == 1:
        return [], []
    linears, reasons = _linears(model)
    pairs: list[Pair] = []
    for found in find_pairs(graph, linears, degree):
        pair, why = found, None
        for pair in (*_with_around(model, found), found):
            why = _why_not(model, pair, inputs, degree)
            if why is None:
                pairs.append(pair)
                break
        else:
            reasons.append(f"not split: {', '.join(pair.first)} and {pair.last}: {why}")
    paired = {name for pair in pairs for name in (*pair.first, pair.last)}
    odd = [
        name
        for name in linears
        if name not in paired and int(model.get_parameter(f"{name}.weight").shape[0]) % degree
    ]
    if odd:
        reasons.append(f"not split: the features of {', '.join(odd)} do not divide by {degree}")
    return pairs, reasons


def _with_around(model: nn.Module, pair: Pair) -> list[Pair]:
    """The pair with the innermost module that has all its layers, if that has nothing else."""
    layers = (*pair.first, pair.last)
    own = {id(p) for name in layers for p in model.get_submodule(name).parameters()}
    parents = [name.split(".")[:-1] for name in layers]
    common = itertools.takewhile(lambda parts: len(set(parts)) == 1, zip(*parents, strict=False))
    around = ".".join(parts[0] for parts in common)
    module = model.get_submodule(around)
    is_alone = {id(p) for p in module.parameters()} == own and not list(module.buffers())
    is_chain = isinstance(module, (nn.Sequential, nn.ModuleList, nn.ModuleDict))
    return [replace(pair, around=around)] if is_alone and not is_chain else []


def _linears(model: nn.Module) -> tuple[list[str], list[str]]:
    """Names of plain linear layers whose parameters nothing else has; and the tied ones."""
    held = Counter(
        id(parameter)
        for module in model.modules()
        for parameter in module._parameters.values()
        if parameter is not None
    )
    linears, reasons = [], []
    for name, module in model.named_modules():
        if type(module) is not nn.Linear or not name:
            continue
        if any(held[id(parameter)] > 1 for parameter in module.parameters()):
            reasons.append(f"not split: {name} shares its weight with another module")
        elif module.weight.requires_grad:
            linears.append(name)
    return linears, reasons


def _why_not(model: nn.Module, pair: Pair, inputs: Sequence[object], degree: int) -> str | None:
    """Why the model's code does not run with the parts of the pair's layers; None if it does."""
    arguments = pytree.tree_map_only(torch.Tensor, lambda x: x.to("meta"), tuple(inputs))
    with torch.no_grad():
        whole, part = _on_meta(model), _on_meta(model)
        _cut(part, pair, degree)
        try:
            wanted, found = _shapes(whole(*arguments)), _shapes(part(*arguments))
        except Exception as error:  # noqa: BLE001 - the model's code raises anything
            return f"its code runs with whole layers only: {error}".splitlines()[0][:_MOST_REASON]
    return None if wanted == found else f"the output has the shapes {found}, not {wanted}"


def output_bytes(model: nn.Module, modules: Sequence[str], given: object) -> list[int]:
    """Bytes that each module of a chain gives to the next one; nothing is computed."""
    assert isinstance(given, torch.Tensor)
    chain, found = _on_meta(model), []
    x = given.to("meta")
    with torch.no_grad():
        for name in modules:
            x = chain.get_submodule(name)(x)
            found.append(x.nbytes)
    return found


def _on_meta(model: nn.Module) -> nn.Module:
    """A copy without values: no memory is allocated."""
    tensors: list[torch.Tensor] = [*model.parameters(), *model.buffers()]
    memo: dict[int, Any] = {}
    for tensor in tensors:
        empty = torch.empty_like(tensor, device="meta")
        is_parameter = isinstance(tensor, nn.Parameter)
        memo[id(tensor)] = nn.Parameter(empty, tensor.requires_grad) if is_parameter else empty
    return copy.deepcopy(model, memo)


def _cut(model: nn.Module, pair: Pair, degree: int) -> None:
    """Give the layers the sizes of a part, and the rows of all ranks in between."""

    def gather(_: object, args: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        return (torch.cat([args[0]] * degree), *args[1:])

    if pair.around is not None:
        model.get_submodule(pair.around).register_forward_pre_hook(gather)
    for name in pair.first:
        layer = model.get_submodule(name)
        assert isinstance(layer, nn.Linear)
        size = layer.out_features // degree
        layer.weight = nn.Parameter(layer.weight[:size])
        if layer.bias is not None:
            layer.bias = nn.Parameter(layer.bias[:size])
        if pair.around is None:
            layer.register_forward_pre_hook(gather)
    last = model.get_submodule(pair.last)
    assert isinstance(last, nn.Linear)
    last.weight = nn.Parameter(last.weight[:, : last.in_features // degree])
    last.register_forward_hook(lambda _, __, out: out[: out.shape[0] // degree])


def _shapes(output: object) -> list[tuple[int, ...]]:
    leaves = pytree.tree_leaves(output)
    return [tuple(leaf.shape) for leaf in leaves if isinstance(leaf, torch.Tensor)]


def changes_ns(model: nn.Module, pairs: Sequence[Pair], ranks: Ranks) -> dict[str, int]:
    """How much longer the products of each pair take in parts, by its last layer; may be negative.

    A part has the rows of all ranks. Measured on all ranks at once; their mean counts.
    """
    known: dict[tuple[int, int, int], int] = {}

    def product_ns(rows: int, width: int, features: int) -> int:
        size = (rows, width, features)
        if size not in known:
            known[size] = _product_ns(*size)
        return known[size]

    found = []
    for pair in pairs:
        change = 0
        for name in (*pair.first, pair.last):
            layer = model.get_submodule(name)
            assert isinstance(layer, nn.Linear)
            width, features = layer.in_features, layer.out_features
            item = layer.weight.element_size()
            bytes_of_rows = (
                pair.out_bytes // features if name == pair.last else (pair.in_bytes // width)
            )
            rows = bytes_of_rows // item
            is_last = name == pair.last
            part = (width // ranks.size, features) if is_last else (width, features // ranks.size)
            change += product_ns(rows * ranks.size, *part) - product_ns(rows, width, features)
        found.append(change)
    means = ranks.mean(found)
    return {pair.last: change for pair, change in zip(pairs, means, strict=True)}


def _product_ns(rows: int, width: int, features: int) -> int:
    """Median processor time of a linear layer, forward and backward."""
    layer = nn.Linear(width, features)
    x = torch.ones(rows, width, requires_grad=True)
    return _median_ns(lambda: torch.autograd.backward(layer(x).sum()))


def _median_ns(call: Callable[[], object]) -> int:
    times = []
    for _ in range(_REPEATS + 1):
        began_ns = thread_time_ns()
        call()
        times.append(thread_time_ns() - began_ns)
    return sorted(times[1:])[_REPEATS // 2]
