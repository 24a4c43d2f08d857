"""One-sided writes that are checked once: batches of blocks, and writes that are posted often."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from functools import partial
from typing import Protocol

import numpy as np
from numpy.typing import NBitBase, NDArray

from rdmatensor._native.arguments import U64_MAX, invalid, whole_in
from rdmatensor._native.core import Core
from rdmatensor._native.ffi import (
    BYTES,
    OK,
    CData,
    fail,
    ffi,
    lib,
    take,
)
from rdmatensor.memory import RemoteRegion, span
from rdmatensor.transfer import Transfer
from rdmatensor.types import TensorLike

_NO_NOTIFY: int = lib.RDT_NOTIFY_NONE
NOTIFY_MAX: int = lib.RDT_NOTIFY_MAX


class WriteBatch:
    """Blocks of local memory and their destinations: made once, written with write_many() often.

    Ownership:
        The tensors are kept alive by this object.

    Args:
        blocks: Pairs (tensor, dst_offset_bytes); each tensor goes whole to that offset, in bytes,
            of the remote region.

    Attributes:
        count: Number of blocks.
        len_bytes: Bytes of all blocks.

    Raises:
        InvalidArgumentError: A tensor is not contiguous, or an offset is negative or no integer.

    Example:
        >>> batch = WriteBatch([(np.ones(4, np.uint8), 0), (np.zeros(2, np.uint8), 8)])
        >>> batch.count, batch.len_bytes
        (2, 6)
        >>> endpoint.write_many(batch, remote).wait()
        <Transfer write of 2 blocks, of 6 B, ...: done>
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

        Args:
            src: The tensor with the parts.
            block_bytes: Length of each part.
            src_offsets_bytes: Where each part begins in src.
            dst_offsets_bytes: Where it goes in the remote region; as many as src_offsets_bytes.

        Returns:
            The blocks.

        Raises:
            InvalidArgumentError: A part leaves src, or the numbers of offsets differ.

        Example:
            >>> rows = np.arange(64, dtype=np.uint8)
            >>> WriteBatch.of_parts(rows, 8, [0, 32], [8, 0]).count
            2
        """
        data, len_bytes = span(src, "write_many")
        starts, goals = _offsets(src_offsets_bytes), _offsets(dst_offsets_bytes)
        block_bytes = offset_of(block_bytes, "write_many", "block_bytes")
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


class Poster(Protocol):
    """The part of an endpoint that is used here."""

    _core: Core

    def _ptr(self, call: str) -> CData: ...

    def _operation(self, verb: str, len_bytes: int) -> str: ...


class PreparedWrite:
    """A write that was checked once and is posted often; made by Endpoint.prepare_write().

    Ownership:
        The source is kept alive by this object.

    Example:
        >>> prepared = endpoint.prepare_write(np.ones(4, np.uint8), remote)
        >>> prepared.post().wait()
        <Transfer write of 4 B, ...: done>
    """

    __slots__ = ("_dst", "_endpoint", "_len_bytes", "_notify", "_offset_bytes", "_src", "_what")

    def __init__(
        self, endpoint: Poster, src: TensorLike, dst: RemoteRegion, offset: int, notify: int
    ) -> None:
        self._endpoint = endpoint
        self._src, self._len_bytes = span(src, "write")
        self._dst = struct_of(dst, "write")
        self._offset_bytes = offset
        self._notify = notify
        self._what = partial(endpoint._operation, "write", self._len_bytes)

    def post(self, notify: int | None = None) -> Transfer:
        """Post the write; the bytes that are in the source now are sent.

        Args:
            notify: Replaces the prepared notification for this call; None keeps it.

        Returns:
            The write in flight.

        Raises:
            ClosedError: The endpoint was closed.
            PeerError: The peer died or left.
            StaleRegionError: The owner freed the destination.

        Example:
            >>> prepared = endpoint.prepare_write(np.ones(4, np.uint8), remote)
            >>> prepared.post().wait()
            <Transfer write of 4 B, ...: done>
        """
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


def offset_of(value: int, call: str, name: str) -> int:
    """Check an offset in bytes."""
    if type(value) is int and 0 <= value <= U64_MAX:  # the slow path is slow for this common case
        return value
    return whole_in(value, U64_MAX, call, name)


def struct_of(region: RemoteRegion, call: str) -> CData:
    """Return C's struct of a region."""
    try:
        return region._c_struct
    except AttributeError:
        raise invalid(
            call,
            "expected a RemoteRegion, which the peer makes with export() and sends, got "
            f"{type(region).__name__}",
        ) from None
