"""The connection to one peer: one-sided writes and reads, and notifications."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from functools import partial
from typing import cast

import numpy as np
from numpy.typing import NBitBase, NDArray

from rdmatensor._native.arguments import U64_MAX, invalid, timeout_s_of, whole_in
from rdmatensor._native.closable import Closable
from rdmatensor._native.core import Core
from rdmatensor._native.ffi import (
    AGAIN,
    BYTES,
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
from rdmatensor.slot import SlotSender
from rdmatensor.transfer import Transfer
from rdmatensor.types import SlotKind, TensorLike, TransportName

_NO_NOTIFY: int = lib.RDT_NOTIFY_NONE
NOTIFY_MAX: int = lib.RDT_NOTIFY_MAX


class WriteBatch:
    """Pieces of local memory and their destinations: made once, written with write_many() often.

    blocks: pairs (tensor, dst_offset_bytes); each tensor goes whole to that offset, in bytes, of
        the remote region. Ownership: the tensors are kept alive by this object.
    """

    __slots__ = ("_kept", "_ptr", "count", "len_bytes")

    def __init__(self, blocks: Iterable[tuple[TensorLike, int]]) -> None:
        try:
            pairs = [(tensor, offset) for tensor, offset in blocks]
        except (TypeError, ValueError):
            raise invalid("write_many", "blocks must be pairs (tensor, dst_offset_bytes)") from None
        tensors, data = [tensor for tensor, _ in pairs], None
        if all(type(tensor) is np.ndarray and not tensor.dtype.hasobject for tensor in tensors):
            with contextlib.suppress(ValueError):  # not contiguous: span() names the tensor
                data = [ffi.from_buffer(BYTES, tensor) for tensor in tensors]
        if data is None:
            spans = [span(tensor, "write_many") for tensor in tensors]
            lengths = np.array([length for _, length in spans], dtype=np.uint64)
            data = [pointer for pointer, _ in spans]
        else:  # thousands of small blocks: a function call for each would cost more than the write
            lengths = np.array([len(item) for item in data], dtype=np.uint64)
        # Through an array of pointers: converting each to a number would double the time.
        pointers = ffi.new("char *[]", data)
        starts = np.frombuffer(ffi.buffer(pointers), dtype=np.uint64, count=len(data))
        self._fill(starts, lengths, _offsets(offset for _, offset in pairs), data)

    def _fill(
        self,
        starts: NDArray[np.uint64],
        lengths: NDArray[np.uint64],
        goals: NDArray[np.int64],
        kept: object,
    ) -> None:
        if len(goals) and goals.min() < 0:
            raise invalid("write_many", "a target offset is negative")
        rows = np.empty((len(starts), 3), dtype=np.uint64)  # struct rdt_block is three words
        rows[:, 0], rows[:, 1], rows[:, 2] = starts, lengths, goals
        self.count = len(rows)
        self.len_bytes = int(lengths.sum())
        self._ptr: CData = ffi.cast("struct rdt_block *", ffi.from_buffer(rows))
        self._kept = (rows, kept)

    @classmethod
    def of_parts(
        cls,
        src: TensorLike,
        block_bytes: int,
        src_offsets_bytes: NDArray[np.integer[NBitBase]] | Iterable[int],
        dst_offsets_bytes: NDArray[np.integer[NBitBase]] | Iterable[int],
    ) -> WriteBatch:
        """Make blocks of one length out of parts of one tensor, without a Python step per block.

        Units: bytes. Raises InvalidArgumentError if a part leaves src.
        """
        data, len_bytes = span(src, "write_many")
        starts, goals = _offsets(src_offsets_bytes), _offsets(dst_offsets_bytes)
        block_bytes = _offset(block_bytes, "write_many", "block_bytes")
        if len(starts) != len(goals):
            raise invalid("write_many", f"{len(starts)} source and {len(goals)} target offsets")
        if len(starts) and starts.max() > len_bytes - block_bytes:
            raise invalid("write_many", f"a block of {block_bytes} B leaves src of {len_bytes} B")
        if len(starts) and starts.min() < 0:
            raise invalid("write_many", "a source offset is negative")
        addrs = starts.astype(np.uint64) + np.uint64(int(ffi.cast("uintptr_t", data)))
        made = cls.__new__(cls)
        made._fill(addrs, np.full(len(starts), block_bytes, np.uint64), goals, data)
        return made


def _offsets(values: NDArray[np.integer[NBitBase]] | Iterable[int]) -> NDArray[np.int64]:
    array = values if isinstance(values, np.ndarray) else list(values)
    try:
        return np.asarray(array).astype(np.int64, casting="same_kind", copy=False).reshape(-1)
    except (TypeError, OverflowError) as error:
        if not len(array):
            return np.empty(0, np.int64)
        raise invalid("write_many", f"offsets must be whole numbers of bytes: {error}") from None


assert ffi.sizeof("struct rdt_block") == 24, "WriteBatch.of_parts() lays three words over it"


class PreparedWrite:
    """A write that was checked once and is posted as often as wanted; made by prepare_write()."""

    __slots__ = ("_dst", "_endpoint", "_len_bytes", "_notify", "_offset_bytes", "_src", "_what")

    def __init__(
        self, endpoint: Endpoint, src: TensorLike, dst: RemoteRegion, offset: int, notify: int
    ) -> None:
        self._endpoint = endpoint
        self._src, self._len_bytes = span(src, "write")
        self._dst = _struct_of(dst, "write")
        self._offset_bytes = offset
        self._notify = notify
        self._what = partial(endpoint._operation, "write", self._len_bytes)

    def post(self, notify: int | None = None) -> Transfer:
        """Post it; notify replaces the prepared one for this call."""
        endpoint, frame = self._endpoint, take()
        word = self._notify if notify is None else notify_word(notify)
        status = lib.rdt_endpoint_write(
            endpoint._ptr("write"), self._src, self._len_bytes, self._dst, self._offset_bytes,
            word, frame.transfer, frame.err,
        )  # fmt: skip
        if status != OK:
            fail(status, "write", frame.err)
        return Transfer(endpoint._core, frame, self._src, self._what)


def notify_word(notify: int | None) -> int:
    """Check a notification; None means none."""
    return _NO_NOTIFY if notify is None else whole_in(notify, NOTIFY_MAX, "notify", "notify")


def _offset(value: int, call: str, name: str) -> int:
    """Check an offset in bytes."""
    if type(value) is int and 0 <= value <= U64_MAX:  # the slow path is slow for this common case
        return value
    return whole_in(value, U64_MAX, call, name)


def _struct_of(region: RemoteRegion, call: str) -> CData:
    try:
        return region._c_struct
    except AttributeError:
        raise invalid(
            call,
            "expected a RemoteRegion, which the peer makes with export() and sends, got "
            f"{type(region).__name__}",
        ) from None


class Endpoint(Closable):
    """The connection to one peer, over the best path that a probe proved; see Context.connect().

    Writes and notifications to one peer arrive in order. Operations may be posted before the
    connection is established; they wait for it.
    Threads: any thread may post; notifications are taken by one thread at a time.
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

        Raises: PeerError, AuthenticationError (another secret), VersionMismatchError,
            MismatchError, TransportNotViableError, TransferTimeoutError.
        """
        err = new_error()

        def attempt(slice_ns: int) -> int:
            status: int = lib.rdt_endpoint_wait_ready(self._ptr("wait_ready"), slice_ns, err)
            if status == TIMED_OUT and self._look_for_leaving is not None:
                self._look_for_leaving()
            return status

        self._core.waiters.wait(
            attempt,
            "wait_ready",
            timeout_s_of(timeout_s, self._core.timeout_s, "wait_ready"),
            err,
        )

    def write(
        self,
        src: TensorLike,
        dst: RemoteRegion,
        *,
        dst_offset_bytes: int = 0,
        notify: int | None = None,
    ) -> Transfer:
        """Start a one-sided write of a whole tensor into the peer's memory.

        Shapes: src is any row-major tensor without gaps (numpy, a buffer, a CPU torch tensor); all
            its bytes are sent, no copy is made. Zero-size is legal.
        Units: dst_offset_bytes from the start of dst; notify is 0 to 2**18 - 1, delivered to the
            peer's wait_notify() after the bytes are in place.
        Ownership: src is kept alive, and must not change, until the Transfer is done.
        Raises: InvalidArgumentError (not contiguous, or the range leaves dst), ClosedError,
            PeerError, StaleRegionError (the owner freed dst; on tcp this comes from
            Transfer.wait()).
        """
        data, len_bytes = span(src, "write")
        frame = take()
        offset = _offset(dst_offset_bytes, "write", "dst_offset_bytes")
        status = lib.rdt_endpoint_write(
            self._handle.ptr or self._handle.get("write"), data, len_bytes,
            _struct_of(dst, "write"), offset, notify_word(notify), frame.transfer, frame.err,
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
        """Check a write once; each post() of the result sends it. See write()."""
        offset = _offset(dst_offset_bytes, "write", "dst_offset_bytes")
        return PreparedWrite(self, src, dst, offset, notify_word(notify))

    def write_many(
        self,
        blocks: WriteBatch | Iterable[tuple[TensorLike, int]],
        dst: RemoteRegion,
        *,
        notify: int | None = None,
    ) -> Transfer:
        """Start one write of many blocks into one remote region, with one notification.

        blocks: pairs (tensor, dst_offset_bytes), or WriteBatch, which are checked once for many
            calls.
        The notification is delivered after all of them are in place. The rest is as with write().
        """
        made = blocks if isinstance(blocks, WriteBatch) else WriteBatch(blocks)
        frame = take()
        status = lib.rdt_endpoint_write_many(
            self._ptr("write_many"), made._ptr, made.count, _struct_of(dst, "write_many"),
            notify_word(notify), frame.transfer, frame.err,
        )  # fmt: skip
        if status != OK:
            fail(status, "write_many", frame.err)
        what = partial(self._operation, f"write of {made.count} blocks,", made.len_bytes)
        return Transfer(self._core, frame, made, what)

    def read(self, dst: TensorLike, src: RemoteRegion, *, src_offset_bytes: int = 0) -> Transfer:
        """Start a one-sided read that fills a whole tensor from the peer's memory.

        Ownership: dst is kept alive, and must not be used, until the Transfer is done.
        Units and exceptions: as with write().
        """
        data, len_bytes = span(dst, "read", writable=True)
        region = _struct_of(src, "read")
        frame = take()
        out, err = frame.transfer, frame.err
        offset = _offset(src_offset_bytes, "read", "src_offset_bytes")
        status = lib.rdt_endpoint_read(self._ptr("read"), data, len_bytes, region, offset, out, err)
        if status != OK:
            fail(status, "read", err)
        return Transfer(self._core, frame, data, partial(self._operation, "read", len_bytes))

    def notify(self, notification: int, dst: RemoteRegion) -> Transfer:
        """Send a notification alone; it arrives after all earlier writes.

        dst is any region of the peer: notifications are parts of writes, here of one without bytes.
        """
        return self.write(b"", dst, notify=notification)

    def wait_notify(self, timeout_s: float | None = None) -> int:
        """Return the oldest notification of this peer; timeout_s=0 polls once, without waiting.

        Raises: TransferTimeoutError, PeerError (nothing more can come), ClosedError.
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
        shape: int | tuple[int, ...] | None = None,
        dtype: object = None,
        *,
        kind: SlotKind = "static",
        timeout_s: float | None = None,
    ) -> SlotSender:
        """Return the sending side of the peer's slot of that name.

        shape, dtype: those of the receiver, or the maximum for kind="bounded"; a shape alone is of
            float32; without a shape they are those of the first tensor that is put. They are
            compared when the slot is found: at once if they are given, otherwise at the first
            put().
        Raises: MismatchError (on both sides), TransferTimeoutError (no such slot was announced),
            PeerError.
        """
        return SlotSender(self._core, self._ptr, name, shape, dtype, kind, timeout_s)

    def _operation(self, verb: str, len_bytes: int) -> str:
        """Describe an operation for a message."""
        path = self.transport if self._handle.ptr is not None else "a closed path"
        return f"{verb} of {len_bytes} B, {self._peer()} over {path}"

    def _peer(self) -> str:
        return f"rank {self.rank}" if self.rank != RANK_UNKNOWN else "the peer"

    def close(self) -> None:
        """Flush and close; the peer notices that this side left. Idempotent."""
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
