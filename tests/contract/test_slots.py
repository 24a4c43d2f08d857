"""Slots: static, bounded and dynamic, credits, and disagreement."""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from pairs import Pair

from rdmatensor import (
    BusyError,
    ClosedError,
    InvalidArgumentError,
    MismatchError,
    NotSupportedError,
    PeerError,
    RdmaTensorError,
    SlotSender,
    StaleRegionError,
    TransferTimeoutError,
)
from rdmatensor.types import DTYPE_NAMES


def test_static_slot_delivers_in_order_and_returns_credit(pair: Pair) -> None:
    with (
        pair.right.recv_slot("acts", (3, 5), "float32", src=pair.to_left) as slot,
        pair.to_right.send_slot("acts") as out,
    ):
        for step in range(300):
            out.put(np.full((3, 5), step, np.float32), timeout_s=10).wait()
            with slot.get(timeout_s=10) as got:
                assert got.shape == (3, 5)
                assert (got == step).all()


def test_two_puts_go_without_a_get_and_the_third_waits(pair: Pair) -> None:
    with (
        pair.right.recv_slot("acts", (2,), src=pair.to_left) as slot,
        pair.to_right.send_slot("acts", (2,), "float32") as out,
    ):
        for step in (0.0, 1.0):
            out.put(np.full(2, step, np.float32), timeout_s=5)
        with pytest.raises(TransferTimeoutError, match=r"'acts' within 0\.300 s"):
            out.put(np.full(2, 2.0, np.float32), timeout_s=0.3)
        first, second = slot.get(timeout_s=5), slot.get(timeout_s=5)
        with pytest.raises(BusyError):
            slot.get(timeout_s=0)
        assert (first.array[0], second.array[0]) == (0.0, 1.0)
        second.release()  # out of order: its credit waits for the first's
        with pytest.raises(TransferTimeoutError):
            out.put(np.full(2, 2.0, np.float32), timeout_s=0.2)
        assert first.array[0] == 0.0
        first.release()
        first.release()  # again is legal
        for step in (2.0, 3.0):
            out.put(np.full(2, step, np.float32), timeout_s=5)
        for step in (2.0, 3.0):
            with slot.get(timeout_s=5) as got:
                assert (got == step).all()


def test_a_tensor_born_in_the_slot(pair: Pair) -> None:
    with (
        pair.right.recv_slot("acts", (100, 7), "int16", src=pair.to_left) as slot,
        pair.to_right.send_slot("acts", (100, 7), "int16") as out,
    ):
        for step in range(20):
            place = out.buffer(timeout_s=5)
            assert (place.shape, place.dtype) == ((100, 7), np.int16)
            place[:] = step
            with pytest.raises(BusyError):
                out.buffer(timeout_s=1)
            out.post()
            with slot.get(timeout_s=5) as got:
                assert (got == step).all()
        with pytest.raises(InvalidArgumentError, match="buffer"):
            out.post()


def test_bounded_slot_carries_the_actual_shape(pair: Pair) -> None:
    with (
        pair.right.recv_slot("b", (16, 8), "float64", src=pair.to_left, kind="bounded") as slot,
        pair.to_right.send_slot("b", (16, 8), "float64", kind="bounded") as out,
    ):
        for dims in ((16, 8), (1, 8), (16, 1), (0, 8), (3, 5)):
            sent = np.random.default_rng(5).random(dims)
            out.put(sent, timeout_s=5)
            with slot.get(timeout_s=5) as got:
                assert got.shape == dims
                assert (got == sent).all()
        out.buffer((2, 3), timeout_s=5)[:] = 4
        out.post()
        with slot.get(timeout_s=5) as got:
            assert got.shape == (2, 3)
            assert (got == 4).all()
        for wrong in ((17, 8), (16, 9)):
            with pytest.raises(MismatchError):
                out.put(np.zeros(wrong), timeout_s=1)
            with pytest.raises(MismatchError):
                out.buffer(wrong, timeout_s=1)


def test_dynamic_slot_takes_any_shape(pair: Pair) -> None:
    with (
        pair.right.recv_slot("d", (0, 0), "float64", src=pair.to_left, kind="dynamic") as slot,
        pair.to_right.send_slot("d", (0, 0), "float64", kind="dynamic") as out,
        ThreadPoolExecutor(1) as sender,
    ):
        for dims in ((1, 1), (1000, 300), (0, 3), (7, 1)):
            private = np.random.default_rng(6).random(dims)
            born = pair.left.empty(dims, "float64")
            born[:] = private
            for sent in (private, born):
                job = sender.submit(lambda sent=sent: out.put(sent, timeout_s=10).wait(10))
                with slot.get(timeout_s=10) as got:
                    assert got.shape == dims
                    assert (got == sent).all()
                job.result(10)
        with pytest.raises(NotSupportedError):
            out.buffer(timeout_s=1)


@pytest.mark.timeout(120)
def test_a_large_dynamic_tensor_outlasts_a_slice_of_the_wait(pair: Pair) -> None:
    with (
        pair.right.recv_slot("d", (0,), "uint8", src=pair.to_left, kind="dynamic") as slot,
        pair.to_right.send_slot("d", (0,), "uint8", kind="dynamic") as out,
    ):
        sent = pair.left.empty(512 << 20, "uint8")
        sent[:] = np.arange(251, dtype=np.uint8).repeat((512 << 20) // 251 + 1)[: 512 << 20]
        transfer = out.put(sent, timeout_s=5)
        with slot.get(timeout_s=60) as got:
            assert (got == sent).all()
        transfer.wait(10)


def test_one_array_is_put_into_dynamic_slots_again_and_again(pair: Pair) -> None:
    array = np.arange(5000, dtype=np.float32)
    with (
        pair.right.recv_slot("a", (0,), "float32", src=pair.to_left, kind="dynamic") as first,
        pair.right.recv_slot("b", (0,), "float32", src=pair.to_left, kind="dynamic") as second,
        pair.to_right.send_slot("a", (0,), "float32", kind="dynamic") as to_first,
        pair.to_right.send_slot("b", (0,), "float32", kind="dynamic") as to_second,
    ):
        sends = [to_first.put(array), to_second.put(array), to_first.put(array)]
        for slot, sent in zip((first, second, first), sends, strict=True):
            with slot.get(timeout_s=5) as got:
                assert (got == array).all()
            sent.wait(timeout_s=5)


def test_a_dynamic_put_that_is_taken_back_harms_nobody(pair: Pair) -> None:
    with pair.right.recv_slot("d", (0,), "uint8", src=pair.to_left, kind="dynamic") as slot:
        out = pair.to_right.send_slot("d", (0,), "uint8", kind="dynamic")
        sent = out.put(np.full(64 << 20, 7, np.uint8))
        held = None
        with contextlib.suppress(TransferTimeoutError):  # then it is being read now
            held = slot.get(timeout_s=0.002)
        out.close()
        with pytest.raises(ClosedError):
            sent.wait(timeout_s=20)  # and its array is unmapped
        with contextlib.suppress(StaleRegionError):
            held = held or slot.get(timeout_s=20)
        if held is not None:
            assert (held.array == 7).all()
            held.release()
    landing = pair.right.empty(4, "float64")
    pair.to_right.write(np.ones(4), pair.right.export(landing)).wait(timeout_s=5)


@pytest.mark.parametrize("dtype", DTYPE_NAMES)
def test_every_dtype(pair: Pair, dtype: str) -> None:
    with (
        pair.right.recv_slot("t", (4,), dtype, src=pair.to_left) as slot,
        pair.to_right.send_slot("t", (4,), dtype) as out,
    ):
        place = out.buffer(timeout_s=5)
        place.view(np.uint8)[:] = np.arange(place.nbytes) % 2
        out.post()
        with slot.get(timeout_s=5) as got:
            assert got.dtype == place.dtype
            assert (got.view(np.uint8) == np.arange(got.nbytes) % 2).all()


@pytest.mark.parametrize(
    ("shape", "dtype", "kind"),
    [((4, 4), "float64", "static"), ((4, 5), "float32", "static"), ((16,), "float32", "static"),
     ((4, 4), "float32", "bounded")],
)  # fmt: skip
def test_mismatch_is_an_error_on_both_sides(
    pair: Pair, shape: tuple[int, ...], dtype: str, kind: str
) -> None:
    with pair.right.recv_slot("m", (4, 4), "float32", src=pair.to_left) as slot:
        send: Any = pair.to_right.send_slot
        with pytest.raises(MismatchError, match="'m'") as sender:
            send("m", shape, dtype, kind=kind, timeout_s=5)
        with pytest.raises(MismatchError, match="'m'") as receiver:
            slot.get(timeout_s=5)
        assert (sender.value.rank, receiver.value.rank) == (1, 0)


def test_the_first_tensor_put_describes_the_slot(pair: Pair) -> None:
    with (
        pair.right.recv_slot("m", (4, 4), "float32", src=pair.to_left),
        pair.to_right.send_slot("m") as out,
    ):
        with pytest.raises(InvalidArgumentError, match="shape"):
            out.buffer()
        with pytest.raises(MismatchError):
            out.put(np.zeros((4, 4)), timeout_s=5)  # float64
    for wrong in ({"dtype": "float32"}, {"kind": "bounded"}):
        with pytest.raises(InvalidArgumentError):
            pair.to_right.send_slot("m", **wrong)  # type: ignore[arg-type]


def test_a_tensor_of_another_dtype_or_shape_is_refused_later_too(pair: Pair) -> None:
    with (
        pair.right.recv_slot("m", (4,), "float32", src=pair.to_left) as slot,
        pair.to_right.send_slot("m", (4,), "float32") as out,
    ):
        for wrong in (np.zeros(4), np.zeros(5, np.float32), np.zeros((2, 2), np.float32)):
            with pytest.raises(MismatchError):
                out.put(wrong, timeout_s=1)
        out.put(np.ones(4, np.float32))
        with slot.get(timeout_s=5) as got:
            assert got.all()


def test_a_slot_that_nobody_announces_is_a_time_out_by_name(pair: Pair) -> None:
    with pytest.raises(TransferTimeoutError, match=r"'nobody' within 0\.300 s"):
        pair.to_right.send_slot("nobody", (1,), "float32", timeout_s=0.3)


def test_a_slot_that_is_closed_ends_the_other_side(pair: Pair) -> None:
    slot = pair.right.recv_slot("s", (4,), src=pair.to_left)
    out = pair.to_right.send_slot("s", (4,), "float32")
    out.put(np.ones(4, np.float32)).wait()
    slot.close()
    slot.close()
    with pytest.raises(ClosedError):
        slot.get()
    with pytest.raises(RdmaTensorError, match="'s'"):
        _put_until_refused(out)
    out.close()


def _put_until_refused(out: SlotSender) -> None:
    for _ in range(3):  # two credits at most
        out.put(np.ones(4, np.float32), timeout_s=5)


def test_what_arrived_before_the_sender_left_is_still_delivered(pair: Pair) -> None:
    with pair.right.recv_slot("s", (4,), src=pair.to_left) as slot:
        with pair.to_right.send_slot("s", (4,), "float32") as out:
            out.put(np.full(4, 8, np.float32)).wait()
        pair.left.close()
        with slot.get(timeout_s=5) as got:
            assert (got == 8).all()
        with pytest.raises(PeerError, match="rank 0"):
            slot.get(timeout_s=5)


def test_slots_of_one_name_are_apart_by_peer_and_names_are_reused(pair: Pair) -> None:
    for round_ in range(5):
        with (
            pair.right.recv_slot("same", (1,), src=pair.to_left) as right_slot,
            pair.left.recv_slot("same", (1,), src=pair.to_right) as left_slot,
            pair.to_right.send_slot("same", (1,), "float32") as to_right,
            pair.to_left.send_slot("same", (1,), "float32") as to_left,
        ):
            to_right.put(np.full(1, round_, np.float32))
            to_left.put(np.full(1, -round_, np.float32))
            with right_slot.get(timeout_s=5) as right, left_slot.get(timeout_s=5) as left:
                assert (right[0], left[0]) == (round_, -round_)


@pytest.mark.parametrize("name", ["", "x" * 128, "a\0b"])
def test_names_that_are_refused(pair: Pair, name: str) -> None:
    with pytest.raises(InvalidArgumentError):
        pair.right.recv_slot(name, (1,), src=pair.to_left)
    with pytest.raises(InvalidArgumentError):
        pair.to_right.send_slot(name, (1,), "float32")


def test_descriptions_that_are_refused(pair: Pair) -> None:
    for shape in ((1,) * 9, (-1,), (1.5,), (2**62,), (2**40, 2**40)):
        with pytest.raises(InvalidArgumentError):
            pair.right.recv_slot("x", shape, src=pair.to_left)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="dtype"):
        pair.right.recv_slot("x", (1,), "float8", src=pair.to_left)
    with pytest.raises(InvalidArgumentError, match="join"):
        pair.right.recv_slot("x", (1,), src=0)


def test_a_steady_slot_sends_no_control_message(pair: Pair) -> None:
    with (
        pair.right.recv_slot("s", (256,), src=pair.to_left) as slot,
        pair.to_right.send_slot("s", (256,), "float32") as out,
    ):
        before = None
        for step in range(60):
            if step == 10:
                before = (pair.left.counters(), pair.right.counters())
            out.put(np.full(256, step, np.float32), timeout_s=5).wait()
            with slot.get(timeout_s=5) as got:
                assert got[0] == step
        assert before is not None
        after = (pair.left.counters(), pair.right.counters())
        for early, late in zip(before, after, strict=True):
            assert late.control_messages == early.control_messages
            assert late.copied_bytes == early.copied_bytes
        assert after[0].moved_bytes - before[0].moved_bytes == 50 * 1024


def test_what_a_slot_gives_is_an_array(pair: Pair) -> None:
    with (
        pair.right.recv_slot("s", (2, 3), src=pair.to_left) as slot,
        pair.to_right.send_slot("s", (2, 3)) as out,
    ):
        out.put(np.arange(6, dtype=np.float32).reshape(2, 3)).wait()
        received = slot.get(timeout_s=10)
        assert np.shares_memory(np.asarray(received), received.array)
        assert not np.shares_memory(np.array(received, copy=True), received.array)
        assert np.asarray(received, np.float64).dtype == np.float64
        assert np.from_dlpack(received).sum() == 15  # type: ignore[arg-type]
        with pytest.raises(AttributeError, match=r"no attribute 'mean': the numpy array is its"):
            received.mean()
        assert not hasattr(received, "__len__")
        received.release()


@pytest.mark.parametrize("end", ["released", "closed"])
def test_memory_that_is_the_sender_s_again_is_not_given(pair: Pair, end: str) -> None:
    slot = pair.right.recv_slot("s", 2, src=pair.to_left)
    sender = pair.to_right.send_slot("s", 2)
    sender.put(np.ones(2, np.float32)).wait()
    received = slot.get(timeout_s=10)
    assert received.array.sum() == 2
    if end == "released":
        received.release()
    else:
        slot.close()
    for use in (
        lambda: received.array,
        lambda: np.asarray(received),
        received.__dlpack__,
        lambda: received.tensor,
        received.__enter__,
    ):
        with pytest.raises(ClosedError, match=end):
            use()
    sender.close()
    slot.close()


def test_sizes_one_by_one_are_refused(pair: Pair) -> None:
    with pytest.raises(InvalidArgumentError, match=r"empty\(2, 3\): give the shape as one tuple"):
        pair.left.empty(2, 3)  # type: ignore[arg-type]
