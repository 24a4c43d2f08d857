"""Masks and points of the compression tool, against loops and scikit-learn."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.cluster import KMeans

from rdmatensor.compress import masks, points
from rdmatensor.compress.policy import Quantize


@given(
    rows=st.integers(1, 9),
    columns=st.integers(1, 9),
    block=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    seed=st.integers(0, 99),
)
@settings(max_examples=60, deadline=None)
def test_sums_and_masks_of_blocks_equal_loops(
    rows: int, columns: int, block: tuple[int, int], seed: int
) -> None:
    values = torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed)).abs()
    sums = masks.block_sums(values, block)
    alive = sums > sums.median()
    mask = masks.expanded(alive, block, values.shape)
    for i, j in itertools.product(range(sums.shape[0]), range(sums.shape[1])):
        high, wide = (
            slice(i * block[0], (i + 1) * block[0]),
            slice(j * block[1], (j + 1) * block[1]),
        )
        assert math.isclose(float(sums[i, j]), float(values[high, wide].double().sum()))
        assert (mask[high, wide] == alive[i, j]).all()


@given(degrees=st.lists(st.floats(0, 1), min_size=1, max_size=4), seed=st.integers(0, 99))
def test_the_least_blocks_die_and_none_comes_back(degrees: list[float], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    alive = torch.ones(5, 7, dtype=torch.bool)
    for degree in sorted(degrees):
        scores = torch.rand(5, 7, generator=generator, dtype=torch.float64)
        before, alive = alive, masks.choose_alive(scores, alive, degree)
        assert int((~alive).sum()) == max(int((~before).sum()), round(degree * 35))
        assert not (alive & ~before).any()
        died = before & ~alive
        if died.any() and alive.any():
            assert scores[died].max() <= scores[alive].min()


@pytest.mark.parametrize(("bits", "group"), [(2, None), (4, 8), (8, 5), (3, 100)])
def test_uniform_points_are_multiples_with_the_least_error_tried(
    bits: int, group: int | None
) -> None:
    weight = torch.randn(6, 24, generator=torch.Generator().manual_seed(bits))
    rule = Quantize("", "uniform", bits, group)
    scales = points.uniform_scales(weight, rule)
    codes = points.uniform_codes(weight, scales, rule)
    values = points.uniform_values(codes, scales, rule, weight.shape)
    assert codes.abs().max() <= points.largest_code(rule)
    plain = weight.reshape(-1, min(group or 24, 24)) if 24 % (group or 24) == 0 else None
    if plain is not None:  # the plain scale is among those tried: no error may be above its own
        top = plain.abs().amax(1) / points.largest_code(rule)
        rounded = torch.round(plain / top[:, None]) * top[:, None]
        worst = (rounded - plain).square().sum(1)
        assert ((values - weight).reshape(plain.shape).square().sum(1) <= worst * (1 + 1e-5)).all()


@pytest.mark.parametrize("bits", [2, 4])
def test_clusters_are_as_good_as_sklearn_s(bits: int) -> None:
    weight = torch.randn(40, 25, generator=torch.Generator().manual_seed(bits))
    rule = Quantize("", "clustered", bits)
    counted = torch.ones_like(weight, dtype=torch.bool)
    codes = points.clusters(weight, counted, rule)
    values = points.cluster_means(weight, codes, counted, 1 << bits)[1]
    mine = float((values - weight).square().sum())
    kmeans = KMeans(1 << bits, n_init=5, random_state=0).fit(weight.reshape(-1, 1).numpy())
    assert mine <= 1.1 * kmeans.inertia_


def test_clustered_points_beat_rounding_to_the_largest_of_a_row() -> None:
    """What libraries do by default: a scale for each row, from its largest weight."""
    weight = torch.randn(64, 1024, generator=torch.Generator().manual_seed(3))
    counted = torch.ones_like(weight, dtype=torch.bool)
    codes = points.clusters(weight, counted, Quantize("", "clustered", 4))
    near = points.cluster_means(weight, codes, counted, 16)[1]
    scales = weight.abs().amax(1, keepdim=True) / 7.5
    whole = torch.round(weight / scales) * scales
    assert (near - weight).square().mean() <= 0.8 * (whole - weight).square().mean()
