"""Arena layouts against pairwise comparison, and against the bounds that they promise."""

import itertools
import random
import time

import pytest
from generated_graphs import block_lists
from hypothesis import given
from hypothesis import strategies as st

from graph_analysis.errors import ArgumentError
from graph_analysis.ir import Block, Lifetime, align_up
from graph_analysis.layout import arena_layout
from graph_analysis.liveness import largest_live_set_bytes

pytestmark = pytest.mark.timeout(60)


def _meet(a: Lifetime, b: Lifetime) -> bool:
    return a.first_use <= b.last_use and b.first_use <= a.last_use


@given(block_lists(), st.sampled_from([1, 8, 64]))
def test_blocks_alive_together_share_no_byte(blocks: list[Block], alignment: int) -> None:
    layout = arena_layout(blocks, alignment_bytes=alignment)
    assert set(layout.offsets) == {b.name for b in blocks}
    for a, b in itertools.combinations(blocks, 2):
        if a.size_bytes and b.size_bytes and _meet(a.lifetime, b.lifetime):
            start_a, start_b = layout.offsets[a.name], layout.offsets[b.name]
            assert start_a + a.size_bytes <= start_b or start_b + b.size_bytes <= start_a
    for block in blocks:
        assert layout.offsets[block.name] % alignment == 0
        assert layout.offsets[block.name] >= 0
    ends = [layout.offsets[b.name] + align_up(b.size_bytes, alignment) for b in blocks]
    assert layout.peak_bytes == max(ends, default=0)


@given(block_lists(), st.sampled_from([1, 64]))
def test_peak_lies_between_the_largest_live_set_and_the_sum(
    blocks: list[Block], alignment: int
) -> None:
    layout = arena_layout(blocks, alignment_bytes=alignment)
    sizes = {b.name: align_up(b.size_bytes, alignment) for b in blocks}
    rounded = [Block(b.name, sizes[b.name], b.lifetime) for b in blocks]
    assert layout.naive_bytes == sum(sizes.values())
    assert layout.lower_bound_bytes == largest_live_set_bytes(rounded)
    assert layout.lower_bound_bytes <= layout.peak_bytes <= layout.naive_bytes


@given(block_lists(), st.randoms(use_true_random=False))
def test_layout_does_not_depend_on_the_order_given(
    blocks: list[Block], shuffler: random.Random
) -> None:
    shuffled = list(blocks)
    shuffler.shuffle(shuffled)
    assert arena_layout(shuffled) == arena_layout(blocks)


def test_memory_is_used_again() -> None:
    chain = [Block(f"t{i}", 100, Lifetime(2 * i, 2 * i + 1)) for i in range(50)]
    layout = arena_layout(chain)
    assert (layout.peak_bytes, layout.naive_bytes) == (128, 50 * 128)


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (0, 2, 3, 1)])
def test_neighbouring_holes_merge(order: tuple[int, ...]) -> None:
    """Four neighbours die one after the other, in any order; their room serves one block."""
    small = [Block(f"s{i}", 64, Lifetime(0, order[i])) for i in range(4)]
    layout = arena_layout([*small, Block("large", 256, Lifetime(4, 4))])
    assert (layout.peak_bytes, layout.offsets["large"]) == (256, 0)


def test_arena_grows_from_a_hole_at_its_end() -> None:
    blocks = [
        Block("stays", 64, Lifetime(0, 2)),
        Block("goes", 32, Lifetime(0, 0)),
        Block("larger", 128, Lifetime(1, 2)),
    ]
    layout = arena_layout(blocks, alignment_bytes=32)
    assert (layout.peak_bytes, layout.offsets["larger"]) == (192, 64)


@pytest.mark.parametrize("alignment", [0, -64, 48])
def test_alignment_must_be_a_power_of_two(alignment: int) -> None:
    with pytest.raises(ArgumentError, match="power of two"):
        arena_layout([], alignment_bytes=alignment)


def test_ten_thousand_blocks_take_well_under_five_seconds() -> None:
    """5 s of CPU are allowed for all passes together; the layout alone takes about 0.1 s."""
    source = random.Random(5)
    blocks = []
    for index in range(10_000):
        first = source.randrange(10_000)
        last = min(9_999, first + source.randrange(500))
        blocks.append(Block(f"t{index}", source.randrange(1, 1 << 20), Lifetime(first, last)))
    began = time.process_time()
    layout = arena_layout(blocks)
    assert time.process_time() - began < 2.0
    assert layout.peak_bytes < 1.5 * layout.lower_bound_bytes
