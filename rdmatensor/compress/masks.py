"""Masks of blocks and few values, through which modules read their parameters."""

from __future__ import annotations

import torch

from rdmatensor.compress import points
from rdmatensor.compress.between import Part, attach, attached, detach
from rdmatensor.compress.policy import Item, Prune, Quantize


def block_sums(values: torch.Tensor, block: tuple[int, int]) -> torch.Tensor:
    """Return the sum of each block of a matrix, in float64: the same bits on every rank."""
    rows, columns = values.shape
    high, wide = -(-rows // block[0]), -(-columns // block[1])
    padded = torch.zeros(high * block[0], wide * block[1], dtype=torch.float64)
    padded[:rows, :columns] = values
    return padded.view(high, block[0], wide, block[1]).sum((1, 3))


def expanded(alive: torch.Tensor, block: tuple[int, int], shape: torch.Size) -> torch.Tensor:
    """Return the mask of each weight from that of each block."""
    rows, columns = shape[0], shape[1:].numel()
    wide = alive.repeat_interleave(block[0], 0).repeat_interleave(block[1], 1)
    return wide[:rows, :columns].reshape(shape)


def choose_alive(scores: torch.Tensor, before: torch.Tensor, degree: float) -> torch.Tensor:
    """Return which blocks stay: a share of `degree` is zero, and none of `before` comes back.

    Blocks of equal score go in the order of their place, so that the answer does not depend on the
    machine.
    """
    dead = min(scores.numel(), round(degree * scores.numel()))
    ranked = torch.where(before, scores, torch.full_like(scores, -1.0)).flatten()
    alive = torch.ones(scores.numel(), dtype=torch.bool)
    alive[torch.argsort(ranked, stable=True)[:dead]] = False
    return (alive.view_as(before) & before).contiguous()


class Masked(Part):
    """What a pruned weight is read through: the parameter times its mask."""

    alive: torch.Tensor

    def __init__(self, rule: Prune, alive: torch.Tensor, shape: torch.Size) -> None:
        super().__init__()
        self.rule = rule
        self.shape = shape
        self.register_buffer("alive", alive)
        self._factor: torch.Tensor | None = None

    def set(self, alive: torch.Tensor) -> None:
        """Take another mask."""
        self.alive = alive.clone()
        self._factor = None

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        """Return the weight with zeros; weights that are masked get no gradient."""
        if self._factor is None or self._factor.dtype != weight.dtype:
            self._factor = expanded(self.alive, self.rule.block, self.shape).to(weight.dtype)
        return weight * self._factor

    def _load_from_state_dict(self, *args: object, **options: object) -> None:
        super()._load_from_state_dict(*args, **options)
        self._factor = None


class Uniform(Part):
    """Whole multiples of a scale; gradients pass as if it were not there."""

    scales: torch.Tensor

    def __init__(self, rule: Quantize, scales: torch.Tensor) -> None:
        super().__init__()
        self.rule = rule
        self.register_buffer("scales", scales)

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        """Return the nearest multiples."""
        codes = points.uniform_codes(weight.detach(), self.scales, self.rule)
        values = points.uniform_values(codes, self.scales, self.rule, weight.shape).to(weight.dtype)
        return weight + (values - weight).detach()


class Clustered(Part):
    """Clusters: a weight is its cluster's mean, and which is its is fixed.

    The mean moves by the mean of its members' gradients.
    """

    codes: torch.Tensor
    counted: torch.Tensor

    def __init__(self, rule: Quantize, codes: torch.Tensor, counted: torch.Tensor) -> None:
        super().__init__()
        self.rule = rule
        self.register_buffer("codes", codes)
        self.register_buffer("counted", counted)  # weights that are not masked

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        """Return each weight's mean; of masked weights zero."""
        return points.cluster_means(weight, self.codes, self.counted, 1 << self.rule.bits)[1]


def parts(item: Item) -> tuple[Masked | None, Uniform | Clustered | None]:
    """Return what a tensor is read through by now."""
    masked, few = None, None
    for one in attached(*item.owners[0]):
        masked = one if isinstance(one, Masked) else masked
        few = one if isinstance(one, (Uniform, Clustered)) else few
    return masked, few


def masked_part(item: Item) -> Masked:
    """Return the mask of a tensor that has a Prune, with a new one of ones where there is none."""
    masked, _ = parts(item)
    if masked is None:
        assert item.prune is not None
        rows, columns = item.matrix
        high, wide = -(-rows // item.prune.block[0]), -(-columns // item.prune.block[1])
        masked = Masked(item.prune, torch.ones(high, wide, dtype=torch.bool), item.tensor.shape)
        attach(item.owners, masked)
    return masked


def quantized_part(item: Item) -> Uniform | Clustered:
    """Give a tensor its few values, from what it is now."""
    assert item.quantize is not None
    weight = effective(item)
    masked, _ = parts(item)
    if item.quantize.points == "uniform":
        scales = points.uniform_scales(weight, item.quantize)
        made: Uniform | Clustered = Uniform(item.quantize, scales)
    else:
        counted = torch.ones_like(weight, dtype=torch.bool)
        if masked is not None:
            counted = expanded(masked.alive, masked.rule.block, masked.shape)
        made = Clustered(item.quantize, points.clusters(weight, counted, item.quantize), counted)
    attach(item.owners, made)
    return made


def effective(item: Item) -> torch.Tensor:
    """Return the weight as the model uses it now."""
    module, name = item.owners[0]
    weight: torch.Tensor = getattr(module, name)
    return weight.detach()


def remove(item: Item, kinds: tuple[type[Part], ...]) -> None:
    """Take parts of these kinds away; the parameter keeps what it holds."""
    detach(item.owners, kinds)
