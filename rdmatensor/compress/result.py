"""What a compression came to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from rdmatensor.compress import masks, sizes
from rdmatensor.compress.export import export
from rdmatensor.compress.policy import Item, unwrapped

FASTER_FROM = 0.8  # share of zeros from which block-sparse products on a CPU are faster than dense


@dataclass(frozen=True)
class Round:
    """What one round did.

    Attributes:
        degrees: Tensor -> share of its blocks that were zero in this round.
        is_quantized: Whether weights took few values in this round.
        loss: After retraining; None without evaluate=.
        is_accepted: False: the round was undone.
        size_bytes: Of the model's parameters after this round, were it kept.
    """

    degrees: dict[str, float]
    is_quantized: bool
    loss: float | None
    is_accepted: bool
    size_bytes: int


@dataclass
class Result:
    """A compressed model and how it came to be.

    Attributes:
        model: The model that was given, compressed.
        items: Its tensors with rules.
        base: The loss before, or None without evaluate=.
        history: The rounds in their order.
        dense_bytes: Of the parameters before.
    """

    model: torch.nn.Module
    items: list[Item]
    base: float | None
    dense_bytes: int
    history: list[Round] = field(default_factory=list)

    @property
    def masks(self) -> dict[str, torch.Tensor]:
        """Tensor -> which of its blocks are not zero, a matrix of bool; a copy."""
        parts = {item.name: masks.parts(item)[0] for item in self.items}
        return {name: part.alive.clone() for name, part in parts.items() if part is not None}

    @property
    def size_bytes(self) -> int:
        """Bytes of the parameters as export("codebook") stores them."""
        return model_bytes(self.model, self.items)

    def export(self, kind: str = "codebook") -> Any:  # noqa: ANN401 - as the kind says
        """Return the model in a form that load() and, for some kinds, torch reads.

        Args:
            kind: "dense": as model.state_dict() of the uncompressed model. "bsr": pruned matrices
                as torch's block-sparse tensors. "codebook": live blocks only, codes packed to their
                bits. "torchao": a copy of the model in which torchao's linear layers of int8
                weights stand for the uniform rules of 8 bits; torchao rounds the weights itself.

        Returns:
            A dictionary that torch.save() takes, whose tensors are copies; for "torchao" a module.

        Raises:
            InvalidArgumentError: The kind is unknown or cannot hold a tensor; the message names it.

        Example:
            >>> model = torch.nn.Sequential(torch.nn.Linear(4, 4))
            >>> result = run(model, Policy(Prune("0", to=0.5)))
            >>> int((result.export("dense")["0.weight"] == 0).sum())
            8
        """
        return export(unwrapped(self.model), self.items, kind)

    def table(self) -> str:
        """Return the tensors with their degrees and bytes, and the rounds, as text.

        Returns:
            Lines of at most 100 characters where names allow it.

        Example:
            >>> model = torch.nn.Sequential(torch.nn.Linear(4, 4))
            >>> print(run(model, Policy(Prune("0", to=0.5))).table().splitlines()[1].split()[:2])
            ['0.weight', '50.0']
        """
        return _table(self)


def model_bytes(model: torch.nn.Module, items: list[Item]) -> int:
    """Return the bytes of the parameters as export("codebook") stores them."""
    total = sizes.dense_bytes(unwrapped(model))
    for item in items:
        masked, few = masks.parts(item)
        degree = 0.0 if masked is None else 1 - float(masked.alive.double().mean())
        total += sizes.item_bytes(item, degree, is_quantized=few is not None)
        total -= item.tensor.numel() * item.tensor.element_size()
    return total


def _table(result: Result) -> str:
    """Return the tensors, the sum and the rounds."""
    width = max([len("tensor"), *(len(item.name) for item in result.items)])
    lines = [f"{'tensor':<{width}}  zero %  values         KiB   was KiB"]
    slow = False
    for item in result.items:
        masked, few = masks.parts(item)
        degree = 0.0 if masked is None else 1 - float(masked.alive.double().mean())
        slow = slow or 0 < degree < FASTER_FROM
        size = sizes.item_bytes(item, degree, is_quantized=few is not None)
        values = f"{few.rule.points} {few.rule.bits}" if few is not None else "all"
        was = item.tensor.numel() * item.tensor.element_size()
        lines.append(
            f"{item.name:<{width}}  {100 * degree:6.1f}  {values:<11}"
            f"{size / 1024:7.1f}  {was / 1024:8.1f}"
        )
    share = result.size_bytes / result.dense_bytes
    lines.append(f"model: {result.size_bytes} of {result.dense_bytes} bytes ({100 * share:.1f} %)")
    if slow:
        lines.append(
            "Tensors with fewer than 80 % zeros save memory and traffic, no time: on a CPU their "
            "block-sparse products are not faster than dense ones."
        )
    for number, entry in enumerate(result.history, 1):
        degree = max(entry.degrees.values(), default=0.0)
        loss = "-" if entry.loss is None else f"{entry.loss:.4f}"
        word = "kept" if entry.is_accepted else "undone"
        lines.append(f"round {number}: {100 * degree:.0f} % zero at most, loss {loss}, {word}")
    return "\n".join(lines)
