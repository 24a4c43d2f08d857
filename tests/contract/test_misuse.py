"""What newcomers get wrong: refused at once, with what stands there and what belongs there."""

from __future__ import annotations

import numpy as np
import pytest
from pairs import Pair

from rdmatensor import Closed, InvalidArgument, StaleRegion, TransferTimeout


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
