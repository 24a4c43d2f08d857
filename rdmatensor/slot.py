"""Slots: the destinations of tensors, matched by name.

The receiver makes the slot with Context.recv_slot() and takes tensors with get(). The sender opens
its side with Endpoint.send_slot() and sends tensors with put(), or writes them in buffer() and
calls post().
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import cast

from rdmatensor import errors
from rdmatensor._native.arguments import invalid, text_bytes, timeout_s_of
from rdmatensor._native.closable import Closable
from rdmatensor._native.core import Core
from rdmatensor._native.ffi import (
    OK,
    CData,
    Handle,
    check,
    fail,
    ffi,
    give,
    lib,
    new_error,
    shape_of,
    take,
    tensor_desc,
)
from rdmatensor.memory import array_over, describe_tensor, dtype_name, numpy_dtype, span
from rdmatensor.transfer import Transfer
from rdmatensor.types import Array, SlotKind, TensorLike


class SlotTensor:
    """A tensor received from a slot; `with` gives the array and returns the credit at the end.

    Ownership: the array is the slot's memory, yours until release(): then the sender may write it.
    """

    __slots__ = ("_is_released", "_slot", "array", "epoch")

    def __init__(self, slot: SlotReceiver, array: Array, epoch: int) -> None:
        self._slot = slot
        self.array = array
        self.epoch = epoch
        self._is_released = False

    def release(self) -> None:
        """Give the buffer back to the sender; idempotent."""
        if not self._is_released:
            self._is_released = True
            self._slot._take_back()

    @property
    def is_released(self) -> bool:
        """Whether release() was called."""
        return self._is_released

    def __enter__(self) -> Array:
        return self.array

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


class SlotReceiver(Closable):
    """The receiver's side; made by Context.recv_slot(). It has two buffers.

    Threads: one thread at a time. A signal handler must not call get() of a slot whose get() it may
        have interrupted.
    """

    def __init__(
        self,
        core: Core,
        endpoint: CData,
        name: str,
        shape: int | tuple[int, ...],
        dtype: object,
        kind: SlotKind,
    ) -> None:
        self.name = name
        self.shape = shape_of(shape, "recv_slot")
        self.dtype = dtype_name(dtype)
        self.kind: SlotKind = kind
        desc = tensor_desc(kind, self.dtype, self.shape, "recv_slot")
        out, err = ffi.new("rdt_slot **"), new_error()
        check(
            lib.rdt_slot_create(endpoint, _name(name, "recv_slot"), desc, out, err),
            "recv_slot",
            err,
        )
        self._core = core
        self._handle: Handle = core.adopt(Handle(f"slot {name!r}", out[0], lib.rdt_slot_destroy))
        self._held: deque[SlotTensor] = deque()
        self._arrays: dict[int, Array] = {}  # static: the two buffers, by address

    def get(self, timeout_s: float | None = None) -> SlotTensor:
        """Wait for the next tensor, in the sender's order.

        Use: `with slot.get(timeout_s=5) as t:`; t is a numpy array over the slot's memory, of the
            shape that the sender gave, until the block ends.
        Raises: TransferTimeoutError, MismatchError (the sender expects another shape or dtype),
            PeerError, BusyError (two are held already), StaleRegionError (the sender of a dynamic
            slot closed it before this tensor was read), ClosedError.
        """
        handle, frame = self._handle, take()
        err, view = frame.err, frame.view
        try:
            self._core.waiters.wait(
                lambda slice_ns: cast(
                    "int", lib.rdt_slot_get(handle.get("get"), slice_ns, view, err)
                ),
                "get",
                timeout_s_of(timeout_s, self._core.timeout_s, "get"),
                err,
            )
            held = SlotTensor(self, self._array_of(view), view.epoch)
        except errors.StaleRegionError as error:
            raise errors.StaleRegionError(
                error.code,
                "get",
                f"the sender closed its side of slot {self.name!r} before this tensor was read: "
                "there, call wait() on what put() returned first",
            ) from None
        finally:
            give(frame)
        self._held.append(held)
        return held

    def _array_of(self, view: CData) -> Array:
        if self.kind != "static":
            dims = tuple(view.dims[index] for index in range(view.ndim))
            return array_over(self._core, view.addr, dims, self.dtype)
        addr = int(ffi.cast("uintptr_t", view.addr))
        array = self._arrays.get(addr)
        if array is None:
            array = array_over(self._core, view.addr, self.shape, self.dtype)
            self._arrays[addr] = array
        return array

    def _take_back(self) -> None:
        """Return the credits of released tensors, in order, since the sender fills in order."""
        while self._held and self._held[0].is_released:
            self._held.popleft()
            ptr = self._handle.ptr
            if ptr is None:
                continue  # closed meanwhile: no sender needs it
            frame = take()
            status = lib.rdt_slot_release(ptr, frame.err)
            # A peer that is gone needs no credit; get() reports it.
            if status not in (OK, lib.RDT_EPEER, lib.RDT_ECLOSED):
                fail(status, "release", frame.err)
            give(frame)

    def close(self) -> None:
        """Destroy the slot; the sender's next put() fails. Idempotent."""
        self._arrays.clear()
        super().close()

    def __repr__(self) -> str:
        return f"<SlotReceiver {self.name!r} {self.kind} {self.dtype} {list(self.shape)}>"


class SlotSender(Closable):
    """The sender's side; made by Endpoint.send_slot(). Threads: one thread at a time."""

    def __init__(
        self,
        core: Core,
        endpoint: Callable[[str], CData],
        name: str,
        shape: int | tuple[int, ...] | None,
        dtype: object,
        kind: SlotKind,
        timeout_s: float | None,
    ) -> None:
        self.name = name
        self.kind: SlotKind = kind
        self.shape: tuple[int, ...] | None = None
        self.dtype: str | None = None
        self._core = core
        self._endpoint = endpoint
        self._handle: Handle | None = None
        self._filling: tuple[int, ...] | None = None
        self._arrays: dict[int, Array] = {}
        self._timeout_s = timeout_s_of(timeout_s, core.timeout_s, "send_slot")
        if shape is None and dtype is not None:
            raise invalid("send_slot", f"slot {name!r}: give a shape with the dtype, or neither")
        if shape is not None:
            self._open(shape_of(shape, "send_slot"), dtype_name(dtype))
        elif kind == "bounded":
            raise invalid(
                "send_slot", f"slot {name!r} is bounded: give the maximum shape and the dtype"
            )

    def _open(self, shape: tuple[int, ...], dtype: str) -> CData:
        desc = tensor_desc(self.kind, dtype, shape, "send_slot")
        name, err = _name(self.name, "send_slot"), new_error()
        made = ffi.new("rdt_slot_tx **")
        # The known description may be old: the receiver may have made a new slot of this name.
        lib.rdt_context_progress(self._core.get("send_slot"))
        self._core.waiters.wait(
            lambda slice_ns: cast(
                "int",
                lib.rdt_slot_tx_open(self._endpoint("send_slot"), name, desc, slice_ns, made, err),
            ),
            "send_slot",
            self._timeout_s,
            err,
        )
        handle = Handle(f"slot {self.name!r}", made[0], lib.rdt_slot_tx_destroy)
        self._handle = self._core.adopt(handle)
        self.shape, self.dtype = shape, dtype
        return handle.get("send_slot")

    def put(self, tensor: TensorLike, timeout_s: float | None = None) -> Transfer:
        """Write a tensor into the slot, one-sided; waits for a free buffer.

        Shapes: the slot's; at most it in each dim for a bounded slot; any of its ndim for a dynamic
            one. No copy is made.
        Ownership: the tensor is kept alive, and must not change, until the Transfer is done: on shm
            mostly at once, for a dynamic slot when the receiver has read it. Wait for it before
            close(), which withdraws what was not read.
        Raises: TransferTimeoutError (the receiver released nothing), MismatchError,
            InvalidArgumentError (dtype or ndim is not the slot's), PeerError, ClosedError.
        """
        dtype, shape = describe_tensor(tensor, "put")
        if self._handle is None:
            self._open(shape, dtype)
        self._check(dtype, shape, "put")
        data, len_bytes = span(tensor, "put")
        frame = take()
        err, out, dims = frame.err, frame.transfer, _fill(frame.dims, shape)
        try:
            self._core.waiters.wait(
                lambda slice_ns: cast(
                    "int", lib.rdt_slot_tx_put(self._ptr("put"), data, dims, slice_ns, out, err)
                ),
                "put",
                timeout_s_of(timeout_s, self._core.timeout_s, "put"),
                err,
            )
        except errors.StaleRegionError as error:  # its memory was freed before its end was noticed
            raise errors.ClosedError(
                "RDT_ECLOSED", "put", f"the receiver closed slot {self.name!r}: {error.detail}"
            ) from None
        return Transfer(self._core, frame, data, partial(self._operation, len_bytes))

    def buffer(
        self, shape: int | tuple[int, ...] | None = None, timeout_s: float | None = None
    ) -> Array:
        """Return memory to write the next tensor in place; waits for a free buffer.

        Shapes: the slot's, or for a bounded slot any within it. The content is undefined.
        Ownership: yours until post(); do not use the array after it, nor after close(): on shm it
            is the receiver's own memory.
        Raises: as put(); NotSupportedError for a dynamic slot (put a tensor instead).
        """
        self._ptr("buffer")
        whole = cast("tuple[int, ...]", self.shape)
        dims = whole if shape is None else shape_of(shape, "buffer")
        self._check(cast("str", self.dtype), dims, "buffer")
        if any(dim > most for dim, most in zip(dims, whole, strict=True)) or (
            self.kind == "static" and dims != whole
        ):
            raise errors.MismatchError(
                "RDT_EMISMATCH", "buffer", f"slot {self.name!r} has {whole}, not {dims}"
            )
        frame = take()
        out, err = frame.pointer, frame.err
        self._core.waiters.wait(
            lambda slice_ns: cast(
                "int", lib.rdt_slot_tx_buffer(self._ptr("buffer"), slice_ns, out, err)
            ),
            "buffer",
            timeout_s_of(timeout_s, self._core.timeout_s, "buffer"),
            err,
        )
        self._filling = dims
        memory = out[0]
        give(frame)
        addr = int(ffi.cast("uintptr_t", memory))
        array = self._arrays.get(addr)
        if array is None or array.shape != dims:
            array = array_over(self._core, memory, dims, cast("str", self.dtype))
            self._arrays[addr] = array
        return array

    def post(self) -> Transfer:
        """Send what buffer() returned; returns at once."""
        if self._filling is None:
            raise invalid("post", f"slot {self.name!r}: buffer() comes first")
        frame = take()
        out, err, dims = frame.transfer, frame.err, _fill(frame.dims, self._filling)
        check(lib.rdt_slot_tx_post(self._ptr("post"), dims, out, err), "post", err)
        item_bytes = numpy_dtype(cast("str", self.dtype), "post").itemsize
        len_bytes = item_bytes * math.prod(self._filling)
        self._filling = None
        return Transfer(self._core, frame, None, partial(self._operation, len_bytes))

    def _ptr(self, call: str) -> CData:
        if self._handle is None:
            raise invalid(
                call,
                f"slot {self.name!r}: give Endpoint.send_slot() a shape and a dtype, or put() a "
                "tensor first",
            )
        return self._handle.get(call)

    def _check(self, dtype: str, shape: tuple[int, ...], call: str) -> None:
        """Check what C cannot see; it checks the dims."""
        if dtype != self.dtype:
            raise errors.MismatchError(
                "RDT_EMISMATCH", call, f"slot {self.name!r} has dtype {self.dtype}, not {dtype}"
            )
        if len(shape) != len(cast("tuple[int, ...]", self.shape)):
            raise errors.MismatchError(
                "RDT_EMISMATCH", call, f"slot {self.name!r} has shape {self.shape}, not {shape}"
            )

    def _operation(self, len_bytes: int) -> str:
        return f"slot {self.name!r}: put of {len_bytes} B"

    def close(self) -> None:
        """Close this side; idempotent. Withdraws what no receiver of a dynamic slot has read."""
        self._arrays.clear()
        super().close()

    def __repr__(self) -> str:
        return f"<SlotSender {self.name!r} {self.kind} {self.dtype} {self.shape}>"


def _name(name: str, call: str) -> bytes:
    data = text_bytes(name, call, "name")
    if not 1 <= len(data) < lib.RDT_SLOT_NAME_BYTES:
        raise invalid(call, f"name {name!r} must have 1 to {lib.RDT_SLOT_NAME_BYTES - 1} bytes")
    return data


def _fill(dims: CData, shape: tuple[int, ...]) -> CData:
    for index, dim in enumerate(shape):
        dims[index] = dim
    return dims
