"""Groups of the numpy API: messages and collectives between two processes' contexts."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from groups import SIZE, Work

from rdmatensor import (
    Group,
    InvalidArgumentError,
    MismatchError,
    RdmaTensorError,
    World,
)


@pytest.mark.parametrize("count", [0, 1, 1000, 300_001])
def test_collectives(run: Callable[[Work], list[object]], count: int) -> None:
    def work(group: Group) -> None:
        rank = group.rank
        mine = np.arange(count, dtype=np.int64) + rank
        total = sum(np.arange(count, dtype=np.int64) + r for r in range(SIZE))

        everything = mine.copy()
        group.all_reduce(everything).wait(20)
        assert (everything == total).all()
        apart = np.zeros(count, np.int64)
        group.all_reduce(mine, "MAX", out=apart).wait(20)  # type: ignore[arg-type]  # any case
        assert (apart == np.arange(count) + SIZE - 1).all()

        news = mine.copy()
        group.broadcast(news, src=1).wait(20)
        assert (news == np.arange(count) + 1).all()

        at_root = np.zeros(count, np.int64) if rank == 2 else None
        group.reduce(mine, dst=2, out=at_root).wait(20)
        assert at_root is None or (at_root == total).all()

        gathered = np.zeros((SIZE, count), np.int64)
        group.all_gather(gathered, mine).wait(20)
        assert all((gathered[r] == np.arange(count) + r).all() for r in range(SIZE))
        at_root = np.zeros((SIZE, count), np.int64) if rank == 0 else None
        group.gather(mine, at_root).wait(20)
        assert at_root is None or (at_root == gathered).all()

        part = np.zeros(count, np.int64)
        group.reduce_scatter(part, gathered).wait(20)
        assert (part == (np.arange(count) + rank) * SIZE).all()
        group.scatter(part, gathered if rank == 0 else None).wait(20)
        assert (part == np.arange(count) + rank).all()

        swapped = np.zeros((SIZE, count), np.int64)
        group.all_to_all(swapped, gathered * 10 + rank).wait(20)
        for r in range(SIZE):
            assert (swapped[r] == (np.arange(count) + rank) * 10 + r).all()
        group.barrier().wait(20)

    run(work)


def test_messages_by_tag_and_from_anybody(run: Callable[[Work], list[object]]) -> None:
    def work(group: Group) -> set[int]:
        others = [rank for rank in range(SIZE) if rank != group.rank]
        for rank in others:
            group.send(np.full(10, group.rank, np.int32), rank, tag=1)
            group.send(np.full(5, 100 + group.rank, np.int32), rank, tag=2)
        sources = set()
        for _ in others:
            got = np.zeros(20, np.int32)
            reception = group.recv(got, tag=1)
            reception.wait(10)
            assert reception.len_bytes == 40
            assert (got[:10] == reception.source).all()
            sources.add(reception.source)
        for rank in others:
            got = np.zeros(5, np.int32)
            group.recv(got, rank, tag=2).wait(10)
            assert (got == 100 + rank).all()
        return sources

    assert run(work) == [{1, 2}, {0, 2}, {0, 1}]


def test_groups_of_some_ranks_are_made_again_and_again(
    run: Callable[[Work], list[object]], worlds: list[World]
) -> None:
    def work(group: Group) -> None:
        world = worlds[group.rank]
        for round_ in range(10):
            members = [[0, 1], [2, 1], [0, 2], [2, 1, 0]][round_ % 4]
            if world.rank in members:
                with world.group(f"some {round_}", members) as some:
                    assert some.rank == members.index(world.rank)
                    total = np.full(10, world.rank, np.int64)
                    some.all_reduce(total).wait(10)
                    assert (total == sum(members)).all()
                    news = np.full(10, world.rank, np.int64)
                    some.broadcast(news, src=0).wait(10)
                    assert (news == members[0]).all()
                    some.barrier().wait(10)
        for wrong in ([5], [0, 0, 1, 2], [rank for rank in range(SIZE) if rank != world.rank]):
            with pytest.raises(InvalidArgumentError):
                world.group("wrong", wrong)

    run(work)


def test_disagreement_is_told(run: Callable[[Work], list[object]]) -> None:
    def work(group: Group) -> RdmaTensorError:
        count = 100 if group.rank == 0 else 101
        try:
            group.barrier().wait(10)  # who is slow may still be in here when it is told
            group.all_reduce(np.ones(count, np.float32)).wait(20)
        except RdmaTensorError as error:
            return error
        pytest.fail(f"rank {group.rank} was told nothing")

    errors = run(work)
    assert any(isinstance(error, MismatchError) for error in errors)
    for error in errors:  # who did not see it was told by who did
        said = str(error)
        assert re.search(r"all_reduce \(sum\) of 10[01] float32", said)
        assert "of 100 float32" in said
        assert "of 101 float32" in said


@dataclass(frozen=True)
class NamedLikeTorch:
    """As torch.distributed.ReduceOp.PRODUCT is."""

    name: str = "PRODUCT"


def test_a_reduction_of_torch_is_known_by_its_name(run: Callable[[Work], list[object]]) -> None:
    def work(group: Group) -> None:
        product = np.array([group.rank + 1])
        assert group.all_reduce(product, NamedLikeTorch()).wait(20).done()
        assert product[0] == math.factorial(SIZE)

    run(work)


def test_arguments_that_are_refused(run: Callable[[Work], list[object]]) -> None:
    def work(group: Group) -> None:
        ones = np.ones(4, np.float32)
        calls: list[Callable[[], object]] = [
            lambda: group.all_reduce(ones, "mean"),  # type: ignore[arg-type]
            lambda: group.broadcast(ones, src=SIZE),
            lambda: group.all_gather(np.ones(4, np.float32), ones),
            lambda: group.all_gather(np.ones(4 * SIZE), ones),
            lambda: group.all_to_all(ones, ones),
            lambda: group.gather(ones, dst=group.rank),
            lambda: group.all_reduce(np.ones((4, 4), np.float32)[:, ::2]),
            lambda: group.send(ones, SIZE),
        ]
        with pytest.raises(InvalidArgumentError) as caught:
            group.all_reduce(ones, "band")
        assert str(caught.value) == "band is not defined for float32 [all_reduce: RDT_EINVAL]"
        with pytest.raises(InvalidArgumentError, match=r"'mean' is not one .* did you mean 'avg'"):
            group.all_reduce(ones, "mean")  # type: ignore[arg-type]
        with pytest.raises(InvalidArgumentError, match=f"out is missing: dst, rank {group.rank},"):
            group.gather(ones, dst=group.rank)
        with pytest.raises(InvalidArgumentError, match=r"out has 4 .*, expected 12 float32"):
            group.all_gather(np.ones(4, np.float32), ones)
        for call in calls:
            with pytest.raises(InvalidArgumentError):
                call()

    run(work)
