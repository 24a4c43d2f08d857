"""The model of a case: its pieces one after another, and a head."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.fuzz_training.case import Case
from tests.fuzz_training.kinds import kinds
from tests.fuzz_training.moments import raise_asked, slow
from tests.fuzz_training.pieces import TOKENS, OfTokens, Piece


class Model(nn.Module):
    """The case's model. `salt` tells several models of a case apart."""

    def __init__(self, case: Case, salt: str = "first") -> None:
        super().__init__()
        made = kinds(case.width)
        self.checkpoint = case.get("checkpoint")
        self.output = case.get("output")
        self.raises = case.get("raises") is not None
        self.parts = nn.ModuleList()
        for piece in case.pieces:
            torch.manual_seed(case.number(salt, piece))
            self.parts.append(made[piece.partition(".")[2]]())
        torch.manual_seed(case.number(salt, "head"))
        self.head = nn.Linear(case.width, case.width)

    def use(self, number: int) -> None:
        """Choose what pieces with branches use; -1: all."""
        for part in self.parts:
            if isinstance(part, Piece):
                part.uses = number

    def forward(self, x: Tensor, ids: Tensor) -> Any:
        for number, part in enumerate(self.parts):
            x = self._through(part, x, ids, is_kept=number % 2 == 1)
            slow(x)
            if self.raises and number == len(self.parts) // 2 and x.requires_grad:
                x.register_hook(raise_asked)
        out = self.head(x)
        if self.output == "dict":
            return {"out": out, "more": [x]}
        if self.output == "tuple":
            return out, x
        if self.output == "leaf":
            return out, self.head.weight
        return out

    def _through(self, part: nn.Module, x: Tensor, ids: Tensor, *, is_kept: bool) -> Tensor:
        inputs = (x, ids) if isinstance(part, OfTokens) else (x,)
        if self.checkpoint not in ("reentrant", "other") or is_kept:
            return part(*inputs)
        return checkpoint(part, *inputs, use_reentrant=self.checkpoint == "reentrant")


def part_of(output: Any) -> Tensor:
    """Return the tensor of an output that losses are made of."""
    if isinstance(output, dict):
        return output["out"]
    return output[0] if isinstance(output, tuple) else output


def losses(output: Any) -> tuple[Tensor, Tensor]:
    """Return two losses of one output, without large derivatives; each needs every parameter."""
    out = torch.tanh(part_of(output).float())
    return out.square().mean(), 0.3 * out.sum()


def batch_of(case: Case, rank: int, *of: object) -> tuple[Tensor, Tensor]:
    """Return a rank's inputs; `of` names which."""
    generator = torch.Generator().manual_seed(case.number("batch", rank, *of))
    vary: Callable[[int], int] = lambda most: int(  # noqa: E731
        torch.randint(1, most + 1, (), generator=generator)
    )
    shapes = case.get("shapes") if of != ("analysis",) else None
    batch = vary(case.batch + 1) if shapes in ("batch", "both") else case.batch
    length = vary(case.length) if shapes in ("length", "both") else case.length
    x = torch.randn(batch, length, case.width, generator=generator)
    return x, torch.randint(0, TOKENS, (batch, length), generator=generator)
