"""Operations in flight."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
import warnings
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, cast

from rdmatensor import errors
from rdmatensor._native.arguments import timeout_s_of
from rdmatensor._native.core import Core
from rdmatensor._native.ffi import (
    AGAIN,
    OK,
    RING,
    CData,
    Frame,
    error_of,
    ffi,
    give,
    lib,
    new_error,
)

if TYPE_CHECKING:
    from typing_extensions import Self  # of typing from Python 3.11 on

_LOOK_AGAIN_S = 0.05
_NO_ERR: CData = ffi.NULL


class _Bell:
    """An event descriptor that C writes to when a transfer ends; returned to the context later.

    It must stay open until then, which Transfer ensures, or the orphan's pin for a dropped
    transfer.
    """

    __slots__ = ("_core", "fd")

    def __init__(self, core: Core) -> None:
        self._core = core
        flags = os.EFD_CLOEXEC | os.EFD_NONBLOCK
        self.fd = core.bells.pop() if core.bells else os.eventfd(0, flags)

    def silence(self) -> None:
        """Make it unreadable until it is rung again."""
        with contextlib.suppress(BlockingIOError):  # it was not rung
            os.eventfd_read(self.fd)

    def __del__(self) -> None:
        fd = getattr(self, "fd", None)
        if fd is not None:
            self._core.take_bell(fd)


class Transfer:
    """One operation in flight. Wait for it, poll `done()`, `await` it, or give it to a poll loop.

    asyncio.gather(), wait() and wait_for() take it; asyncio.create_task() takes coroutines only, so
    make a task of it by asyncio.ensure_future().

    Ownership:
        The memory that it reads or writes is kept alive until it has ended, even if the Transfer
        itself is dropped; it must not be changed (source) or used (destination) before. After a
        timeout the operation is still in flight, and the rule still applies.

    Threads:
        One thread at a time.

    Example:
        >>> transfer = endpoint.write(np.ones(4, np.uint8), remote)
        >>> transfer.wait(timeout_s=10).done()
        True
        >>> async def main():
        ...     await endpoint.write(np.ones(4, np.uint8), remote)
        >>> asyncio.run(main())
    """

    __slots__ = (
        *("__weakref__", "_bell", "_core", "_error", "_is_hooked", "_is_told", "_pin", "_ptr"),
        "_what",
    )

    _has_result = False  # beyond "done"
    _ptr: CData | None
    _pin: object

    def __init__(self, core: Core, frame: Frame, pin: object, what: Callable[[], str]) -> None:
        ptr = frame.transfer[0]
        give(frame)
        status = lib.rdt_transfer_test(ptr, _NO_ERR)
        self._core = core
        self._what = what
        self._error: errors.RdmaTensorError | None = None
        self._is_hooked = False
        self._is_told = False
        self._bell: _Bell | None = None
        if status == OK and not self._has_result:  # most are done by now on shm
            self._ptr = self._pin = None
            lib.rdt_transfer_free(ptr)
            return
        self._ptr = ptr
        self._pin = pin
        if status == AGAIN:
            core.transfers.add(self)
        else:
            self._end(status)

    def done(self) -> bool:
        """Return whether it has ended, well or not; drives the engine once if not. Never waits.

        Returns:
            True if it has ended: then wait() returns at once, or raises what ended it.

        Example:
            >>> transfer = endpoint.write(np.ones(4, np.uint8), remote)
            >>> while not transfer.done():
            ...     pass  # other work
        """
        if self._ptr is None:
            return True
        if self._bell is not None:
            self._bell.silence()  # before the check: what ends after it rings again
        status = lib.rdt_transfer_test(self._ptr, _NO_ERR)
        if status == AGAIN:
            lib.rdt_context_progress(self._core.get("done"))
            status = self._test()
        if status == AGAIN:
            return False
        self._end(status)
        return True

    def fileno(self) -> int:
        """Return a descriptor for select, poll and event loops: readable once it has ended.

        It may also wake for nothing: check `done()` then. Do not read from it or close it: the
        transfer owns it, for its lifetime.

        Returns:
            The descriptor.

        Raises:
            BusyError: The transfer is awaited already.

        Example:
            >>> transfer = endpoint.write(np.ones(4, np.uint8), remote)
            >>> readable, _, _ = select.select([transfer], [], [], 10)
            >>> transfer.done()
            True
        """
        if self._bell is None:
            if self._is_hooked:
                raise errors.BusyError(
                    "RDT_EBUSY", "fileno", f"{self._what()} is awaited: its end is reported there"
                )
            self._bell = _Bell(self._core)
            self._bell.silence()  # a late ring of another transfer
            if self._ptr is None:
                os.eventfd_write(self._bell.fd, 1)
            else:
                self._ring_when_done(self._bell.fd)
        return self._bell.fd

    def wait(self, timeout_s: float | None = None) -> Self:
        """Wait until it has ended well.

        Args:
            timeout_s: Seconds from now; None takes the context's deadline.

        Returns:
            The transfer itself, so that a receive's `wait().len_bytes` is one expression.

        Raises:
            TransferTimeoutError: It is still in flight.
            PeerError: The peer died, left or cannot be reached. Any other error that ended the
                transfer is raised too, and again at each later call.
            StaleRegionError: The owner freed the remote region.

        Example:
            >>> endpoint.write(np.ones(4, np.uint8), remote).wait(timeout_s=10)
            <Transfer write of 4 B, ...: done>
        """
        limit_s = timeout_s_of(timeout_s, self._core.timeout_s, "wait")
        if self._ptr is not None:
            self._wait(limit_s)
        if self._error is not None:
            self._is_told = True
            raise self._error
        return self

    def _wait(self, timeout_s: float) -> None:
        err = new_error()

        def attempt(slice_ns: int) -> int:
            ptr = self._ptr
            if ptr is None:  # a signal handler called it meanwhile, or closed the context
                return OK
            status: int = lib.rdt_transfer_wait(ptr, slice_ns, err)
            return OK if status == OK or self._test() != AGAIN else status

        try:
            self._core.waiters.wait(attempt, "wait", timeout_s, err)
        except errors.TransferTimeoutError:
            raise self._timed_out(timeout_s) from None
        if self._ptr is not None:  # None: as above, and its error was kept
            self._end(self._test())

    def _timed_out(self, timeout_s: float) -> errors.TransferTimeoutError:
        """Make the exception of a wait that was too short."""
        return errors.TransferTimeoutError(
            "RDT_ETIMEDOUT",
            "wait",
            f"{self._what()} was not done within {timeout_s:.3f} s and is still in flight: ask "
            "describe() for the peer's state, or give it more time (timeout_s, "
            "RDMATENSOR_TIMEOUT_S)",
        )

    def _take_result(self, ptr: CData, status: int) -> None:
        """Read more than the status from the C handle before it goes."""

    def _test(self) -> int:
        """Return the status; OK also if it has ended for Python already."""
        ptr = self._ptr
        return OK if ptr is None else cast("int", lib.rdt_transfer_test(ptr, _NO_ERR))

    def _end(self, status: int) -> None:
        """Take the result over and free the C handle; no effect if that was done already."""
        if status != OK and self._ptr is not None:
            err = new_error()
            lib.rdt_transfer_test(self._ptr, err)  # the error that ended it stays
            self._error = error_of(status, self._what(), err)
        ptr, self._ptr = self._ptr, None
        if ptr is None:
            return
        self._pin = None
        self._take_result(ptr, status)
        lib.rdt_transfer_free(ptr)
        if self._bell is not None:
            os.eventfd_write(self._bell.fd, 1)  # it stays readable

    def _abandon(self) -> None:
        """End the Python side because the context closes."""
        if self._ptr is None:
            return
        status = self._test()
        if status != AGAIN:
            self._end(status)
            return
        self._error = errors.ClosedError(
            "RDT_ECLOSED", self._what(), "the context was closed while it was in flight"
        )
        ptr, self._ptr = self._ptr, None
        self._core.orphan(ptr, (self._pin, self._bell))
        self._pin = None
        if self._bell is not None:
            os.eventfd_write(self._bell.fd, 1)

    def __del__(self) -> None:
        ptr = getattr(self, "_ptr", None)
        if ptr is not None and not self._core.is_foreign:
            self._core.orphan(ptr, (self._pin, self._bell))
        error = getattr(self, "_error", None)
        if error is not None and not (self._is_told or self._core.waiters.is_closing):
            warnings.warn(f"a dropped transfer failed: {error}", stacklevel=2)

    def __await__(self) -> Generator[object, None, Self]:
        """Wait in an asyncio event loop; the context's deadline holds here too."""
        if not self.done():
            yield from Waker.of(self._core).wait(self).__await__()
        if self._error is not None:
            self._is_told = True
            raise self._error
        return self

    def __repr__(self) -> str:
        state = "in flight" if self._ptr is not None else "failed" if self._error else "done"
        return f"<Transfer {self._what()}: {state}>"

    def _ring_when_done(self, event_fd: int) -> None:
        """Write to an eventfd once when it has ended; only the first call of a transfer counts."""
        if not self._is_hooked and self._ptr is not None:
            self._is_hooked = True
            lib.rdt_transfer_on_done(self._ptr, RING, ffi.cast("void *", event_fd))


class ReceiveTransfer(Transfer):
    """A receive in flight.

    Attributes:
        len_bytes: Size of the message, once it is done.
        source: Rank of its sender, once it is done.

    Example:
        >>> receiving = group.recv(np.zeros(8))
        >>> _ = group.send(np.ones(3), dst=0).wait()
        >>> received = receiving.wait()
        >>> received.len_bytes, received.source
        (24, 0)
    """

    __slots__ = ("len_bytes", "source")
    _has_result = True

    def __init__(self, core: Core, frame: Frame, pin: object, what: Callable[[], str]) -> None:
        self.len_bytes = 0
        self.source = errors.RANK_UNKNOWN
        super().__init__(core, frame, pin, what)

    def _take_result(self, ptr: CData, status: int) -> None:
        if status == OK:
            self.len_bytes = lib.rdt_transfer_len_bytes(ptr)
            self.source = lib.rdt_transfer_source(ptr)


class Waker:
    """Wakes one asyncio loop when a transfer of one context ends.

    The C library reports the end by writing to an eventfd, not by a Python callback: that would
    make the progress thread wait for the GIL. The context's own descriptor is not suitable: its
    progress thread may take the event away before the loop polls.
    """

    def __init__(self, core: Core, loop: asyncio.AbstractEventLoop) -> None:
        self._core = core
        self._loop = loop
        self._waiting: list[tuple[Transfer, asyncio.Future[None], float]] = []
        self._timer: asyncio.TimerHandle | None = None
        flags = os.EFD_CLOEXEC | os.EFD_NONBLOCK
        self._bell = core.bells.pop() if core.bells else os.eventfd(0, flags)
        loop.add_reader(self._bell, self._on_bell)

    @staticmethod
    def of(core: Core) -> Waker:
        """Return the Waker of the running loop; it is removed when nothing waits any more."""
        loop = asyncio.get_running_loop()
        known = core.wakers.get(loop)
        if isinstance(known, Waker):
            return known
        waker = core.wakers[loop] = Waker(core, loop)
        return waker

    async def wait(self, transfer: Transfer) -> None:
        """Return when the transfer has ended; TransferTimeoutError at the context's deadline."""
        future: asyncio.Future[None] = self._loop.create_future()
        deadline_s = time.monotonic() + self._core.timeout_s
        self._waiting.append((transfer, future, deadline_s))
        transfer._ring_when_done(self._bell)
        if self._timer is None:
            self._look_again()
        await future

    def _on_bell(self) -> None:
        with contextlib.suppress(BlockingIOError):  # another read took the count already
            os.eventfd_read(self._bell)
        self._check()

    def _look_again(self) -> None:
        """Check deadlines, and transfers whose one bell belongs to a loop that was there before."""
        self._timer = None
        self._check()
        if self._waiting:
            self._timer = self._loop.call_later(_LOOK_AGAIN_S, self._look_again)

    def _check(self) -> None:
        still = []
        for transfer, future, deadline_s in self._waiting:
            if future.done():  # cancelled
                continue
            if transfer.done():
                future.set_result(None)
            elif time.monotonic() >= deadline_s:
                future.set_exception(transfer._timed_out(self._core.timeout_s))
            else:
                still.append((transfer, future, deadline_s))
        self._waiting = still
        if not still and self._core.wakers.get(self._loop) is self:
            del self._core.wakers[self._loop]
            self._loop.remove_reader(self._bell)
            self._core.bells.append(self._bell)  # late rings find it open, and wake for nothing
            if self._timer is not None:
                self._timer.cancel()
