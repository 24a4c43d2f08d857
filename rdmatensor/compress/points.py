"""Few values for many weights: multiples of a scale, or the centres of clusters."""

from __future__ import annotations

import torch

from rdmatensor.compress.policy import Quantize

CANDIDATES = 80  # scales that are tried, from the largest down to 1/5 of it
LLOYD_ROUNDS = 500  # each costs a search per cluster, whatever the number of weights


def largest_code(rule: Quantize) -> int:
    """Return the largest code of uniform points; the least is its negative."""
    return (1 << (rule.bits - 1)) - 1


def _grouped(weight: torch.Tensor, rule: Quantize) -> torch.Tensor:
    """Return the weight as (groups, members); the last group of a row is filled up with zeros."""
    flat = weight.detach().reshape(weight.shape[0], -1).float()
    size = min(rule.group or flat.shape[1], flat.shape[1])
    missing = -flat.shape[1] % size
    return torch.nn.functional.pad(flat, (0, missing)).reshape(-1, size)


def uniform_scales(weight: torch.Tensor, rule: Quantize) -> torch.Tensor:
    """Return the scale of each group: the one of CANDIDATES with the least squared error."""
    groups = _grouped(weight, rule)
    top = groups.abs().amax(1) / largest_code(rule)
    top = torch.where(top > 0, top, torch.ones_like(top))
    best, least = top.clone(), torch.full_like(top, torch.inf)
    for index in range(CANDIDATES):
        scale = top * (1 - 0.8 * index / CANDIDATES)
        error = (_rounded(groups, scale, rule) * scale[:, None] - groups).square().sum(1)
        better = error < least
        best = torch.where(better, scale, best)
        least = torch.where(better, error, least)
    return best


def _rounded(groups: torch.Tensor, scales: torch.Tensor, rule: Quantize) -> torch.Tensor:
    top = largest_code(rule)
    return torch.round(groups / scales[:, None]).clamp_(-top, top)


def uniform_codes(weight: torch.Tensor, scales: torch.Tensor, rule: Quantize) -> torch.Tensor:
    """Return the codes by groups, as int8."""
    return _rounded(_grouped(weight, rule), scales, rule).to(torch.int8)


def uniform_values(
    codes: torch.Tensor, scales: torch.Tensor, rule: Quantize, shape: torch.Size
) -> torch.Tensor:
    """Return the weight that codes stand for, in float32."""
    rows, columns = shape[0], shape[1:].numel()
    assert codes.shape[1] == min(rule.group or columns, columns)
    return (codes.float() * scales[:, None]).reshape(rows, -1)[:, :columns].reshape(shape)


def clusters(weight: torch.Tensor, counted: torch.Tensor, rule: Quantize) -> torch.Tensor:
    """Return which cluster each weight belongs to, as uint8: k-means in one dimension.

    Clusters begin at the quantiles of the weights. A cluster of sorted weights is a stretch of
    them, so a round of Lloyd's algorithm is one search and one difference of running sums.
    Weights that are not counted get cluster 0.
    """
    flat = weight.detach().flatten().double()
    order = torch.argsort(flat[counted.flatten()], stable=True)
    ranked = flat[counted.flatten()][order]
    codes = torch.zeros(flat.numel(), dtype=torch.uint8)
    if ranked.numel() == 0:
        return codes.view(weight.shape)
    count = min(1 << rule.bits, ranked.numel())
    sums = torch.cat([torch.zeros(1, dtype=torch.float64), ranked.cumsum(0)])
    places = (torch.arange(count, dtype=torch.float64) + 0.5) * ranked.numel() / count
    centres = ranked[places.long().clamp_(max=ranked.numel() - 1)]
    edges = torch.zeros(count + 1, dtype=torch.int64)
    for _ in range(LLOYD_ROUNDS):
        middles = (centres[1:] + centres[:-1]) / 2
        edges[1:-1] = torch.searchsorted(ranked, middles)
        edges[-1] = ranked.numel()
        sizes = edges[1:] - edges[:-1]
        means = (sums[edges[1:]] - sums[edges[:-1]]) / sizes.clamp(min=1)
        moved = torch.where(sizes > 0, means, centres).sort().values
        if torch.equal(moved, centres):
            break
        centres = moved
    of_ranked = torch.bucketize(torch.arange(ranked.numel()), edges[1:-1], right=True)
    mine = torch.empty_like(of_ranked)
    mine[order] = of_ranked
    codes[counted.flatten()] = mine.to(torch.uint8)
    return codes.view(weight.shape)


def cluster_means(
    weight: torch.Tensor, codes: torch.Tensor, counted: torch.Tensor, count: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the mean of each cluster, and the weight with each value replaced by its mean."""
    places = codes.flatten().long()
    factor = counted.flatten().to(weight.dtype)
    sums = torch.zeros(count, dtype=weight.dtype).index_add(0, places, weight.flatten() * factor)
    sizes = torch.zeros(count, dtype=weight.dtype).index_add(0, places, factor)
    means = sums / sizes.clamp(min=1)
    return means, (means[places] * factor).view(weight.shape)
