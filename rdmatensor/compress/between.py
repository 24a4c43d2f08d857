"""Parts through which a module reads its parameter.

torch.nn.utils.parametrize does the same, but gives the parameter a new gradient accumulator and
another name: DistributedDataParallel, which was there before, would wait for gradients that never
come, and checkpoints would have other keys. Here the parameter stays where and what it is; the
module's class gets a property in front of it.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable, Iterable
from typing import Any

import torch

_PREFIX = "compressed_"
Owners = Iterable[tuple[torch.nn.Module, str]]


class Part(torch.nn.Module):
    """A function of a parameter, with buffers of its own."""


def attached(module: torch.nn.Module, name: str) -> list[torch.nn.Module]:
    """Return the parts of a parameter, in the order in which they apply."""
    return list(module._modules.get(_PREFIX + name) or ())  # type: ignore[arg-type]


def attach(owners: Owners, part: Part) -> None:
    """Let all owners of a parameter read it through one part more."""
    for module, name in owners:
        _set(module, name, [*attached(module, name), part])


def detach(owners: Owners, kinds: tuple[type[Part], ...]) -> None:
    """Take the parts of these kinds away."""
    for module, name in owners:
        before = attached(module, name)
        after = [part for part in before if not isinstance(part, kinds)]
        if len(after) != len(before):
            _set(module, name, after)


def _set(module: torch.nn.Module, name: str, parts: list[Any]) -> None:
    names = set(getattr(module, "_compressed_names", ()))
    base: Any = getattr(type(module), "_base", type(module))
    if parts:
        setattr(module, _PREFIX + name, torch.nn.ModuleList(parts))
        names.add(name)
    else:
        delattr(module, _PREFIX + name)
        names.discard(name)
    module.__class__ = _class_of(base, tuple(sorted(names))) if names else base


@functools.cache
def _class_of(base: Hashable, names: tuple[str, ...]) -> type[torch.nn.Module]:
    def read(module: torch.nn.Module, name: str) -> torch.Tensor:
        value: Any = module._parameters[name]
        for part in module._modules[_PREFIX + name]:  # type: ignore[union-attr]
            value = part(value)
        return value  # type: ignore[no-any-return]

    assert isinstance(base, type)
    body: dict[str, Any] = {name: property(functools.partial(read, name=name)) for name in names}
    body |= {
        "_base": base,
        "_compressed_names": names,
        "__module__": base.__module__,
        "__qualname__": base.__qualname__,
        "__reduce_ex__": lambda self, _: (_empty, (base, names), self.__dict__),
    }
    return type(base.__name__, (base,), body)


def _empty(base: Hashable, names: tuple[str, ...]) -> torch.nn.Module:
    """Return a module whose state comes later: copies and files."""
    made = _class_of(base, names)
    return made.__new__(made)
