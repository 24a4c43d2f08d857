"""What newcomers get wrong: refused at once, with what stands there and what belongs there."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from pairs import Pair

from rdmatensor import (
    Closed,
    Context,
    FileStore,
    InvalidArgument,
    Settings,
    StaleRegion,
    TransferTimeout,
    World,
    join,
)

NO_TIMES: tuple[object, ...] = ("5", b"5", True, [1.0], 1j)
TIMES_OUT_OF_RANGE = (-1, -0.1, math.nan, math.inf, np.float64("nan"), 1e9)
NO_RANKS: tuple[object, ...] = ("1", 1.0, True, (1,))


@pytest.fixture
def world(settings: Settings, tmp_path: Path) -> Iterator[World]:
    with (
        Context(settings) as context,
        join(FileStore(tmp_path / "store"), 0, 2, context=context) as joined,
    ):
        yield joined


def test_a_target_that_is_no_region_is_named(pair: Pair) -> None:
    array = pair.right.zeros(4)
    region = pair.right.register(np.zeros(4))
    for wrong in (array, region, b"pickled"):
        kind = type(wrong).__name__
        for call in (
            lambda target: pair.to_right.write(b"x", target),
            lambda target: pair.to_right.write_many([(b"x", 0)], target),
            lambda target: pair.to_right.prepare_write(b"x", target),
            lambda target: pair.to_right.read(bytearray(1), target),
            lambda target: pair.to_right.notify(1, target),
        ):
            with pytest.raises(InvalidArgument, match=rf"{kind} .*RemoteRegion.*export\(\)"):
                call(wrong)
    region.close()


def test_blocks_that_are_no_pairs_are_told_the_form(pair: Pair) -> None:
    remote = pair.right.export(pair.right.zeros(64))
    for blocks in (np.ones((3, 3)), [1, 2], [(b"x",)], 7):
        with pytest.raises(InvalidArgument, match=r"pairs \(tensor, dst_offset_bytes\)"):
            pair.to_right.write_many(blocks, remote)  # type: ignore[arg-type]


def test_a_look_that_finds_nothing_says_so(pair: Pair) -> None:
    with pytest.raises(TransferTimeout, match="nothing is there yet") as caught:
        pair.to_right.wait_notify(timeout_s=0)
    assert "RDT_EAGAIN (" not in str(caught.value)


def test_a_put_that_is_no_tensor_is_refused_as_by_write(pair: Pair) -> None:
    with (
        pair.right.slot("s", 4, src=pair.to_left),
        pair.to_right.slot("s", 4, "float32") as sender,
        pytest.raises(InvalidArgument, match="list is no tensor"),
    ):
        sender.put([1.0])  # type: ignore[arg-type]


def test_a_sender_that_leaves_before_a_dynamic_tensor_is_read_is_blamed(pair: Pair) -> None:
    with pair.right.slot("late", (4,), src=pair.to_left, kind="dynamic") as slot:
        with pair.to_right.slot("late", (4,), "float32", kind="dynamic") as sender:
            transfer = sender.put(np.ones(4, np.float32))
        with pytest.raises(Closed, match="slot 'late' was closed"):
            transfer.wait()
        with pytest.raises(StaleRegion, match=r"sender .*slot 'late'.*before .* wait\(\)"):
            slot.get()


@pytest.mark.parametrize("wrong", [*NO_TIMES, *TIMES_OUT_OF_RANGE], ids=repr)
def test_a_time_that_is_none_is_refused_by_its_name(pair: Pair, wrong: float) -> None:
    array = pair.right.zeros(4)
    remote = pair.right.export(array)
    transfer = pair.to_right.write(b"x", remote, notify=7)
    transfer.wait(np.float32(5))  # a number of numpy's is one
    pair.to_left.wait_notify(np.int64(5))
    pair.to_right.write(b"x", remote, notify=7)  # there, but nobody may look with a wrong time
    reason = "not a number" if any(wrong is each for each in NO_TIMES) else "not from 0 to"
    with (
        pair.right.slot("s", 4, src=pair.to_left) as slot,
        pair.to_right.slot("s", 4, "float32") as sender,
    ):
        for call in (
            lambda: transfer.wait(wrong),
            lambda: pair.to_left.wait_notify(wrong),
            lambda: pair.to_left.wait_notify(timeout_s=wrong),
            lambda: pair.to_right.wait_ready(wrong),
            lambda: pair.to_right.slot("s", timeout_s=wrong),
            lambda: slot.get(wrong),
            lambda: sender.put(np.ones(4, np.float32), wrong),
            lambda: sender.buffer(timeout_s=wrong),
            lambda: pair.left.connect(pair.right.blob, timeout_s=wrong),
        ):
            with pytest.raises(InvalidArgument, match=rf"timeout_s=.* is .*{reason}"):
                call()


@pytest.mark.parametrize("wrong", NO_RANKS, ids=repr)
def test_a_rank_that_is_no_number_is_refused(world: World, wrong: int) -> None:
    for call in (
        lambda: world[wrong],
        lambda: world.slot("s", 4, src=wrong),
        lambda: world.group("g", [0, wrong]),
        lambda: world.context.slot("s", 4, src=wrong),
        lambda: world.context.connect(world.context.blob, rank=wrong),
        lambda: world.context.add_job("another", b"secret", rank=wrong),
    ):
        with pytest.raises(InvalidArgument, match=r"rank=.* is a .*, not a whole number"):
            call()
    with world.group("alone", [0]) as group:
        for of_group, name in (
            (lambda: group.send(b"x", wrong), "dst"),
            (lambda: group.recv(bytearray(1), wrong), "src"),
            (lambda: group.broadcast(bytearray(1), wrong), "root"),
        ):
            with pytest.raises(InvalidArgument, match=rf"{name}=.* is a .*, not a whole number"):
                of_group()


def test_numbers_of_numpy_are_ranks(world: World) -> None:
    with pytest.raises(InvalidArgument, match="rank 5 is not one of the others of 0 to 1"):
        world[np.int64(5)]
    world.group("alone", [np.int32(0)]).close()  # type: ignore[list-item]
