"""One-sided writes and reads: bytes, order, ranges, refusals."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from pairs import Pair

from rdmatensor import InvalidArgumentError, TransferTimeoutError, WriteBatch

SIZES = [0, 1, 7, 64, 4096, 65_537, 3_000_001]


@pytest.mark.parametrize("len_bytes", SIZES)
def test_write_puts_every_byte_in_place_before_the_notification(pair: Pair, len_bytes: int) -> None:
    src = np.random.default_rng(1).integers(0, 256, len_bytes, dtype=np.uint8)
    dst = pair.right.zeros(len_bytes + 100, "uint8")
    transfer = pair.to_right.write(src, pair.right.export(dst), dst_offset_bytes=37, notify=9)
    assert pair.to_left.wait_notify(timeout_s=10) == 9
    assert (dst[37 : 37 + len_bytes] == src).all()
    assert not dst[:37].any()
    assert not dst[37 + len_bytes :].any()
    transfer.wait()
    assert transfer.done()


@pytest.mark.parametrize("len_bytes", SIZES)
def test_read_fetches_every_byte(pair: Pair, len_bytes: int) -> None:
    theirs = pair.right.empty(len_bytes + 10, "uint8")
    theirs[:] = np.random.default_rng(2).integers(0, 256, len_bytes + 10, dtype=np.uint8)
    got = np.zeros(len_bytes, np.uint8)
    pair.to_right.read(got, pair.right.export(theirs), src_offset_bytes=10).wait()
    assert (got == theirs[10:]).all()


def test_arena_to_arena(pair: Pair) -> None:
    src = pair.left.empty((256, 1024), "float64")
    src[:] = np.arange(256 * 1024).reshape(256, 1024)
    dst = pair.right.zeros((256, 1024), "float64")
    pair.to_right.write(src, pair.right.export(dst)).wait()
    assert (dst == src).all()


def test_notifications_come_in_the_order_of_the_writes(pair: Pair) -> None:
    dst = pair.right.zeros(1000, "int64")
    region = pair.right.export(dst)
    for step in range(1000):
        pair.to_right.write(np.array([step]), region, dst_offset_bytes=8 * step, notify=step * 100)
    for step in range(1000):
        assert pair.to_left.wait_notify(timeout_s=10) == step * 100
        assert dst[step] == step


def test_notify_alone_comes_after_what_was_written_before(pair: Pair) -> None:
    dst = pair.right.zeros(100_000, "float32")
    region = pair.right.export(dst)
    pair.to_right.write(np.ones(100_000, np.float32), region)
    pair.to_right.notify(2**18 - 1, region)
    assert pair.to_left.wait_notify(timeout_s=10) == 2**18 - 1
    assert dst.all()


@pytest.mark.parametrize("empty", [[], (), WriteBatch([])], ids=["list", "tuple", "WriteBatch"])
def test_write_many_of_nothing_is_its_notification(
    pair: Pair, empty: WriteBatch | list[tuple[bytes, int]]
) -> None:
    array = pair.right.zeros(4)
    transfer = pair.to_right.write_many(empty, pair.right.export(array), notify=9)
    transfer.wait()
    assert pair.to_left.wait_notify() == 9
    assert array.tolist() == [0.0] * 4


def test_write_many_is_one_notification_for_all_blocks(pair: Pair) -> None:
    blocks = [np.full(50 + index, index, np.uint8) for index in range(200)]
    offsets = np.cumsum([0] + [len(block) for block in blocks])[:-1].tolist()
    dst = pair.right.zeros(sum(map(len, blocks)), "uint8")
    rows = list(zip(blocks, offsets, strict=True))[::-1]
    pair.to_right.write_many(rows, pair.right.export(dst), notify=3)
    assert pair.to_left.wait_notify(timeout_s=10) == 3
    assert (dst == np.concatenate(blocks)).all()
    with pytest.raises(TransferTimeoutError):
        pair.to_left.wait_notify(timeout_s=0)


def test_blocks_of_parts_are_the_same_as_a_list(pair: Pair) -> None:
    src = pair.left.empty(64 * 100, "uint8")
    src[:] = np.random.default_rng(3).integers(0, 256, 6400, dtype=np.uint8)
    dst = pair.right.zeros(64 * 100, "uint8")
    order = np.random.default_rng(4).permutation(100)
    blocks = WriteBatch.of_parts(src, 64, order * 64, np.arange(100) * 64)
    for _ in range(2):  # made once, written often
        dst[:] = 0
        pair.to_right.write_many(blocks, pair.right.export(dst), notify=1)
        pair.to_left.wait_notify(timeout_s=10)
        assert (dst.reshape(100, 64) == src.reshape(100, 64)[order]).all()


def test_blocks_that_leave_the_source_are_refused() -> None:
    src = np.zeros(100, np.uint8)
    for starts, goals in ([91], [0]), ([-1], [0]), ([0], [-1]), ([0, 1], [0]):
        with pytest.raises(InvalidArgumentError):
            WriteBatch.of_parts(src, 10, starts, goals)
    with pytest.raises(InvalidArgumentError):
        WriteBatch([(src, -1)])


def test_prepared_write_posts_what_is_in_the_source_now(pair: Pair) -> None:
    src, dst = np.zeros(4, np.int32), pair.right.zeros(4, "int32")
    prepared = pair.to_right.prepare_write(src, pair.right.export(dst), notify=1)
    for step in range(5):
        src[:] = step
        prepared.post().wait()
        assert pair.to_left.wait_notify(timeout_s=10) == 1
        assert (dst == step).all()
    prepared.post(77).wait()
    assert pair.to_left.wait_notify(timeout_s=10) == 77


def test_ranges_that_leave_the_region_are_refused_and_write_nothing(pair: Pair) -> None:
    dst = pair.right.zeros(100, "uint8")
    region = pair.right.export(dst)
    src = np.ones(10, np.uint8)
    for offset in (91, 100, 101, 2**63, 2**64 - 5, -1):
        with pytest.raises(InvalidArgumentError):
            pair.to_right.write(src, region, dst_offset_bytes=offset)
        with pytest.raises(InvalidArgumentError):
            pair.to_right.read(src, region, src_offset_bytes=offset)
    with pytest.raises(InvalidArgumentError):
        pair.to_right.write_many([(src, 0), (src, 91)], region)
    assert not dst.any()
    assert (src == 1).all()
    pair.to_right.write(src, region, dst_offset_bytes=90).wait()  # the last that fits
    assert dst[90:].all()


@pytest.mark.parametrize("notification", [-1, 2**18, 2**40])
def test_notifications_have_18_bits(pair: Pair, notification: int) -> None:
    region = pair.right.export(pair.right.zeros(8))
    with pytest.raises(InvalidArgumentError, match="18 bits"):
        pair.to_right.write(b"x", region, notify=notification)


def test_a_region_of_another_process_is_refused(pair: Pair) -> None:
    ours = pair.left.zeros(8)
    with pytest.raises(InvalidArgumentError, match="another process"):
        pair.to_right.write(b"x", pair.left.export(ours))


def test_tensors_that_cannot_be_moved_whole_are_refused(pair: Pair) -> None:
    dst = pair.right.zeros(100)
    region = pair.right.export(dst)
    refused = [
        np.zeros((10, 10), np.float32)[:, ::2],
        np.zeros((4, 5), np.float32).T,
        np.array([object()]),
        "text",
        [1, 2, 3],
    ]
    for tensor in refused:
        with pytest.raises(InvalidArgumentError):
            pair.to_right.write(tensor, region)  # type: ignore[arg-type]
    frozen = np.zeros(4)
    frozen.flags.writeable = False
    for into in (frozen, b"frozen"):
        with pytest.raises(InvalidArgumentError):
            pair.to_right.read(into, region)
    assert not dst.any()


def test_everything_with_the_buffer_protocol_is_accepted(pair: Pair) -> None:
    dst = pair.right.zeros(6, "uint8")
    region = pair.right.export(dst)
    for src in (b"abcdef", bytearray(b"abcdef"), memoryview(b"abcdef")):
        dst[:] = 0
        pair.to_right.write(src, region).wait()
        assert bytes(dst) == b"abcdef"
    into = bytearray(6)
    pair.to_right.read(into, region).wait()
    assert into == b"abcdef"


def test_a_pickled_region_is_as_good(pair: Pair) -> None:
    dst = pair.right.zeros(8, "uint8")
    region = pickle.loads(pickle.dumps(pair.right.export(dst)))
    pair.to_right.write(b"12345678", region).wait()
    assert bytes(dst) == b"12345678"


def test_wait_notify_has_a_deadline_and_names_the_peer(pair: Pair) -> None:
    with pytest.raises(TransferTimeoutError, match=r"rank 0 within 0\.250 s") as caught:
        pair.to_left.wait_notify(timeout_s=0.25)
    assert caught.value.rank == 0
    for wrong in (-1, float("inf"), float("nan"), 1e30):
        with pytest.raises(InvalidArgumentError, match="timeout_s"):
            pair.to_left.wait_notify(timeout_s=wrong)


def test_counters_tell_one_write_and_no_copy(pair: Pair) -> None:
    src, dst = pair.left.zeros(1000), pair.right.zeros(1000)
    region = pair.right.export(dst)
    pair.to_right.write(src, region, notify=1).wait()
    pair.to_left.wait_notify()
    before, theirs = pair.left.counters(), pair.right.counters()
    for _ in range(10):
        pair.to_right.write(src, region, notify=1).wait()
        pair.to_left.wait_notify(timeout_s=10)
    after, theirs_after = pair.left.counters(), pair.right.counters()
    assert after.writes - before.writes == 10
    assert theirs_after.notifications - theirs.notifications == 10
    assert after.moved_bytes - before.moved_bytes == 10 * 4000
    assert after.copied_bytes == before.copied_bytes
    assert after.control_messages == before.control_messages
    if pair.to_right.transport == "tcp":
        assert (after.wire_bytes - before.wire_bytes) / 10 <= 4000 + 32
