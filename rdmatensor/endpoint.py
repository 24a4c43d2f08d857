"""The connection to one peer: one-sided writes and reads, and notifications."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import cast

from rdmatensor._native.arguments import timeout_s_of
from rdmatensor._native.awaiting import until
from rdmatensor._native.closable import Closable
from rdmatensor._native.core import Core
from rdmatensor._native.ffi import (
    AGAIN,
    OK,
    TIMED_OUT,
    TRANSPORT_NAMES,
    CData,
    Handle,
    check,
    fail,
    ffi,
    give,
    lib,
    new_error,
    take,
)
from rdmatensor.errors import RANK_UNKNOWN, TransferTimeoutError
from rdmatensor.memory import RemoteRegion, span
from rdmatensor.slot_sender import SlotSender
from rdmatensor.transfer import Transfer
from rdmatensor.types import DTypeLike, SlotKind, TensorLike, TransportName
from rdmatensor.write import PreparedWrite, WriteBatch, notify_word, offset_of, struct_of

_LOOK_S = 0.5


class Endpoint(Closable):
    """The connection to one peer, over the best path that a probe proved.

    Made by Context.connect() and World.endpoint(); `world[rank]` is the same. Writes and
    notifications to one peer arrive in order. Operations may be posted before the connection is
    established; they wait for it. A context manager.

    Threads:
        Any thread may post; notifications are taken by one thread at a time.

    Attributes:
        rank: The peer's global rank, -1 if unknown.

    Example:
        >>> endpoint.write(np.ones(4, np.uint8), remote, notify=7).wait()
        <Transfer write of 4 B, ...: done>
    """

    def __init__(self, core: Core, ptr: CData, rank: int) -> None:
        self._core = core
        self.rank = rank
        # After join(): raises if the peer left a message that it gave up, which C cannot know.
        self._look_for_leaving: Callable[[], None] | None = None
        self._handle: Handle = core.adopt(Handle("endpoint", ptr, lib.rdt_endpoint_close))

    def _ptr(self, call: str) -> CData:
        """Return the rdt_endpoint *; raises ClosedError."""
        return self._handle.ptr or self._handle.get(call)

    @property
    def transport(self) -> TransportName:
        """The active path, or "auto" until there is one."""
        code = lib.rdt_endpoint_transport(self._ptr("transport"))
        return cast("TransportName", TRANSPORT_NAMES[code])

    def wait_ready(self, timeout_s: float | None = None) -> None:
        """Wait until both sides have proved the path.

        Args:
            timeout_s: Seconds to wait; None takes the context's deadline.

        Raises:
            TransferTimeoutError: The peer did not answer in time.
            PeerError: The peer died, left or cannot be reached.
            AuthenticationError: The peer has another secret.
            VersionMismatchError: The peer has another version of the library.
            MismatchError: The settings of both sides exclude each other.
            TransportNotViableError: The transport that the settings force does not work.

        Example:
            >>> endpoint.wait_ready(timeout_s=10)
            >>> endpoint.transport
            'shm'
        """
        self._wait_ready(timeout_s, self._look_for_leaving)

    def _wait_ready(self, timeout_s: float | None, look: Callable[[], None] | None) -> None:
        err = new_error()

        def attempt(slice_ns: int) -> int:
            status: int = lib.rdt_endpoint_wait_ready(self._ptr("wait_ready"), slice_ns, err)
            if status == TIMED_OUT and look is not None:
                look()
            return status

        self._core.waiters.wait(
            attempt,
            "wait_ready",
            timeout_s_of(timeout_s, self._core.timeout_s, "wait_ready"),
            err,
        )

    async def wait_ready_async(self, timeout_s: float | None = None) -> None:
        """Wait as wait_ready() does, in an asyncio event loop.

        Args:
            timeout_s: Seconds to wait; None takes the context's deadline.

        Raises:
            TransferTimeoutError: The peer did not answer in time. The other exceptions are those of
                wait_ready().

        Example:
            >>> asyncio.run(endpoint.wait_ready_async(timeout_s=10))
        """
        limit_s = timeout_s_of(timeout_s, self._core.timeout_s, "wait_ready")
        waiting = asyncio.ensure_future(until(partial(self._wait_ready, 0.0, None), limit_s))
        looking = asyncio.ensure_future(self._look_async())
        try:
            await asyncio.wait({waiting, looking}, return_when=asyncio.FIRST_COMPLETED)
            (waiting if waiting.done() else looking).result()
        finally:
            for task in (waiting, looking):
                if not task.cancel() and not task.cancelled():
                    task.exception()  # taken, or asyncio would log it

    async def _look_async(self) -> None:
        """Look for a peer's message that it gave up, in a thread; returns by its exception only."""
        while True:
            await asyncio.sleep(_LOOK_S)
            if self._look_for_leaving is not None:
                await asyncio.to_thread(self._look_for_leaving)

    def write(
        self,
        src: TensorLike,
        dst: RemoteRegion,
        *,
        dst_offset_bytes: int = 0,
        notify: int | None = None,
    ) -> Transfer:
        """Start a one-sided write of a whole tensor into the peer's memory.

        No copy is made. Zero-size tensors are legal.

        Ownership:
            `src` is kept alive, and must not change, until the Transfer is done.

        Args:
            src: Any row-major tensor without gaps: a numpy array, a buffer, a CPU torch tensor.
            dst: The region to write, which the peer exported.
            dst_offset_bytes: Where to write, from the start of dst.
            notify: A number from 0 to 2**18 - 1 for the peer's wait_notify(), delivered after the
                bytes are in place; None sends none.

        Returns:
            The write in flight.

        Raises:
            InvalidArgumentError: src is not contiguous, or the range leaves dst.
            ClosedError: The endpoint was closed.
            PeerError: The peer died or left.
            StaleRegionError: The owner freed dst; on tcp Transfer.wait() raises it.

        Example:
            >>> endpoint.write(np.ones(4, np.uint8), remote, dst_offset_bytes=8, notify=3).wait()
            <Transfer write of 4 B, ...: done>
            >>> peer.wait_notify(timeout_s=10)
            3
        """
        data, len_bytes = span(src, "write")
        frame = take()
        offset = offset_of(dst_offset_bytes, "write", "dst_offset_bytes")
        status = lib.rdt_endpoint_write(
            self._handle.ptr or self._handle.get("write"), data, len_bytes,
            struct_of(dst, "write"), offset, notify_word(notify), frame.transfer, frame.err,
        )  # fmt: skip
        if status != OK:
            fail(status, "write", frame.err)
        return Transfer(self._core, frame, data, partial(self._operation, "write", len_bytes))

    def prepare_write(
        self,
        src: TensorLike,
        dst: RemoteRegion,
        *,
        dst_offset_bytes: int = 0,
        notify: int | None = None,
    ) -> PreparedWrite:
        """Check a write once; each post() of the result sends what is in the source then.

        Args:
            src: As for write().
            dst: As for write().
            dst_offset_bytes: As for write().
            notify: As for write(); post() can replace it.

        Returns:
            The write to post.

        Raises:
            InvalidArgumentError: src is not contiguous, or an argument is out of range.

        Example:
            >>> prepared = endpoint.prepare_write(np.ones(4, np.uint8), remote)
            >>> for step in range(3):
            ...     _ = prepared.post().wait()
        """
        offset = offset_of(dst_offset_bytes, "write", "dst_offset_bytes")
        return PreparedWrite(self, src, dst, offset, notify_word(notify))

    def write_many(
        self,
        blocks: WriteBatch | Iterable[tuple[TensorLike, int]],
        dst: RemoteRegion,
        *,
        notify: int | None = None,
    ) -> Transfer:
        """Start one write of many blocks into one remote region, with one notification.

        Ownership:
            As for write(), for all tensors of the blocks.

        Args:
            blocks: Pairs (tensor, dst_offset_bytes), or a WriteBatch, which is checked once for
                many calls.
            dst: The region to write, which the peer exported.
            notify: As for write(), delivered after all blocks are in place.

        Returns:
            The write in flight.

        Raises:
            InvalidArgumentError: A tensor is not contiguous, or a block leaves dst. The other
                exceptions are those of write().

        Example:
            >>> ones = np.ones(4, np.uint8)
            >>> endpoint.write_many([(ones, 0), (ones, 16)], remote).wait()
            <Transfer write of 2 blocks, of 8 B, ...: done>
        """
        made = blocks if isinstance(blocks, WriteBatch) else WriteBatch(blocks)
        frame = take()
        status = lib.rdt_endpoint_write_many(
            self._ptr("write_many"), made._ptr, made.count, struct_of(dst, "write_many"),
            notify_word(notify), frame.transfer, frame.err,
        )  # fmt: skip
        if status != OK:
            fail(status, "write_many", frame.err)
        what = partial(self._operation, f"write of {made.count} blocks,", made.len_bytes)
        return Transfer(self._core, frame, made, what)

    def read(self, dst: TensorLike, src: RemoteRegion, *, src_offset_bytes: int = 0) -> Transfer:
        """Start a one-sided read that fills a whole tensor from the peer's memory.

        Ownership:
            `dst` is kept alive, and must not be used, until the Transfer is done.

        Args:
            dst: Any writable row-major tensor without gaps.
            src: The region to read, which the peer exported.
            src_offset_bytes: Where to read, from the start of src.

        Returns:
            The read in flight.

        Raises:
            InvalidArgumentError: dst is not contiguous or read-only, or the range leaves src.
            ClosedError: The endpoint was closed.
            PeerError: The peer died or left.
            StaleRegionError: The owner freed src; on tcp Transfer.wait() raises it.

        Example:
            >>> found = np.zeros(4, np.uint8)
            >>> endpoint.read(found, remote).wait()
            <Transfer read of 4 B, ...: done>
        """
        data, len_bytes = span(dst, "read", writable=True)
        region = struct_of(src, "read")
        frame = take()
        out, err = frame.transfer, frame.err
        offset = offset_of(src_offset_bytes, "read", "src_offset_bytes")
        status = lib.rdt_endpoint_read(self._ptr("read"), data, len_bytes, region, offset, out, err)
        if status != OK:
            fail(status, "read", err)
        return Transfer(self._core, frame, data, partial(self._operation, "read", len_bytes))

    def notify(self, notification: int, dst: RemoteRegion) -> Transfer:
        """Send a notification alone; it arrives after all earlier writes.

        Args:
            notification: A number from 0 to 2**18 - 1.
            dst: Any region of the peer: notifications are parts of writes, here of one without
                bytes.

        Returns:
            The notification in flight.

        Raises:
            InvalidArgumentError: The number is out of range. The other exceptions are those of
                write().

        Example:
            >>> endpoint.notify(7, remote).wait()
            <Transfer write of 0 B, ...: done>
        """
        return self.write(b"", dst, notify=notification)

    def wait_notify(self, timeout_s: float | None = None) -> int:
        """Return the oldest notification of this peer.

        Args:
            timeout_s: Seconds to wait; None takes the context's deadline, 0 looks once.

        Returns:
            The number that the peer gave as `notify`.

        Raises:
            TransferTimeoutError: No notification came.
            PeerError: The peer died or left, and nothing more can come.
            ClosedError: The endpoint was closed.

        Example:
            >>> endpoint.notify(7, remote).wait()
            <Transfer write of 0 B, ...: done>
            >>> peer.wait_notify(timeout_s=10)
            7
        """
        frame, limit_s = take(), timeout_s_of(timeout_s, self._core.timeout_s, "wait_notify")
        err, out = frame.err, frame.number
        try:
            if lib.rdt_endpoint_wait_notify(self._ptr("wait_notify"), 0, out, err) != OK:
                self._core.waiters.wait(
                    lambda ns: self._look_for_notify(ns, out, err), "wait_notify", limit_s, err
                )
            return int(out[0])
        finally:
            give(frame)

    async def wait_notify_async(self, timeout_s: float | None = None) -> int:
        """Return the oldest notification of this peer; waits in an asyncio event loop.

        A task that is cancelled meanwhile takes no notification.

        Args:
            timeout_s: Seconds to wait; None takes the context's deadline.

        Returns:
            The number that the peer gave as `notify`.

        Raises:
            TransferTimeoutError: No notification came. The other exceptions are those of
                wait_notify().

        Example:
            >>> _ = endpoint.notify(7, remote).wait()
            >>> asyncio.run(peer.wait_notify_async(timeout_s=10))
            7
        """
        limit_s = timeout_s_of(timeout_s, self._core.timeout_s, "wait_notify")
        return await until(partial(self.wait_notify, 0.0), limit_s)

    def _look_for_notify(self, slice_ns: int, out: CData, err: CData) -> int:
        """Wait once in C, where an unsuccessful poll is EAGAIN; the error names the peer."""
        status: int = lib.rdt_endpoint_wait_notify(self._ptr("wait_notify"), slice_ns, out, err)
        if status == AGAIN:
            raise TransferTimeoutError(
                "RDT_ETIMEDOUT", "wait_notify", f"no notification of {self._peer()} is there yet"
            )
        return status

    def send_slot(
        self,
        name: str,
        shape: int | Sequence[int] | None = None,
        dtype: DTypeLike | None = None,
        *,
        kind: SlotKind = "static",
        timeout_s: float | None = None,
    ) -> SlotSender:
        """Return the sending side of the slot of that name, which the peer made by recv_slot().

        Shape and dtype are compared with the receiver's: at once if they are given, otherwise at
        the first put().

        Args:
            name: The name that the receiver gave.
            shape: The receiver's, or the maximum for kind="bounded"; None takes shape and dtype of
                the first tensor that is put.
            dtype: A name, or numpy's or torch's; None with a shape is float32.
            kind: The receiver's.
            timeout_s: Seconds to wait for the receiver to announce the slot; None takes the
                context's deadline.

        Returns:
            The sending side.

        Raises:
            MismatchError: The receiver's description differs; raised on both sides.
            TransferTimeoutError: No slot of that name was announced.
            PeerError: The peer died or left.

        Example:
            >>> with endpoint.send_slot("numbers", (3,), "float32") as out:
            ...     out.put(np.ones(3, np.float32)).wait()
            <Transfer slot 'numbers': put of 12 B: done>
        """
        return SlotSender(self._core, self._ptr, name, shape, dtype, kind, timeout_s)._find()

    async def send_slot_async(
        self,
        name: str,
        shape: int | Sequence[int] | None = None,
        dtype: DTypeLike | None = None,
        *,
        kind: SlotKind = "static",
        timeout_s: float | None = None,
    ) -> SlotSender:
        """Return the sending side of a slot as send_slot(); waits in an asyncio event loop.

        Args:
            name: As for send_slot().
            shape: As for send_slot().
            dtype: As for send_slot().
            kind: As for send_slot().
            timeout_s: As for send_slot().

        Returns:
            The sending side.

        Raises:
            TransferTimeoutError: No slot of that name was announced. The other exceptions are those
                of send_slot().

        Example:
            >>> asyncio.run(endpoint.send_slot_async("numbers", 3)).close()
        """
        sender = SlotSender(self._core, self._ptr, name, shape, dtype, kind, timeout_s)
        return await until(partial(sender._find, 0.0), sender._timeout_s)

    def _operation(self, verb: str, len_bytes: int) -> str:
        """Describe an operation for a message."""
        path = self.transport if self._handle.ptr is not None else "a closed path"
        return f"{verb} of {len_bytes} B, {self._peer()} over {path}"

    def _peer(self) -> str:
        return f"rank {self.rank}" if self.rank != RANK_UNKNOWN else "the peer"

    def close(self) -> None:
        """Flush and close; the peer notices that this side left. Idempotent.

        Example:
            >>> context.connect(other.address).close()
        """
        super().close()

    def __repr__(self) -> str:
        state = self.transport if self._handle.ptr is not None else "closed"
        return f"<Endpoint rank={self.rank} {state}>"


def open_endpoint(core: Core, address: bytes, job: bytes, rank: int, timeout_s: float) -> Endpoint:
    """Open the endpoint to the process with this address; arguments are checked already."""
    opts = ffi.new("struct rdt_endpoint_opts *")
    job_id = ffi.new("char[]", job)
    opts.struct_size = ffi.sizeof("struct rdt_endpoint_opts")
    opts.peer_rank = rank
    opts.timeout_ns = max(1, int(timeout_s * 1e9))
    opts.job_id = job_id
    out, err = ffi.new("rdt_endpoint **"), new_error()
    status = lib.rdt_endpoint_open(core.get("connect"), address, len(address), opts, out, err)
    check(status, "connect", err)
    return Endpoint(core, out[0], rank)
