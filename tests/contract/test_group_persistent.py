"""What repeats in a group of the numpy API: initialised once, started often."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from threading import Barrier
from typing import cast

import numpy as np
import pytest
from groups import SIZE, Work

from rdmatensor import (
    ClosedError,
    Group,
    InvalidArgumentError,
    MismatchError,
    PeerError,
    Transfer,
    World,
)
from rdmatensor.state import BindingState


@pytest.mark.parametrize("is_in_arena", [False, True])
@pytest.mark.parametrize("count", [1, 1000, 300_001])
def test_persistent_collectives(
    run: Callable[[Work], list[object]], worlds: list[World], count: int, is_in_arena: bool
) -> None:
    def work(group: Group) -> None:
        rank, last = group.rank, SIZE - 1
        zeros = worlds[rank].context.zeros if is_in_arena else np.zeros
        total, sent, block = (zeros(count, "float32") for _ in range(3))
        gathered, blocks = (zeros(SIZE * count, "float32") for _ in range(2))
        with (
            group.all_reduce_init(total) as all_reduce,
            group.broadcast_init(sent, last) as broadcast,
            group.all_gather_init(gathered, sent) as all_gather,
            group.reduce_scatter_init(block, blocks, "max") as reduce_scatter,
        ):
            for step in range(3):
                total[:] = rank + step
                sent[:] = rank * 10 + step
                blocks[:] = np.repeat(np.arange(SIZE), count) + step * rank
                for each in [all_reduce, all_gather, reduce_scatter]:
                    each.start().wait()
                assert (total == sum(range(SIZE)) + SIZE * step).all()
                assert (gathered == np.repeat(np.arange(SIZE) * 10 + step, count)).all()
                assert (block == rank + step * last).all()
                broadcast.start().wait()
                assert (sent == last * 10 + step).all()
        with pytest.raises(ClosedError):
            all_reduce.start()

    run(work)


@pytest.mark.parametrize("is_in_arena", [False, True])
@pytest.mark.parametrize("count", [1, 1000, 100_001])
def test_persistent_collectives_of_few_to_many(
    run: Callable[[Work], list[object]], worlds: list[World], count: int, is_in_arena: bool
) -> None:
    def work(group: Group) -> None:
        rank, last = group.rank, SIZE - 1
        zeros = worlds[rank].context.zeros if is_in_arena else np.zeros
        out = zeros(count, "float32")
        whole, block = zeros(SIZE * count, "float32"), zeros(count, "float32")
        parts, back = zeros(SIZE * count, "float32"), zeros(SIZE * count, "float32")
        with (
            group.reduce_init(block, last, "max", out=out) as reduce,
            group.gather_init(block, whole if rank == last else None, last) as gather,
            group.scatter_init(out, parts if rank == last else None, last) as scatter,
            group.all_to_all_init(back, parts) as all_to_all,
            group.barrier_init() as barrier,
        ):
            for step in range(3):
                block[:] = rank * 10 + step
                parts[:] = np.repeat(np.arange(SIZE), count) + rank * 10 + step
                out[:] = -1
                reduce.start().wait()
                assert (out == (last * 10 + step if rank == last else -1)).all()
                gather.start().wait()
                if rank == last:
                    assert (whole == np.repeat(np.arange(SIZE) * 10 + step, count)).all()
                scatter.start().wait()
                assert (out == rank + last * 10 + step).all()
                all_to_all.start().wait()
                assert (back == np.repeat(np.arange(SIZE) * 10 + rank + step, count)).all()
                barrier.start().wait()
            for each, name in zip(
                [reduce, gather, scatter, all_to_all, barrier],
                ["reduce", "gather", "scatter", "all_to_all", "barrier"],
                strict=True,
            ):
                binding = each.describe()
                assert (binding["operation"], binding["starts"]) == (name, 3)
                assert binding["bytes"] == (0 if name == "barrier" else 4 * count)

    run(work)


def test_arguments_of_what_repeats_are_checked(run: Callable[[Work], list[object]]) -> None:
    """Before the other members see anything: each would wait for the others else."""

    def work(group: Group) -> None:
        ones, root = np.ones(4, np.float32), group.rank
        calls: list[Callable[[], object]] = [
            lambda: group.reduce_init(ones, root, out=ones[:3]),
            lambda: group.gather_init(ones, None, root),
            lambda: group.scatter_init(ones, None, root),
            lambda: group.scatter_init(ones, ones, root),
            lambda: group.all_to_all_init(ones, ones),
            lambda: group.broadcast_init(ones, SIZE),
        ]
        for call in calls:
            with pytest.raises(InvalidArgumentError):
                call()
        group.barrier_init().close()

    run(work)


def test_starts_are_awaited(run: Callable[[Work], list[object]]) -> None:
    def work(group: Group) -> None:
        total = np.zeros(50_000, np.float32)
        out, into = np.zeros(5000, np.float32), np.zeros(5000, np.float32)
        all_reduce = group.all_reduce_init(total)
        barrier = group.barrier_init()
        send = group.send_init(out, (group.rank + 1) % SIZE)
        recv = group.recv_init(into, (group.rank - 1) % SIZE)

        async def steps() -> None:
            for step in range(5):
                total[:] = group.rank + step
                out[:] = group.rank * 10 + step
                arriving = recv.start()
                await asyncio.gather(*map(ended, [all_reduce.start(), send.start(), arriving]))
                assert (total == sum(range(SIZE)) + SIZE * step).all()
                assert (into == (group.rank - 1) % SIZE * 10 + step).all()
                await barrier.start()

        async def ended(transfer: Transfer) -> None:
            await transfer

        asyncio.run(steps())
        all_reduce.close()
        barrier.close()

    run(work)


@pytest.mark.parametrize("absent", [None, 0, SIZE - 1])
def test_what_repeats_describes_itself(
    run: Callable[[Work], list[object]],
    worlds: list[World],
    transport: str,
    absent: int | None,
) -> None:
    """The last rank is the broadcast's root; `absent` has its tensor outside an arena."""
    count, root = 100_000, SIZE - 1

    def work(group: Group) -> tuple[BindingState, BindingState]:
        is_absent = group.rank == absent
        zeros = np.zeros if is_absent else worlds[group.rank].context.zeros
        tensor = zeros(count, "float32")
        with (
            group.all_reduce_init(tensor) as all_reduce,
            group.broadcast_init(tensor, root) as broadcast,
        ):
            for step in range(2):
                tensor[:] = group.rank + step
                broadcast.start().wait()
                assert (tensor == root + step).all()
                all_reduce.start().wait()
                assert (tensor == SIZE * (root + step)).all()
            found = all_reduce.describe(), broadcast.describe()
        with pytest.raises(ClosedError):
            all_reduce.describe()
        return found

    all_of = run(work)
    assert all_of == [all_of[0]] * SIZE, "the members disagree"
    bindings = cast("tuple[BindingState, BindingState]", all_of[0])
    assert [one["operation"] for one in bindings] == ["all_reduce", "broadcast"]
    assert [(one["bytes"], one["starts"]) for one in bindings] == [(4 * count, 2)] * 2
    hosts = ("messages", "the members are on several hosts, or share no memory", None)
    outside = ("stages", "its tensor is in no arena", absent)
    in_place = ("in place", "", None)
    wanted = [in_place if absent is None else outside, outside if absent == root else in_place]
    found = [(one["way"], one["reason"], one["rank"]) for one in bindings]
    assert found == (wanted if transport == "shm" else [hosts] * 2)


def test_persistent_messages(run: Callable[[Work], list[object]]) -> None:
    def work(group: Group) -> None:
        out, into = np.zeros(5000, np.float32), np.zeros(5000, np.float32)
        send = group.send_init(out, (group.rank + 1) % SIZE)
        recv = group.recv_init(into, (group.rank - 1) % SIZE)
        for step in range(4):
            out[:] = group.rank + step * 10
            arriving = recv.start()
            send.start().wait()
            arriving.wait()
            assert (into == (group.rank - 1) % SIZE + step * 10).all()

    run(work)


def test_members_that_initialise_different_ones_learn_it(
    run: Callable[[Work], list[object]],
) -> None:
    def work(group: Group) -> None:
        tensor = np.ones(5 if group.rank == 1 else 4, np.float32)
        with pytest.raises(MismatchError, match=r"all_reduce \(sum\) of"):
            group.all_reduce_init(tensor)
        group.barrier().wait()

    run(work)


def test_outputs_that_overlap_what_others_read(
    run: Callable[[Work], list[object]], worlds: list[World]
) -> None:
    """Each member's input is another member's block of the output."""
    count = 100_000

    def work(group: Group) -> None:
        out = worlds[group.rank].context.zeros(SIZE * count, "float32")
        at = (group.rank + 1) % SIZE * count
        sent = out[at : at + count]
        with group.all_gather_init(out, sent) as all_gather:
            for step in range(5):
                sent[:] = group.rank + 10 * step
                all_gather.start().wait()
                assert (out == np.repeat(np.arange(SIZE) + 10 * step, count)).all()

    run(work)


@pytest.mark.parametrize("count", [100, 100_000])
def test_members_that_start_different_ones(run: Callable[[Work], list[object]], count: int) -> None:
    initialised = Barrier(SIZE)

    def work(group: Group) -> None:
        tensors = [np.ones(count, np.float32) for _ in range(2)]
        both = [group.all_reduce_init(tensor) for tensor in tensors]
        initialised.wait(20)  # one that starts breaks the group, also for one that initialises
        first, second = both if group.rank == 0 else both[::-1]

        def start() -> None:
            first.start().wait()
            second.start().wait()

        with pytest.raises((MismatchError, PeerError), match=r"the persistent \(number"):
            start()
        for one in both:
            one.close()

    run(work)


def test_a_member_that_leaves_with_an_open_one(
    run: Callable[[Work], list[object]], worlds: list[World]
) -> None:
    def work(group: Group) -> None:
        tensor = worlds[group.rank].context.zeros(200_000, "float32")
        opened = group.all_reduce_init(tensor)
        opened.start().wait()
        if group.rank == 0:
            group.close()
            assert opened.is_closed
            return
        with pytest.raises(PeerError), opened:
            opened.start().wait()

    run(work)
