"""What the objects of one context share, and its shutdown.

A Context is the user's handle. The Core below it lives until the last array of its arena is gone,
so that no array ever points to unmapped memory.
"""

from __future__ import annotations

import os
import sys
import time
import warnings
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Protocol

from rdmatensor import errors
from rdmatensor._native.ffi import (
    AGAIN,
    OK,
    RAISE_FLAG,
    CData,
    Handle,
    Waiters,
    check,
    error_of,
    ffi,
    lib,
    new_error,
)

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

# Endpoints wait two seconds at most for their goodbyes (rdt_context_close()); the rest is slack.
_CLOSE_S = 5.0


class InFlight(Protocol):
    """The part of rdmatensor.transfer.Transfer that is used here."""

    def _abandon(self) -> None:
        """End the Python side because the context closes."""


class Core:
    """One C context, and everything that must not outlive it.

    Threads: any thread; the collections are changed by single operations that the interpreter does
        not split.
    """

    def __init__(self, ptr: CData, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self.waiters = Waiters()
        self.transfers: weakref.WeakSet[InFlight] = weakref.WeakSet()
        self.bells: list[int] = []  # event descriptors that no event loop uses now
        self.wakers: dict[AbstractEventLoop, object] = {}  # of transfer.py
        self._ptr: CData | None = ptr
        self._pid = os.getpid()
        self._handles: dict[int, Handle] = {}
        self._orphans: deque[tuple[CData, object]] = deque()
        self._drains: deque[tuple[CData, object]] = deque()
        self._memory: set[int] = set()  # live arrays, by number
        self.is_held: list[Callable[[], bool]] = []  # callbacks of other owners of C objects
        self._next_id = 0
        self._anchor: CData | None = None

    @property
    def is_foreign(self) -> bool:
        """True in a forked child, where nothing may be destroyed."""
        return os.getpid() != self._pid

    def refuse_fork(self, call: str) -> None:
        """Raise ForkedProcessError in a forked child, for calls that C cannot refuse there."""
        if self.is_foreign:
            raise errors.ForkedProcessError(
                "RDT_EFORKED",
                call,
                "this is a forked child; only its parent may use the context: spawn the process "
                "instead, or keep rdmatensor out of it",
            )

    def get(self, call: str) -> CData:
        """Return the rdt_context *; raises ClosedError."""
        if self._ptr is None or self.waiters.is_closing:
            raise errors.ClosedError("RDT_ECLOSED", call, "the context was closed")
        return self._ptr

    def adopt(self, handle: Handle) -> Handle:
        """Close handle when the context closes, children before their parents."""
        self._handles[id(handle)] = handle
        return handle

    def release(self, handle: Handle) -> None:
        """Close a handle now."""
        self._handles.pop(id(handle), None)
        if not self.is_foreign:
            handle.close()

    # ---- memory --------------------------------------------------------------------------------

    def buffer(self, ptr: CData, len_bytes: int, region: CData | None = None) -> CData:
        """Return a writable buffer over C memory that keeps the context mapped while it lives.

        region, if given, is freed with the buffer.
        """
        self._next_id += 1
        number = self._next_id
        self._memory.add(number)
        # The pointer owns the region. The buffer, and each array over it, keeps the pointer alive.
        owner = ffi.gc(ffi.cast("char *", ptr), partial(self._drop, number, region))
        return ffi.buffer(owner, len_bytes)

    def _drop(self, number: int, region: CData | None, _owner: CData) -> None:
        if self.is_foreign or sys.is_finalizing():
            return
        if region is not None:
            lib.rdt_region_free(region, ffi.NULL, ffi.NULL)
        self._memory.discard(number)
        if self.waiters.is_closing and not self._memory:
            self._close_c(0.0)

    def drain(self, region: CData, pin: object) -> None:
        """Free registered memory; pin, its owner, is kept until no peer can write it any more."""
        flag = ffi.new("int32_t *")
        self._drains.append((flag, pin))
        lib.rdt_region_free(region, RAISE_FLAG, ffi.cast("void *", flag))

    # ---- transfers -----------------------------------------------------------------------------

    def orphan(self, transfer: CData, pin: object) -> None:
        """Take over a transfer in flight that its user dropped; pin is what it still uses."""
        self._orphans.append((transfer, pin))
        if not self.waiters.is_closing:
            self.reap(2)  # more are released than added

    def reap(self, most: int = 1 << 30) -> None:
        """Release what orphans and drained regions held; cheap if there are none."""
        for _ in range(min(most, len(self._orphans))):
            transfer, pin = self._orphans.popleft()
            err = new_error()
            status = lib.rdt_transfer_test(transfer, err)
            if status == AGAIN:
                self._orphans.appendleft((transfer, pin))
                break  # in order: a later transfer is hardly done earlier
            if status != OK and not self.waiters.is_closing:
                error = error_of(status, "transfer", err)
                warnings.warn(f"a dropped transfer failed: {error}", stacklevel=3)
            lib.rdt_transfer_free(transfer)
        for _ in range(len(self._drains)):
            flag, pin = self._drains.popleft()
            if flag[0] == 0:
                self._drains.append((flag, pin))

    def take_bell(self, fd: int) -> None:
        """Keep an event descriptor for reuse; late rings find it open, and wake for nothing."""
        if self._ptr is None and not self.is_foreign:
            os.close(fd)
        else:
            self.bells.append(fd)

    # ---- the end -------------------------------------------------------------------------------

    def close(self) -> None:
        """Close everything; idempotent. Arrays of the arena stay valid until they are dropped."""
        if self._ptr is None or self.waiters.is_closing:
            return
        if self.is_foreign:
            self._ptr = None
            return
        self.waiters.close()
        for handle in reversed(list(self._handles.values())):
            handle.close()
        self._handles.clear()
        for transfer in list(self.transfers):
            transfer._abandon()
        self._close_c(_CLOSE_S)

    def _hold_arena(self) -> None:
        """Keep the arena mapped under arrays that own no region, such as a slot's."""
        if self._memory and self._anchor is None:
            anchor, err = ffi.new("rdt_region **"), new_error()
            check(lib.rdt_region_alloc(self._ptr, 0, 0, anchor, err), "close", err)
            self._anchor = anchor[0]
        elif not self._memory and self._anchor is not None:
            lib.rdt_region_free(self._anchor, ffi.NULL, ffi.NULL)
            self._anchor = None

    def _close_c(self, patience_s: float) -> None:
        """Close the C context, unless arrays are alive: then dropping the last does."""
        if self._ptr is None:
            return
        self._hold_arena()
        deadline_s = time.monotonic() + patience_s
        pins = list(self._orphans)  # kept until no peer uses the bytes
        for transfer, _ in pins:
            lib.rdt_transfer_free(transfer)
        self._orphans.clear()
        err = new_error()
        while True:
            status = lib.rdt_context_close(self._ptr, err)
            if status == OK:
                break
            if self._memory or any(is_held() for is_held in self.is_held):
                return
            if status != lib.RDT_EBUSY or time.monotonic() >= deadline_s:
                raise error_of(status, "close", err)
            time.sleep(0.001)  # the last hooks of transfers are running
        self._ptr = None
        self._drains.clear()
        for bell in self.bells:
            os.close(bell)
        self.bells.clear()
