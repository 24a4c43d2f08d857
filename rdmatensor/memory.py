"""Memory: arrays in the arena, regions over the user's own memory, and handles for peers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import ClassVar, cast

import numpy as np

from rdmatensor._native.arguments import invalid, raw_bytes
from rdmatensor._native.closable import Closable
from rdmatensor._native.core import Core
from rdmatensor._native.ffi import (
    BYTES,
    CData,
    Handle,
    check,
    dtype_code,
    ffi,
    lib,
    new_error,
    shape_of,
)
from rdmatensor.types import Array, DTypeLike, TensorLike, TorchTensor


@dataclass(frozen=True)
class RemoteRegion:
    """The handle by which a peer accesses a region of this process. Pickle it, or encode() it.

    Made by Context.export() and Region.export(); only the C library uses its fields.

    It is a capability: a process that has it and is admitted to the job may write the region until
    the owner frees it.

    Attributes:
        len_bytes: Size of the region.

    Example:
        >>> handle = context.export(context.zeros(4))
        >>> pickle.loads(pickle.dumps(handle)) == handle
        True
    """

    ENCODED_BYTES: ClassVar[int] = int(lib.RDT_REMOTE_REGION_BYTES)

    owner: bytes
    addr: int
    len_bytes: int
    segment_off: int
    segment: int
    index: int
    generation: int
    rkey: int

    @cached_property
    def _c_struct(self) -> CData:
        """The struct rdt_remote_region *."""
        struct = ffi.new("struct rdt_remote_region *")
        ffi.memmove(struct.owner, self.owner, lib.RDT_UUID_BYTES)
        for field in fields(self)[1:]:
            setattr(struct, field.name, getattr(self, field.name))
        return struct

    @staticmethod
    def _of_struct(struct: CData) -> RemoteRegion:
        """Copy a struct rdt_remote_region *."""
        names = [field.name for field in fields(RemoteRegion)[1:]]
        owner = bytes(ffi.buffer(struct.owner, lib.RDT_UUID_BYTES))
        return RemoteRegion(owner, *(getattr(struct, name) for name in names))

    def encode(self) -> bytes:
        """Return the handle as bytes, of the format in wire.md.

        Returns:
            RemoteRegion.ENCODED_BYTES (64) bytes.

        Example:
            >>> len(context.export(context.zeros(4)).encode()) == RemoteRegion.ENCODED_BYTES
            True
        """
        out = ffi.new("uint8_t[]", lib.RDT_REMOTE_REGION_BYTES)
        lib.rdt_remote_region_encode(self._c_struct, out)
        return bytes(ffi.buffer(out))

    @staticmethod
    def decode(data: bytes | bytearray | memoryview) -> RemoteRegion:
        """Read the result of encode().

        Args:
            data: Bytes, or an object with the buffer protocol.

        Returns:
            The handle.

        Raises:
            ProtocolError: The bytes are damaged.
            VersionMismatchError: Another version encoded it.
            InvalidArgumentError: `data` has no bytes.

        Example:
            >>> RemoteRegion.decode(context.export(context.zeros(4)).encode()).len_bytes
            16
        """
        struct = ffi.new("struct rdt_remote_region *")
        raw = raw_bytes(data, "RemoteRegion.decode", "data", "RemoteRegion.encode()")
        err = new_error()
        status = lib.rdt_remote_region_decode(raw, len(raw), struct, err)
        check(status, "RemoteRegion.decode", err)
        return RemoteRegion._of_struct(struct)

    def __reduce__(self) -> tuple[object, ...]:
        return (RemoteRegion.decode, (self.encode(),))

    def __repr__(self) -> str:
        """Without the rkey, which is confidential."""
        return (
            f"RemoteRegion(owner={self.owner.hex()[:8]}, {self.len_bytes} B, "
            f"index={self.index}, generation={self.generation})"
        )


DEFAULT_DTYPE = "float32"


def dtype_name(dtype: DTypeLike | None) -> str:
    """Return the name of a dtype given as a name, a numpy dtype or type, or a torch dtype.

    None is DEFAULT_DTYPE in every call, not numpy's float64.
    """
    if dtype is None:
        return DEFAULT_DTYPE
    text = dtype if isinstance(dtype, str) else str(dtype)
    if text.startswith("torch."):
        return text[len("torch.") :]
    try:
        found = np.dtype(cast("str", dtype))
    except TypeError:
        return text  # bfloat16, or unknown: dtype_code() decides
    if not found.isnative:
        raise invalid("dtype", f"dtype {found!r} is not in this machine's byte order")
    return str(found.name)


def numpy_dtype(name: str, call: str) -> np.dtype[np.generic]:
    """Return numpy's dtype. bfloat16, which numpy lacks, is ml_dtypes' or raw uint16."""
    dtype_code(name, call)
    if name != "bfloat16":
        return np.dtype(name)
    try:
        return np.dtype("bfloat16")  # known once ml_dtypes is imported
    except TypeError:
        return np.dtype("uint16")


def span(tensor: TensorLike, call: str, *, writable: bool = False) -> tuple[CData, int]:
    """The entry check of every tensor: return its bytes as cffi char[] and their count.

    The char[] keeps what it points into alive. A tensor is refused, never copied, if it is not
    row-major without gaps, not on the CPU, not writable where it must be, or of a dtype whose bytes
    have no meaning in another process.
    """
    if isinstance(tensor, np.ndarray):
        if tensor.dtype.hasobject:
            raise invalid(call, f"dtype {tensor.dtype} holds Python objects; their bytes are local")
    elif hasattr(tensor, "data_ptr"):
        return _torch_span(cast("TorchTensor", tensor), call)
    try:
        data = ffi.from_buffer(BYTES, tensor, require_writable=writable)
    except (TypeError, ValueError, BufferError) as error:
        raise invalid(call, _why_refused(tensor, error, writable=writable)) from None
    return data, len(data)


def _why_refused(tensor: object, error: Exception, *, writable: bool) -> str:
    """Say what is wrong with an object without bytes, and what to do; error: its error."""
    try:
        with memoryview(cast("bytes", tensor)) as view:
            is_read_only, has_gaps = view.readonly, not view.c_contiguous
    except TypeError:
        return _no_tensor(tensor)
    except (ValueError, BufferError):
        return f"{_shown(tensor)}: {error}"
    if has_gaps:
        return (
            f"{_shown(tensor)} is not row-major without gaps, and nothing is copied silently: "
            "copy it yourself, for example with np.ascontiguousarray()"
        )
    if writable and is_read_only:
        return f"{_shown(tensor)} is read-only, and would be written"
    return f"{_shown(tensor)}: {error}"


def _no_tensor(thing: object) -> str:
    return (
        f"expected a NumPy array, an object with the buffer protocol or a CPU torch tensor, got "
        f"{type(thing).__name__}"
    )


def _torch_span(tensor: TorchTensor, call: str) -> tuple[CData, int]:
    layout = str(getattr(tensor, "layout", "torch.strided"))
    device = getattr(getattr(tensor, "device", None), "type", "cpu")
    if layout != "torch.strided":
        raise invalid(call, f"{_shown(tensor)} has layout {layout}, not torch.strided")
    if device != "cpu":
        raise invalid(call, f"{_shown(tensor)} is on {device!r}: copy it to the CPU yourself")
    if not tensor.is_contiguous():
        raise invalid(
            call,
            f"{_shown(tensor)} is not contiguous, and nothing is copied silently: send its "
            "contiguous()",
        )
    if any(getattr(tensor, ask, bool)() for ask in ("is_conj", "is_neg")):
        raise invalid(call, f"{_shown(tensor)} is a lazy conjugate or negative: resolve it first")
    len_bytes = tensor.numel() * tensor.element_size()
    # from_buffer() does not accept it, so a cffi owner keeps the tensor alive.
    data = ffi.gc(ffi.cast("char *", tensor.data_ptr()), _Keep(tensor))
    return data, len_bytes


class _Keep:
    """A destructor that does nothing but keep an object alive until it is dropped itself."""

    __slots__ = ("kept",)

    def __init__(self, kept: object) -> None:
        self.kept = kept

    def __call__(self, _: CData) -> None:
        """Nothing to destroy."""


def _shown(tensor: object) -> str:
    shape = getattr(tensor, "shape", None)
    return type(tensor).__name__ + (f" of shape {tuple(shape)}" if shape is not None else "")


def describe_tensor(tensor: TensorLike, call: str) -> tuple[str, tuple[int, ...]]:
    """Return (dtype name, shape) of a tensor; bytes-like objects are uint8 vectors."""
    dtype = getattr(tensor, "dtype", None)
    if dtype is None:
        try:
            return "uint8", (memoryview(cast("bytes", tensor)).nbytes,)
        except TypeError:
            raise invalid(call, _no_tensor(tensor)) from None
    name = dtype_name(dtype)
    dtype_code(name, call)
    return name, tuple(int(dim) for dim in cast("Array", tensor).shape)


def array_over(
    core: Core, ptr: CData, shape: tuple[int, ...], dtype: str, region: CData | None = None
) -> Array:
    """Return an array over C memory; region, if given, is freed with its last view."""
    kind = numpy_dtype(dtype, "array")
    len_bytes = math.prod(shape) * kind.itemsize
    array: Array = np.ndarray(shape, kind, buffer=core.buffer(ptr, len_bytes, region))
    return array


def new_array(
    core: Core, shape: int | Sequence[int], dtype: DTypeLike | None, *, zero: bool, call: str
) -> Array:
    """Allocate an array in the arena."""
    dims, name = shape_of(shape, call), dtype_name(dtype)
    len_bytes = math.prod(dims) * numpy_dtype(name, call).itemsize
    if len_bytes >= 1 << 62:
        raise invalid(call, f"shape {dims} of {name} has {len_bytes} bytes")
    core.reap()
    out, err = ffi.new("rdt_region **"), new_error()
    flags = lib.RDT_REGION_ZERO if zero else 0
    check(lib.rdt_region_alloc(core.get(call), len_bytes, flags, out, err), call, err)
    return array_over(core, lib.rdt_region_addr(out[0]), dims, name, out[0])


def export(core: Core, tensor: TensorLike) -> RemoteRegion:
    """Make the region of a whole tensor accessible to peers."""
    data, len_bytes = span(tensor, "export")
    ptr = core.get("export")
    core.refuse_fork("export")
    region = lib.rdt_region_find(ptr, data, len_bytes)
    if region == ffi.NULL:
        raise invalid(
            "export",
            f"{_shown(tensor)} lies in no region: make it with empty() or zeros(), or register() "
            "what you have",
        )
    has_start = lib.rdt_region_addr(region) == ffi.cast("void *", data)
    if not has_start or lib.rdt_region_len_bytes(region) != len_bytes:
        raise invalid(
            "export",
            f"{_shown(tensor)} is {len_bytes} bytes of a region of "
            f"{lib.rdt_region_len_bytes(region)}: export the whole array, and let peers write a "
            "part of it with dst_offset_bytes",
        )
    return export_region(region)


def export_region(region: CData) -> RemoteRegion:
    """Export a C region."""
    struct, err = ffi.new("struct rdt_remote_region *"), new_error()
    check(lib.rdt_region_export(region, struct, err), "export", err)
    return RemoteRegion._of_struct(struct)


class Region(Closable):
    """The user's own memory that peers may write and read; made by Context.register().

    Ownership:
        The memory is kept alive until close(), and after it until no peer can write it any more; it
        must not be moved or resized meanwhile (a bytearray refuses to).

    Threads:
        Any thread.

    Attributes:
        len_bytes: Size of the memory.

    Example:
        >>> with context.register(bytearray(100)) as region:
        ...     region.len_bytes
        100
    """

    def __init__(self, core: Core, tensor: TensorLike) -> None:
        data, self.len_bytes = span(tensor, "register", writable=True)
        out, err = ffi.new("rdt_region **"), new_error()
        status = lib.rdt_region_register(core.get("register"), data, self.len_bytes, out, err)
        check(status, "register", err)
        self._core = core

        def destroy(region: CData) -> None:
            core.drain(region, data)

        self._handle: Handle = core.adopt(Handle("region", out[0], destroy))

    def export(self) -> RemoteRegion:
        """Return the handle by which a peer accesses it.

        Returns:
            The handle; an equal one at each call.

        Raises:
            ClosedError: The region was closed.

        Example:
            >>> with context.register(bytearray(100)) as region:
            ...     region.export().len_bytes
            100
        """
        return export_region(self._handle.get("export"))

    def close(self) -> None:
        """Withdraw it from peers, whose handles become stale. Idempotent.

        Example:
            >>> context.register(bytearray(100)).close()
        """
        super().close()
        self._core.reap()

    def __repr__(self) -> str:
        return f"<Region of {self.len_bytes} B{'' if self._handle.ptr is not None else ', closed'}>"

    def _name(self) -> str:
        return f"a Region of {self.len_bytes} B"
