"""Scores of blocks, by which they are pruned."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch

from rdmatensor._native.arguments import invalid
from rdmatensor.compress import masks
from rdmatensor.compress.policy import Item
from rdmatensor.compress.ranks import Ranks

Score = Callable[[torch.nn.Module], object]


def measure(
    model: torch.nn.Module, items: Iterable[Item], score: Score | None, ranks: Ranks
) -> dict[str, torch.Tensor]:
    """Return the score of each block, in float64, the same on all ranks."""
    items = [item for item in items if item.prune is not None]
    by_gradient = [item for item in items if item.prune and item.prune.by == "contribution"]
    found = {
        item.name: masks.block_sums(_matrix(item, item.tensor.detach().abs()), _block(item))
        for item in items
    }
    if by_gradient:
        found.update(_contributions(model, by_gradient, score, ranks))
    return found


def _contributions(
    model: torch.nn.Module, items: list[Item], score: Score | None, ranks: Ranks
) -> dict[str, torch.Tensor]:
    if score is None:
        names = ", ".join(item.name for item in items)
        raise invalid(
            "run", f'by="contribution" of {names} needs score=, which runs backward passes'
        )
    sums = {item.name: torch.zeros(item.matrix, dtype=torch.float64) for item in items}
    passes = dict.fromkeys(sums, 0)

    def collect(item: Item) -> Callable[[torch.Tensor], None]:
        def add(gradient: torch.Tensor) -> None:
            sums[item.name] += _matrix(item, (item.tensor.detach() * gradient).abs())
            passes[item.name] += 1

        return add

    hooks = [
        item.tensor.register_hook(collect(item))  # type: ignore[no-untyped-call]
        for item in items
    ]
    try:
        score(model)
    finally:
        for hook in hooks:
            hook.remove()
    silent = [name for name, count in passes.items() if count == 0]
    everyone = ranks.all(silent)
    if any(everyone):
        rank = next(rank for rank, names in enumerate(everyone) if names)
        raise invalid(
            "run", f"score= gave no gradient of {', '.join(everyone[rank])} on rank {rank}"
        )
    return {
        item.name: ranks.sum(masks.block_sums(sums[item.name] / passes[item.name], _block(item)))
        for item in items
    }


def _matrix(item: Item, values: torch.Tensor) -> torch.Tensor:
    return values.reshape(item.matrix)


def _block(item: Item) -> tuple[int, int]:
    assert item.prune is not None
    return item.prune.block
