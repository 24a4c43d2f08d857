"""What planned models send of a compressed model: gradients of live blocks only."""

from __future__ import annotations

from collections.abc import Iterable

from graph_analysis import Mask
from rdmatensor._plan.planned import Planned, plan_of
from rdmatensor.compress import masks
from rdmatensor.compress.policy import Item


def send_live_blocks(items: Iterable[Item]) -> None:
    """Let the plans that send gradients of these tensors leave out what is masked now.

    Does not communicate: a planned model does in its next forward pass that trains.
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
    for planned, hidden in found.items():
        planned.thin(hidden)
