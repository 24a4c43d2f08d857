"""The units of a model: modules whose saved tensors are treated in one way."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

import torch
from torch import nn

from rdmatensor._native.arguments import invalid

_CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.Sequential)


def find_units(model: nn.Module, patterns: Sequence[str] | None) -> dict[str, nn.Module]:
    """Return the units by name; none is a part of another one.

    Without patterns they are the blocks that repeat, and what the model has outside them: a module
    is taken apart if it contains modules that have parts of their own, in a container or repeated.

    Raises:
        InvalidArgumentError: No module matches, or units are parts of each other.
    """
    if not isinstance(model, nn.Module):
        raise invalid("fit", f"model is a {type(model).__name__}, not a torch.nn.Module")
    if patterns is not None:
        return _matching(model, patterns)
    found: dict[str, nn.Module] = {}
    for name, child in model.named_children():
        _take_apart(name, child, found)
    distinct: dict[str, nn.Module] = {}
    for name, module in found.items():
        if all(module is not other for other in distinct.values()):
            distinct[name] = module
    if not distinct:
        raise invalid(
            "fit",
            f"{type(model).__name__} has no child modules, so nothing can be chosen apart: put its "
            "parts into modules of their own, or give units=",
        )
    return distinct


def _matching(model: nn.Module, patterns: Sequence[str]) -> dict[str, nn.Module]:
    if isinstance(patterns, str):
        raise invalid("fit", f"units={patterns!r} is a text: give a sequence of patterns")
    modules = dict(model.named_modules())
    found: dict[str, nn.Module] = {}
    for pattern in patterns:
        names = [name for name in modules if name and fnmatchcase(name, pattern)]
        if not names:
            raise invalid("fit", f"units: no module matches {pattern!r}")
        found.update((name, modules[name]) for name in names)
    names = list(found)
    for name in names:
        outer = next((other for other in names if name.startswith(other + ".")), None)
        if outer is not None:
            raise invalid("fit", f"units: {name} is a part of {outer}: choose one of them")
    return found


def _take_apart(name: str, module: nn.Module, found: dict[str, nn.Module]) -> None:
    is_uncallable = isinstance(module, nn.ModuleList | nn.ModuleDict)
    if is_uncallable or _has_blocks(module, 1) or _has_repeated_blocks(module):
        for part, child in module.named_children():
            _take_apart(f"{name}.{part}", child, found)
    else:
        found[name] = module


def _has_blocks(module: nn.Module, least: int) -> bool:
    """Whether it is a container of so many modules that have parts of their own."""
    if not isinstance(module, _CONTAINERS):
        return False
    return sum(1 for child in module.children() if any(True for _ in child.children())) >= least


def _has_repeated_blocks(module: nn.Module) -> bool:
    return any(_has_blocks(one, 2) for one in module.modules())


def tensors_of(value: object) -> list[torch.Tensor]:
    """Return the tensors in an argument or a result of a module."""
    leaves = torch.utils._pytree.tree_leaves(value)
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
