"""Planned models of compressed tensors: they send gradients of live blocks only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch

from graph_analysis import Mask
from rdmatensor._plan.model import ModuleHook
from rdmatensor._plan.planned import Planned, plan_of
from rdmatensor.compress import masks
from rdmatensor.compress.policy import Item

# Of modules whose masks a plan leaves out: the hook that sees a checkpoint with other masks.
_loading: WeakKeyDictionary[torch.nn.Module, Any] = WeakKeyDictionary()


def send_live_blocks(items: Sequence[Item]) -> None:
    """Let the plans that send gradients of these tensors leave out what is masked now.

    Does not communicate: a planned model does in its next forward pass that trains. A checkpoint
    that a module loads later has the same effect.
    """
    found: dict[Planned, dict[str, Mask]] = {}
    for item in items:
        planned = plan_of(item.tensor)
        if planned is None:
            continue
        hidden = found.setdefault(planned, {})
        masked, _ = masks.parts(item)
        if masked is not None:
            named = planned.module.named_parameters()
            name = next(name for name, one in named if one is item.tensor)
            live = masked.alive.flatten().nonzero().flatten().tolist()
            hidden[name] = Mask(masked.rule.block, tuple(live))
            _follow(item, items)
    for planned, hidden in found.items():
        planned.thin(hidden)


def _follow(item: Item, items: Sequence[Item]) -> None:
    """Send what is live again when a module of the tensor has loaded a checkpoint."""
    for module, _ in item.owners:
        before = _loading.pop(module, None)
        if before is not None:
            before.remove()
        hook = ModuleHook(lambda *_: send_live_blocks(items))
        register: Any = module.register_load_state_dict_post_hook
        _loading[module] = register(hook)
