"""Lifetimes and live sets against their definitions, recomputed moment by moment."""

import naive
import pytest
from generated_graphs import block_lists, graphs
from hypothesis import given

from graph_analysis.ir import Block, Graph, Lifetime, Op, Value
from graph_analysis.liveness import largest_live_set_bytes, lifetimes

pytestmark = pytest.mark.timeout(60)


@given(graphs())
def test_lifetimes_cover_birth_and_every_use(graph: Graph) -> None:
    assert lifetimes(graph) == naive.lifetimes(graph)


def test_view_keeps_its_base_alive() -> None:
    base = Value("base", "activation", "int8", 1, (8,), producer=0)
    view = Value("view", "activation", "int8", 1, (4,), producer=1, alias_of="base")
    ops = (
        Op("base", "make", (), ("base",)),
        Op("view", "view", ("base",), ("view",)),
        Op("other", "noop", (), ()),
        Op("use", "read", ("view",), ()),
    )
    graph = Graph((), (base, view), ops, (), "joint_graph", "output_sum", "test")
    assert lifetimes(graph) == {"base": Lifetime(0, 3)}


def test_loss_that_is_a_view_keeps_its_base_until_the_optimizer() -> None:
    base = Value("base", "activation", "int8", 1, (8,), producer=0)
    loss = Value("loss", "loss", "int8", 1, (), producer=1, alias_of="base")
    ops = (
        Op("base", "make", (), ("base",)),
        Op("loss", "view", ("base",), ("loss",)),
        Op("other", "noop", (), ()),
    )
    graph = Graph((), (base, loss), ops, (), "joint_graph", "output_sum", "test")
    assert lifetimes(graph) == {"base": Lifetime(0, 3)}


@given(block_lists())
def test_largest_live_set_is_the_largest_over_all_moments(blocks: list[Block]) -> None:
    assert largest_live_set_bytes(blocks) == naive.largest_live_set_bytes(blocks)
