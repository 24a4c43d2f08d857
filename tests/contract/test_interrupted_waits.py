"""Waits that a signal handler or a finalizer interrupts with calls of its own."""

from __future__ import annotations

import gc
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from pairs import Pair

from rdmatensor import ClosedError, Transfer, TransferTimeoutError

FULL = np.arange(32, dtype=np.float32).reshape(4, 8)


@contextmanager
def signal_soon(handler: Callable[[], object], after_s: float = 0.25) -> Iterator[list[str]]:
    """Call handler once, from a signal, during a wait of this block; yields what it has to tell."""
    ran: list[str] = []

    def run(*_: object) -> None:
        handler()
        ran.append("handler")

    before = signal.signal(signal.SIGALRM, run)
    signal.setitimer(signal.ITIMER_REAL, after_s)
    try:
        yield ran
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert ran == ["handler"], "the wait was over before the signal came"


def test_a_put_that_waits_sends_its_own_shape(pair: Pair) -> None:
    with (
        pair.right.recv_slot("s", (4, 8), src=pair.to_left, kind="bounded") as slot,
        pair.right.recv_slot("o", (9, 9), src=pair.to_left, kind="bounded") as other,
        pair.to_right.send_slot("s", (4, 8), "float32", kind="bounded") as out,
        pair.to_right.send_slot("o", (9, 9), "float32", kind="bounded") as other_out,
    ):
        out.put(FULL, timeout_s=5).wait()
        out.put(FULL, timeout_s=5).wait()

        def handler() -> None:
            other_out.put(np.zeros((2, 3), np.float32), timeout_s=5).wait()
            with slot.get(timeout_s=5):
                pass  # the credit that the third put waits for

        with signal_soon(handler):
            out.put(FULL, timeout_s=5).wait()
        for _ in range(2):
            with slot.get(timeout_s=5) as got:
                assert np.array_equal(got, FULL)
        with other.get(timeout_s=5) as got:
            assert got.shape == (2, 3)


def test_a_get_that_waits_returns_its_own_view(pair: Pair) -> None:
    with (
        pair.right.recv_slot("s", (4, 8), src=pair.to_left, kind="bounded") as slot,
        pair.right.recv_slot("o", (9, 9), src=pair.to_left, kind="bounded") as other,
        pair.to_right.send_slot("s", (4, 8), "float32", kind="bounded") as out,
        pair.to_right.send_slot("o", (9, 9), "float32", kind="bounded") as other_out,
    ):

        def handler() -> None:
            out.put(FULL, timeout_s=5).wait()
            other_out.put(np.zeros((2, 3), np.float32), timeout_s=5).wait()
            with other.get(timeout_s=5) as got:
                assert got.shape == (2, 3)

        with signal_soon(handler), slot.get(timeout_s=5) as got:
            assert np.array_equal(got, FULL)


def test_a_finalizer_changes_nothing_of_a_put_that_waits(pair: Pair) -> None:
    """Garbage is collected between the slices of a wait, and what is dropped may send."""

    class Farewell:
        def __init__(self) -> None:
            self.myself = self  # a cycle, which only the collector frees

        def __del__(self) -> None:
            other_out.put(np.zeros((2, 3), np.float32), timeout_s=5).wait()
            with slot.get(timeout_s=5):
                pass

    with (
        pair.right.recv_slot("s", (4, 8), src=pair.to_left, kind="bounded") as slot,
        pair.right.recv_slot("o", (9, 9), src=pair.to_left, kind="bounded") as other,
        pair.to_right.send_slot("s", (4, 8), "float32", kind="bounded") as out,
        pair.to_right.send_slot("o", (9, 9), "float32", kind="bounded") as other_out,
    ):
        out.put(FULL, timeout_s=5).wait()
        out.put(FULL, timeout_s=5).wait()
        Farewell()
        with signal_soon(gc.collect):
            out.put(FULL, timeout_s=5).wait()
        for _ in range(2):
            with slot.get(timeout_s=5) as got:
                assert np.array_equal(got, FULL)
        with other.get(timeout_s=5) as got:
            assert got.shape == (2, 3)


def test_a_wait_for_a_notification_returns_its_own(pair: Pair) -> None:
    there, here = pair.right.zeros(8), pair.left.zeros(8)
    region, back = pair.right.export(there), pair.left.export(here)

    def handler() -> None:
        pair.to_left.notify(7, back).wait()
        assert pair.to_right.wait_notify(timeout_s=5) == 7
        pair.to_right.notify(3, region).wait()

    with signal_soon(handler):
        assert pair.to_left.wait_notify(timeout_s=5) == 3


def test_an_error_of_a_wait_keeps_its_own_words(pair: Pair) -> None:
    with (
        pair.right.recv_slot("s", 4, src=pair.to_left),
        pair.right.recv_slot("o", 4, src=pair.to_left),
        pair.to_right.send_slot("s", 4) as out,
        pair.to_right.send_slot("o", 4) as other_out,
    ):
        tensor = np.zeros(4, np.float32)
        for sender in (out, out, other_out, other_out):
            sender.put(tensor, timeout_s=5).wait()

        def handler() -> None:
            with pytest.raises(TransferTimeoutError, match="'o'"):
                other_out.put(tensor, timeout_s=0.05)

        with signal_soon(handler), pytest.raises(TransferTimeoutError, match="'s'"):
            out.put(tensor, timeout_s=0.35)


def test_a_handler_that_closes_the_slot_ends_its_put(pair: Pair) -> None:
    with (
        pair.right.recv_slot("s", 4, src=pair.to_left),
        pair.to_right.send_slot("s", 4) as out,
    ):
        tensor = np.zeros(4, np.float32)
        for _ in range(2):
            out.put(tensor, timeout_s=5).wait()
        with signal_soon(out.close), pytest.raises(ClosedError):
            out.put(tensor, timeout_s=5)


def test_a_handler_that_closes_the_slot_ends_its_get(pair: Pair) -> None:
    slot = pair.right.recv_slot("s", 4, src=pair.to_left)
    with signal_soon(slot.close), pytest.raises(ClosedError):
        slot.get(timeout_s=5)


def test_a_handler_may_wait_for_the_same_transfer(pair: Pair) -> None:
    """The C handle goes with the first answer; the wait outside must not touch it any more."""
    with (
        pair.right.recv_slot("s", (3,), src=pair.to_left, kind="dynamic") as slot,
        pair.to_right.send_slot("s", (3,), "float32", kind="dynamic") as out,
    ):
        transfer: Transfer = out.put(np.ones(3, np.float32), timeout_s=5)
        arrived = threading.Event()

        def read() -> None:
            arrived.wait(10)
            with slot.get(timeout_s=5) as got:
                assert got.shape == (3,)

        reader = threading.Thread(target=read)
        reader.start()

        def handler() -> None:
            arrived.set()
            transfer.wait(timeout_s=5)

        with signal_soon(handler):
            transfer.wait(timeout_s=5)
        reader.join(10)
        assert transfer.done()
