"""The sending side of slots: put(), or buffer() and post()."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import cast

from rdmatensor import errors
from rdmatensor._native.arguments import invalid, timeout_s_of
from rdmatensor._native.awaiting import until
from rdmatensor._native.closable import Closable
from rdmatensor._native.core import Core
from rdmatensor._native.ffi import (
    CData,
    Handle,
    check,
    ffi,
    give,
    lib,
    new_error,
    shape_of,
    take,
    tensor_desc,
)
from rdmatensor.memory import array_over, describe_tensor, dtype_name, numpy_dtype, span
from rdmatensor.slot import slot_name
from rdmatensor.transfer import Transfer
from rdmatensor.types import Array, DTypeLike, SlotKind, TensorLike


class SlotSender(Closable):
    """The sending side of a slot; made by Endpoint.send_slot(). A context manager.

    Threads:
        One thread at a time.

    Attributes:
        name: The name that both sides use.
        shape: The shape, or the largest one of a bounded slot; None until the first put() if none
            was given.
        dtype: The name of the dtype; None until then.
        kind: "static", "bounded" or "dynamic".

    Example:
        >>> with endpoint.send_slot("numbers", (3,)) as out:
        ...     out.put(np.ones(3, np.float32)).wait()
        <Transfer slot 'numbers': put of 12 B: done>
    """

    def __init__(
        self,
        core: Core,
        endpoint: Callable[[str], CData],
        name: str,
        shape: int | Sequence[int] | None,
        dtype: DTypeLike | None,
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
        if shape is None and kind == "bounded":
            raise invalid(
                "send_slot", f"slot {name!r} is bounded: give the maximum shape and the dtype"
            )
        self._asked = None if shape is None else (shape_of(shape, "send_slot"), dtype_name(dtype))

    def _find(self, timeout_s: float | None = None) -> SlotSender:
        """Find the receiver's slot if its shape is known; Endpoint.send_slot() calls this."""
        if self._handle is None and self._asked is not None:
            self._open(*self._asked, timeout_s)
        return self

    def _open(self, shape: tuple[int, ...], dtype: str, timeout_s: float | None = None) -> None:
        desc = tensor_desc(self.kind, dtype, shape, "send_slot")
        name, err = slot_name(self.name, "send_slot"), new_error()
        made = ffi.new("rdt_slot_tx **")
        # The known description may be old: the receiver may have made a new slot of this name.
        lib.rdt_context_progress(self._core.get("send_slot"))
        self._core.waiters.wait(
            lambda slice_ns: cast(
                "int",
                lib.rdt_slot_tx_open(self._endpoint("send_slot"), name, desc, slice_ns, made, err),
            ),
            "send_slot",
            self._timeout_s if timeout_s is None else timeout_s,
            err,
        )
        handle = Handle(f"slot {self.name!r}", made[0], lib.rdt_slot_tx_destroy)
        self._handle = self._core.adopt(handle)
        self.shape, self.dtype = shape, dtype

    def put(self, tensor: TensorLike, timeout_s: float | None = None) -> Transfer:
        """Write a tensor into the slot, one-sided; waits for a free buffer.

        No copy is made.

        Ownership:
            The tensor is kept alive, and must not change, until the Transfer is done: on shm mostly
            at once, for a dynamic slot when the receiver has read it. Wait for it before close(),
            which withdraws what was not read.

        Args:
            tensor: A tensor of the slot's dtype and shape; at most its shape in each dim for a
                bounded slot, any shape of its number of dims for a dynamic one.
            timeout_s: Seconds to wait for a free buffer; None takes the context's deadline.

        Returns:
            The write in flight.

        Raises:
            TransferTimeoutError: The receiver released no buffer.
            MismatchError: The shape, the dtype or the number of dims is not the slot's.
            PeerError: The receiver died or left.
            ClosedError: The slot was closed, here or by the receiver.

        Example:
            >>> sender.put(np.ones(3, np.float32)).wait()
            <Transfer slot 'acts': put of 12 B: done>
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

    async def put_async(self, tensor: TensorLike, timeout_s: float | None = None) -> Transfer:
        """Write a tensor as put() does, and wait for a free buffer in an asyncio event loop.

        Args:
            tensor: As for put().
            timeout_s: Seconds to wait for a free buffer; None takes the context's deadline.

        Returns:
            The write in flight, which can be awaited too.

        Raises:
            TransferTimeoutError: The receiver released no buffer. The other exceptions are those of
                put().

        Example:
            >>> async def send(array):
            ...     await (await sender.put_async(array, timeout_s=10))
            >>> asyncio.run(send(np.ones(3, np.float32)))
        """
        limit_s = timeout_s_of(timeout_s, self._core.timeout_s, "put")
        if self._handle is None:
            dtype, shape = describe_tensor(tensor, "put")
            await until(partial(self._open, shape, dtype, 0.0), self._timeout_s)
        return await until(partial(self.put, tensor, 0.0), limit_s)

    def buffer(
        self, shape: int | Sequence[int] | None = None, timeout_s: float | None = None
    ) -> Array:
        """Return memory to write the next tensor in place; waits for a free buffer.

        Ownership:
            Yours until post(); do not use the array after it, nor after close(): on shm it is the
            receiver's own memory.

        Args:
            shape: The slot's shape, or for a bounded slot any within it; None takes the slot's.
            timeout_s: Seconds to wait for a free buffer; None takes the context's deadline.

        Returns:
            An array with undefined content.

        Raises:
            NotSupportedError: The slot is dynamic: put() a tensor instead. The other exceptions are
                those of put().

        Example:
            >>> sender.buffer()[:] = [1, 2, 3]
            >>> sender.post().wait()
            <Transfer slot 'acts': put of 12 B: done>
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

    async def buffer_async(
        self, shape: int | Sequence[int] | None = None, timeout_s: float | None = None
    ) -> Array:
        """Return memory as buffer() does, and wait for it in an asyncio event loop.

        Args:
            shape: As for buffer().
            timeout_s: Seconds to wait for a free buffer; None takes the context's deadline.

        Returns:
            An array with undefined content.

        Raises:
            TransferTimeoutError: The receiver released no buffer. The other exceptions are those of
                buffer().

        Example:
            >>> async def send():
            ...     (await sender.buffer_async())[:] = 2
            ...     await sender.post()
            >>> asyncio.run(send())
        """
        limit_s = timeout_s_of(timeout_s, self._core.timeout_s, "buffer")
        return await until(partial(self.buffer, shape, 0.0), limit_s)

    def post(self) -> Transfer:
        """Send what buffer() returned; returns at once.

        Returns:
            The write in flight.

        Raises:
            InvalidArgumentError: buffer() was not called before.
            PeerError: The receiver died or left.
            ClosedError: The slot was closed, here or by the receiver.

        Example:
            >>> sender.buffer()[:] = 2
            >>> sender.post().wait()
            <Transfer slot 'acts': put of 12 B: done>
        """
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
        """Close this side; idempotent. Withdraws what no receiver of a dynamic slot has read.

        Example:
            >>> endpoint.send_slot("numbers").close()
        """
        self._arrays.clear()
        super().close()

    def __repr__(self) -> str:
        return f"<SlotSender {self.name!r} {self.kind} {self.dtype} {self.shape}>"


def _fill(dims: CData, shape: tuple[int, ...]) -> CData:
    for index, dim in enumerate(shape):
        dims[index] = dim
    return dims
