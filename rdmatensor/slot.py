"""The receiving side of slots, which are destinations of tensors, matched by name.

The receiver makes the slot with Context.recv_slot() and takes tensors with get(). The sender
(slot_sender.py) opens its side with Endpoint.send_slot().
"""

from __future__ import annotations

import importlib
import math
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, cast

import numpy as np

from rdmatensor import errors
from rdmatensor._native.arguments import invalid, text_bytes, timeout_s_of
from rdmatensor._native.awaiting import until
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
from rdmatensor.memory import array_over, dtype_name
from rdmatensor.types import Array, DTypeLike, SlotKind

if TYPE_CHECKING:
    import torch


class SlotTensor:
    """A tensor received from a slot; `with` gives the array and returns the credit at the end.

    NumPy takes it as an array (`np.asarray(received)`), torch and others by DLPack
    (`torch.from_dlpack(received)`), without a copy.

    Ownership:
        The memory is the slot's, yours until release(): then the sender may write it, and this
        object gives it no more. An array that was taken before stays a view of that memory.

    Attributes:
        epoch: The number of the tensor in its slot, from 1.

    Example:
        >>> received = receiver.get(timeout_s=10)
        >>> float(received.array.sum()), np.asarray(received).shape
        (6.0, (3,))
        >>> received.release()
    """

    __slots__ = ("_array", "_is_released", "_slot", "epoch")

    def __init__(self, slot: SlotReceiver, array: Array, epoch: int) -> None:
        self._slot = slot
        self._array = array
        self.epoch = epoch
        self._is_released = False

    @property
    def array(self) -> Array:
        """A numpy array over the slot's memory; ClosedError once the memory is the sender's."""
        if self._is_released or self._slot._handle.ptr is None:
            what = "this tensor was released" if self._is_released else "the slot was closed"
            raise errors.ClosedError(
                "RDT_ECLOSED", "array", f"slot {self._slot.name!r}: {what}, so its memory is gone"
            )
        return self._array

    @property
    def tensor(self) -> torch.Tensor:
        """A torch tensor over the same memory, also of bfloat16, which numpy lacks."""
        loaded = importlib.import_module("torch")
        if self._slot.dtype != "bfloat16":
            return cast("torch.Tensor", loaded.from_numpy(self.array))
        bits = loaded.from_numpy(self.array.view("uint16"))
        return cast("torch.Tensor", bits.view(loaded.bfloat16))

    def release(self) -> None:
        """Give the buffer back to the sender; idempotent.

        Example:
            >>> received = receiver.get(timeout_s=10)
            >>> received.release()
        """
        if not self._is_released:
            self._is_released = True
            self._slot._take_back()

    @property
    def is_released(self) -> bool:
        """Whether release() was called."""
        return self._is_released

    def __array__(self, dtype: object = None, copy: bool | None = None) -> Array:
        if copy is None:  # older numpys have no such argument
            return np.asarray(self.array, cast("None", dtype))
        return np.array(self.array, cast("None", dtype), copy=copy)

    def __dlpack__(self, **options: object) -> object:
        if self._slot.dtype == "bfloat16":
            raise errors.NotSupportedError(
                "RDT_ENOTSUP", "__dlpack__", "numpy has no bfloat16: take SlotTensor.tensor"
            )
        array: Any = self.array  # its types exclude bool, which it accepts
        return cast("object", array.__dlpack__(**options))

    def __dlpack_device__(self) -> tuple[int, int]:
        return cast("tuple[int, int]", self._array.__dlpack_device__())

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(
            f"'SlotTensor' object has no attribute {name!r}: the numpy array is its .array, and "
            "what `with slot.get() as array:` gives; the torch tensor is its .tensor"
        )

    def __enter__(self) -> Array:
        return self.array

    def __exit__(self, *_: object) -> None:
        self.release()

    def __repr__(self) -> str:
        state = "released" if self._is_released else f"epoch {self.epoch}"
        return f"<SlotTensor of {self._slot.name!r}: {self._array.shape}, {state}>"


class SlotReceiver(Closable):
    """The receiving side of a slot; made by Context.recv_slot() and World.recv_slot().

    It has two buffers: one can be read while the other is filled. A context manager, and an
    asynchronous iterator over what arrives.

    Threads:
        One thread at a time. A signal handler must not call get() of a slot whose get() it may have
        interrupted.

    Attributes:
        name: The name that both sides use.
        shape: The shape, or the largest one of a bounded slot.
        dtype: The name of the dtype.
        kind: "static", "bounded" or "dynamic"; see Context.recv_slot().

    Example:
        >>> with receiver.get(timeout_s=10) as array:
        ...     float(array.sum())
        6.0
    """

    def __init__(
        self,
        core: Core,
        endpoint: CData,
        name: str,
        shape: int | Sequence[int],
        dtype: DTypeLike | None,
        kind: SlotKind,
    ) -> None:
        self.name = name
        self.shape = shape_of(shape, "recv_slot")
        self.dtype = dtype_name(dtype)
        self.kind: SlotKind = kind
        desc = tensor_desc(kind, self.dtype, self.shape, "recv_slot")
        out, err = ffi.new("rdt_slot **"), new_error()
        text = slot_name(name, "recv_slot")
        check(lib.rdt_slot_create(endpoint, text, desc, out, err), "recv_slot", err)
        self._core = core
        self._handle: Handle = core.adopt(Handle(f"slot {name!r}", out[0], lib.rdt_slot_destroy))
        self._held: deque[SlotTensor] = deque()
        self._arrays: dict[int, Array] = {}  # static: the two buffers, by address

    def get(self, timeout_s: float | None = None) -> SlotTensor:
        """Wait for the next tensor, in the sender's order.

        Args:
            timeout_s: Seconds to wait; None takes the context's deadline, 0 looks once.

        Returns:
            The tensor. A ``with`` block of it gives the numpy array over the slot's memory, of the
            shape that the sender gave, until the block ends.

        Raises:
            TransferTimeoutError: No tensor came.
            MismatchError: The sender expects another shape or dtype.
            PeerError: The sender died or left.
            BusyError: Two tensors are held already.
            StaleRegionError: The sender of a dynamic slot closed it before this tensor was read.
            ClosedError: The slot was closed.

        Example:
            >>> with receiver.get(timeout_s=10) as array:
            ...     total = array.sum()
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

    async def get_async(self, timeout_s: float | None = None) -> SlotTensor:
        """Wait for the next tensor in an asyncio event loop; see get().

        A task that is cancelled meanwhile takes no tensor.

        Args:
            timeout_s: Seconds to wait; None takes the context's deadline.

        Returns:
            The tensor, as get() returns it.

        Raises:
            TransferTimeoutError: No tensor came. The other exceptions are those of get().

        Example:
            >>> async def sum_of_next():
            ...     with await receiver.get_async(timeout_s=10) as array:
            ...         return float(array.sum())
            >>> asyncio.run(sum_of_next())
            6.0
        """
        limit_s = timeout_s_of(timeout_s, self._core.timeout_s, "get")
        return await until(partial(self.get, 0.0), limit_s)

    def __aiter__(self) -> SlotReceiver:
        return self

    async def __anext__(self) -> SlotTensor:
        """Return the next tensor; no deadline. The iteration ends when this side is closed."""
        try:
            return await until(partial(self.get, 0.0), math.inf)
        except errors.ClosedError:
            if self._handle.ptr is not None:
                raise
            raise StopAsyncIteration from None

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
        """Destroy the slot; the sender's next put() fails. Idempotent.

        Example:
            >>> other.recv_slot("unused", 3, src=peer).close()
        """
        self._arrays.clear()
        super().close()

    def __repr__(self) -> str:
        return f"<SlotReceiver {self.name!r} {self.kind} {self.dtype} {list(self.shape)}>"


def slot_name(name: str, call: str) -> bytes:
    """Return the name of a slot as C takes it."""
    data = text_bytes(name, call, "name")
    if not 1 <= len(data) < lib.RDT_SLOT_NAME_BYTES:
        raise invalid(call, f"name {name!r} must have 1 to {lib.RDT_SLOT_NAME_BYTES - 1} bytes")
    return data
