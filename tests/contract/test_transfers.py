"""Transfers: waiting, awaiting, polling, dropping, closing."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import select
import signal
import threading
import time
import warnings
from collections.abc import Iterator

import numpy as np
import pytest
from pairs import Pair

from rdmatensor import (
    ClosedError,
    Context,
    RemoteRegion,
    Settings,
    StaleRegionError,
    TransferTimeoutError,
)

LARGE = 32 << 20


def _target(context: Context, len_bytes: int) -> tuple[np.ndarray, RemoteRegion]:
    array = context.zeros(len_bytes, "uint8")
    return array, context.export(array)


def _stale_region(context: Context) -> RemoteRegion:
    return context.export(context.zeros(100))  # the array goes as this returns


def test_wait_and_done_say_the_same_again_and_again(pair: Pair) -> None:
    _, region = _target(pair.right, 1000)
    transfer = pair.to_right.write(b"x" * 1000, region)
    transfer.wait()
    transfer.wait(timeout_s=0)
    assert transfer.done()
    assert "done" in repr(transfer)


def test_an_error_is_raised_at_each_wait(pair: Pair) -> None:
    region = _stale_region(pair.right)
    pair.hear_of_the_end()
    with pytest.raises(StaleRegionError):
        pair.to_right.write(b"x", region).wait()
    if pair.to_right.transport == "tcp":  # there the target says so, later
        transfer = pair.to_right.write(b"x", region)
        for _ in range(2):
            with pytest.raises(StaleRegionError):
                transfer.wait()
        assert transfer.done()
        assert "failed" in repr(transfer)


def test_a_failed_transfer_that_nobody_looked_at_is_told(pair: Pair) -> None:
    region = _stale_region(pair.right)
    if pair.to_right.transport != "tcp":  # refused when it is posted: nobody can overlook that
        pair.hear_of_the_end()
        with pytest.raises(StaleRegionError):
            pair.to_right.write(b"x", region)
        return
    array, good = _target(pair.right, 8)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        pair.to_right.write(b"x", region)
        pair.to_right.write(b"12345678", good).wait()
        deadline_s = time.monotonic() + 5
        while not caught and time.monotonic() < deadline_s:
            pair.left.progress()
    assert any("a dropped transfer failed" in str(warning.message) for warning in caught)
    assert bytes(array) == b"12345678"


def test_a_failure_that_was_seen_and_not_asked_for_is_told_too(pair: Pair) -> None:
    if pair.to_right.transport != "tcp":
        return
    region = _stale_region(pair.right)
    for is_asked in (True, False):
        transfer = pair.to_right.write(b"x", region)
        deadline_s = time.monotonic() + 5
        while not transfer.done():
            assert time.monotonic() < deadline_s
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            if is_asked:
                with pytest.raises(StaleRegionError):
                    transfer.wait()
            del transfer
            gc.collect()
        assert any("a dropped transfer failed" in str(each.message) for each in caught) != is_asked


def test_done_drives_the_engine_by_itself(pair: Pair) -> None:
    _, region = _target(pair.right, LARGE)
    transfer = pair.to_right.write(np.ones(LARGE, np.uint8), region)
    deadline_s = time.monotonic() + 20
    while not transfer.done():
        assert time.monotonic() < deadline_s


def test_sources_of_dropped_transfers_stay_until_they_are_sent(pair: Pair) -> None:
    arrays, regions = zip(*(_target(pair.right, 1 << 20) for _ in range(16)), strict=True)
    for index, region in enumerate(regions):
        pair.to_right.write(np.full(1 << 20, index, np.uint8), region, notify=index)
        gc.collect()
        np.full(1 << 20, 99, np.uint8)  # would take the place of a source that went too early
    for index, array in enumerate(arrays):
        assert pair.to_left.wait_notify(timeout_s=10) == index
        assert (array == index).all()


def test_await_alone_and_in_numbers(pair: Pair) -> None:
    array, region = _target(pair.right, LARGE)

    async def run() -> None:
        await pair.to_right.write(np.full(LARGE, 3, np.uint8), region)
        assert (array == 3).all()
        transfers = [
            pair.to_right.write(
                np.full(1000, index, np.uint8), region, dst_offset_bytes=1000 * index
            )
            for index in range(200)
        ]
        await asyncio.gather(*transfers)
        assert (array[:200_000].reshape(200, 1000) == np.arange(200)[:, None]).all()
        stale = _stale_region(pair.right)
        pair.hear_of_the_end()
        with pytest.raises(StaleRegionError):
            await pair.to_right.write(b"x", stale)

    for _ in range(3):  # each with an event loop of its own
        asyncio.run(asyncio.wait_for(run(), 20))


def test_await_does_not_hold_the_loop(pair: Pair) -> None:
    """A receive that nobody answers is awaited while another task runs, and is cancelled."""
    slot = pair.right.recv_slot("d", (0,), "uint8", src=pair.to_left, kind="dynamic")
    out = pair.to_right.send_slot("d", (0,), "uint8", kind="dynamic")

    async def run() -> int:
        transfer = out.put(np.zeros(10, np.uint8))  # done when it is got, which nobody does yet
        steps = 0

        async def count() -> None:
            nonlocal steps
            while True:
                steps += 1
                await asyncio.sleep(0.01)

        counter = asyncio.ensure_future(count())
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(_awaited(transfer), 0.3)
        slot.get(timeout_s=5).release()
        await asyncio.wait_for(_awaited(transfer), 5)  # again, after it was cancelled
        counter.cancel()
        return steps

    assert asyncio.run(run()) >= 10
    out.close()
    slot.close()


async def _awaited(transfer: object) -> None:
    await transfer  # type: ignore[misc]


def test_await_has_the_context_s_deadline(settings: Settings) -> None:
    from dataclasses import replace

    short = replace(settings, timeout_s=0.5)
    with Context(short) as left, Context(short) as right:
        left.add_job()
        right.add_job()
        to_right, to_left = left.connect(right.address, rank=1), right.connect(left.address, rank=0)
        with (
            right.recv_slot("d", (0,), "uint8", src=to_left, kind="dynamic"),
            to_right.send_slot("d", (0,), "uint8", kind="dynamic") as out,
        ):
            transfer = out.put(np.zeros(10, np.uint8))
            with pytest.raises(TransferTimeoutError, match="'d'"):
                asyncio.run(_awaited(transfer))


def test_the_descriptor_wakes_a_loop_of_the_user_s(pair: Pair) -> None:
    _, region = _target(pair.right, 100)
    poller = select.poll()
    poller.register(pair.right.fileno(), select.POLLIN)
    for step in range(20):
        threading.Timer(
            0.02, lambda step=step: pair.to_right.write(b"x", region, notify=step)
        ).start()
        deadline_s = time.monotonic() + 5
        while True:
            assert poller.poll(5000), "nothing rang"
            pair.right.progress()
            with contextlib.suppress(TransferTimeoutError):
                assert pair.to_left.wait_notify(timeout_s=0) == step
                break
            assert time.monotonic() < deadline_s


def test_a_transfer_can_be_given_to_a_poll_loop(pair: Pair) -> None:
    slot = pair.right.recv_slot("d", (0,), "uint8", src=pair.to_left, kind="dynamic")
    out = pair.to_right.send_slot("d", (0,), "uint8", kind="dynamic")
    for _ in range(5):  # the descriptors are used again
        transfer = out.put(np.zeros(10, np.uint8))  # done when it is got
        assert select.select([transfer], [], [], 0.05)[0] == []
        assert not transfer.done()
        slot.get(timeout_s=5).release()
        deadline_s = time.monotonic() + 5
        while not transfer.done():
            assert time.monotonic() < deadline_s
            assert select.select([transfer], [], [], 5)[0] == [transfer]
        assert select.select([transfer], [], [], 0)[0] == [transfer], "it stays readable"
    _, region = _target(pair.right, 1)
    over = pair.to_right.write(b"x", region)
    over.wait()
    assert select.select([over], [], [], 0)[0] == [over]
    out.close()
    slot.close()


def test_a_descriptor_outlives_its_transfer_s_context(pair: Pair) -> None:
    slot = pair.right.recv_slot("d", (0,), "uint8", src=pair.to_left, kind="dynamic")
    out = pair.to_right.send_slot("d", (0,), "uint8", kind="dynamic")
    transfer = out.put(np.zeros(10, np.uint8))
    descriptor = transfer.fileno()
    pair.left.close()
    assert select.select([transfer], [], [], 0)[0] == [transfer]
    with pytest.raises(ClosedError):
        transfer.wait()
    out.close()
    slot.close()
    del transfer
    gc.collect()  # its error's traceback holds it
    with pytest.raises(OSError):  # noqa: PT011 - EBADF
        os.fstat(descriptor)


class Interrupted(Exception):
    pass


@pytest.fixture
def interrupt_soon() -> Iterator[None]:
    """As Ctrl-C would: a handler that raises, 0.2 s from now. SIGALRM is pytest-timeout's."""

    def handler(*_: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGUSR1, handler)
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGUSR1))
    timer.start()
    yield
    timer.join()
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.usefixtures("interrupt_soon")
@pytest.mark.parametrize("call", ["notify", "slot", "open"])
def test_a_signal_ends_a_wait_promptly(pair: Pair, call: str) -> None:
    start_s = time.monotonic()
    with pair.right.recv_slot("never", (1,), src=pair.to_left) as slot:
        waits = {
            "notify": pair.to_left.wait_notify,
            "slot": slot.get,
            "open": lambda: pair.to_right.send_slot("nobody", (1,), "float32"),
        }
        with pytest.raises(Interrupted):
            waits[call]()
    assert time.monotonic() - start_s < 1.0


def test_close_makes_a_waiting_thread_raise_closed(pair: Pair) -> None:
    seen: list[BaseException] = []

    def wait() -> None:
        try:
            pair.to_left.wait_notify()
        except ClosedError as error:
            seen.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.05)
    pair.right.close()
    thread.join(5)
    assert not thread.is_alive()
    assert len(seen) == 1


def test_a_transfer_in_flight_at_close_ends_as_closed(pair: Pair) -> None:
    slot = pair.right.recv_slot("d", (0,), "uint8", src=pair.to_left, kind="dynamic")
    out = pair.to_right.send_slot("d", (0,), "uint8", kind="dynamic")
    transfer = out.put(np.zeros(10, np.uint8))
    pair.left.close()
    with pytest.raises(ClosedError):
        transfer.wait()
    for call in (pair.to_right.wait_notify, pair.left.describe, lambda: pair.left.empty(1)):
        with pytest.raises(ClosedError):
            call()
    out.close()
    slot.close()


def test_arrays_outlive_their_context(pair: Pair) -> None:
    array = pair.left.zeros(1000)
    with (
        pair.left.recv_slot("s", (10,), src=pair.to_right) as slot,
        pair.to_left.send_slot("s", (10,), "float32") as out,
    ):
        out.put(np.full(10, 7, np.float32))
        held = slot.get(timeout_s=5)
        kept = held.array
    pair.left.close()
    pair.left.close()
    array[:] = 5
    assert (array == 5).all()
    assert (kept == 7).all()
    with pytest.raises(ClosedError, match="the slot was closed"):
        _ = held.array
    del array, held
    gc.collect()
