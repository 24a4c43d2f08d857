"""The only access to the C library: statuses become exceptions here, and handles are guarded here.

Code that handles cffi's untyped values marks them as CData; no other module uses Any.
"""

from __future__ import annotations

import difflib
import operator
import re
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TypeAlias

from rdmatensor import errors
from rdmatensor._native.arguments import invalid
from rdmatensor.types import DTYPE_NAMES

try:
    from rdmatensor._rdmatensor_cffi import ffi as ffi
    from rdmatensor._rdmatensor_cffi import lib as lib
except ImportError as error:
    raise ImportError(
        f"the C library of rdmatensor does not load ({error}); build and install it with "
        "`pip install --no-build-isolation .`, then ask `python -m rdmatensor doctor`"
    ) from error

CData: TypeAlias = Any
# cffi's array of bytes over an object with the buffer protocol; it holds the object's buffer.
BYTES: CData = ffi.typeof("char[]")

OK: int = lib.RDT_OK
AGAIN: int = lib.RDT_EAGAIN
TIMED_OUT: int = lib.RDT_ETIMEDOUT

# A waiting thread returns to Python this often, so that Ctrl-C and close() are noticed.
SLICE_S = 0.1
SLICE_NS = 100_000_000

RAISE_FLAG: CData = ffi.addressof(lib, "rdtpy_raise_flag")
RING: CData = ffi.addressof(lib, "rdtpy_ring")
GIVE_ADDRESS: CData = ffi.addressof(lib, "rdtpy_give_address")

_CLASSES: dict[int, type[errors.RdmaTensorError]] = {
    lib.RDT_EINVAL: errors.InvalidArgumentError,
    lib.RDT_ENOMEM: errors.OutOfMemoryError,
    lib.RDT_EAGAIN: errors.TransferTimeoutError,
    lib.RDT_ETIMEDOUT: errors.TransferTimeoutError,
    lib.RDT_ECLOSED: errors.ClosedError,
    lib.RDT_EPEER: errors.PeerError,
    lib.RDT_EPROTO: errors.ProtocolError,
    lib.RDT_EAUTH: errors.AuthenticationError,
    lib.RDT_EVERSION: errors.VersionMismatchError,
    lib.RDT_EDEVICE: errors.DeviceError,
    lib.RDT_ESTALE: errors.StaleRegionError,
    lib.RDT_ERANGE: errors.InvalidArgumentError,
    lib.RDT_EBUSY: errors.BusyError,
    lib.RDT_EFORKED: errors.ForkedProcessError,
    lib.RDT_EMISMATCH: errors.MismatchError,
    lib.RDT_ENOTSUP: errors.NotSupportedError,
    lib.RDT_ECANCELED: errors.CanceledError,
    lib.RDT_ENOTVIABLE: errors.TransportNotViableError,
    lib.RDT_EINTERNAL: errors.InternalError,
    lib.RDT_ECORRUPT: errors.CorruptedDataError,
}

# How C's messages begin: rdt_slot_tx_put is "slot_tx_put", rdt_endpoint_write only "write".
_C_CALLS = frozenset(
    part
    for name in dir(lib)
    if name.startswith("rdt_")
    for part in (name[4:], name[4:].partition("_")[2])
)

_DTYPE_CODES = {name: getattr(lib, code) for name, code in zip(
    DTYPE_NAMES,
    ("RDT_BOOL", "RDT_U8", "RDT_I8", "RDT_I16", "RDT_U16", "RDT_I32", "RDT_U32", "RDT_I64",
     "RDT_U64", "RDT_F16", "RDT_BF16", "RDT_F32", "RDT_F64", "RDT_C64", "RDT_C128"),
    strict=True,
)}  # fmt: skip

KINDS: dict[str, int] = {
    "static": lib.RDT_SLOT_STATIC,
    "bounded": lib.RDT_SLOT_BOUNDED,
    "dynamic": lib.RDT_SLOT_DYNAMIC,
}
TRANSPORTS: dict[str, int] = {
    "auto": lib.RDT_TRANSPORT_AUTO,
    "shm": lib.RDT_TRANSPORT_SHM,
    "tcp": lib.RDT_TRANSPORT_TCP,
    "verbs": lib.RDT_TRANSPORT_VERBS,
}
TRANSPORT_NAMES = {code: name for name, code in TRANSPORTS.items()}
REDUCE_OPS: dict[str, int] = {
    "sum": lib.RDT_SUM,
    "avg": lib.RDT_AVG,
    "product": lib.RDT_PRODUCT,
    "min": lib.RDT_MIN,
    "max": lib.RDT_MAX,
    "band": lib.RDT_BAND,
    "bor": lib.RDT_BOR,
    "bxor": lib.RDT_BXOR,
}
_OTHER_NAMES = {"mean": "avg", "average": "avg", "add": "sum", "prod": "product", "mul": "product"}


def reduce_op_code(op: object, call: str) -> int:
    """Return the number of a reduction, given by name in any case or as torch's ReduceOp.SUM."""
    text = getattr(op, "name", op)
    code = REDUCE_OPS.get(text.lower()) if isinstance(text, str) else None
    if code is None:
        known = ", ".join(REDUCE_OPS)
        word = str(text).lower()
        near = difflib.get_close_matches(_OTHER_NAMES.get(word, word), REDUCE_OPS, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise invalid(call, f"op {op!r} is not one of {known}{hint}")
    return code


class Frame:
    """Arguments and outputs of one C call, from take() to give().

    One set per thread is not enough: a signal handler or finalizer may call while the thread waits.
    An ffi.new() for each call would double its cost.
    """

    __slots__ = ("dims", "err", "number", "pointer", "transfer", "view")

    def __init__(self) -> None:
        self.err: CData = new_error()
        self.transfer: CData = ffi.new("rdt_transfer **")
        self.number: CData = ffi.new("uint32_t *")
        self.pointer: CData = ffi.new("void **")
        self.view: CData = ffi.new("struct rdt_slot_view *")
        self.dims: CData = ffi.new("uint64_t[]", lib.RDT_MAX_NDIM)


_idle_frames: list[Frame] = []
# A frame is returned when its outputs have been read. A call that raises drops its frame.
give = _idle_frames.append


def take() -> Frame:
    """Return a frame that is not in use; list.pop() is atomic."""
    try:
        return _idle_frames.pop()
    except IndexError:
        return Frame()


def new_error() -> CData:
    """Make a struct rdt_error, for rare calls."""
    return ffi.new("struct rdt_error *")


def status_name(status: int) -> str:
    """Return for example "RDT_EPEER"."""
    name: str = ffi.string(lib.rdt_status_name(status)).decode()
    return name


def _in_python_s_words(detail: str) -> str:
    """Drop the C call's name, as a message ends with Python's; add a hint on join()."""
    head, colon, rest = detail.partition(": ")
    if colon and head in _C_CALLS:
        detail = rest
    if "cannot be reached: it has exited" in detail:
        detail += (
            "; after join(), the store may also hold what an earlier run left: use a fresh folder"
        )
    return detail


def error_of(status: int, call: str, err: CData) -> errors.RdmaTensorError:
    """Make the exception of a status other than RDT_OK; err is what the call filled."""
    cls = _CLASSES.get(status, errors.InternalError)
    detail = ffi.string(err.message).decode("utf-8", "replace") if err.status == status else ""
    if cls is errors.DeviceError and err.status == status and err.wc_status != 0:
        cls = errors.CompletionError
    if not detail:
        name = status_name(status)
        detail = "nothing is there yet" if status == AGAIN else f"{call} ended with {name}"
    detail = _in_python_s_words(detail)
    error = cls(status_name(status), call, detail)
    if err.status == status:
        error.rank = err.peer_rank
        if isinstance(error, errors.DeviceError):
            error.sys_errno = err.sys_errno
        if isinstance(error, errors.CompletionError):
            error.wc_status, error.vendor_err = err.wc_status, err.vendor_err
    return error


def fail(status: int, call: str, err: CData) -> NoReturn:
    """Raise the exception of a status."""
    raise error_of(status, call, err)


def check(status: int, call: str, err: CData) -> None:
    """Raise unless the call, which filled err, returned RDT_OK."""
    if status != OK:
        fail(status, call, err)


class Waiters:
    """The threads that wait inside C, so that close() can wait for them to return."""

    __slots__ = ("_threads", "is_closing")

    def __init__(self) -> None:
        self.is_closing = False
        self._threads: set[int] = set()

    def wait(self, attempt: Callable[[int], int], call: str, timeout_s: float, err: CData) -> None:
        """Call attempt(nanoseconds), in slices, until it returns RDT_OK or the deadline passes.

        attempt is one C call, on err, that may be repeated after a timeout. Signal handlers and
        finalizers run between the slices and may close the handle: attempt must own its arguments,
        and must check its handle each time.
        """
        me = threading.get_ident()
        is_outermost = me not in self._threads
        self._threads.add(me)
        try:
            if self.is_closing:
                raise errors.ClosedError("RDT_ECLOSED", call, "the context was closed")
            if timeout_s <= SLICE_S:
                status = attempt(int(timeout_s * 1e9))
            else:
                status = self._wait_sliced(attempt, call, timeout_s)
        finally:
            if is_outermost:
                self._threads.discard(me)
        if status != OK:
            raise with_whole_time(error_of(status, call, err), timeout_s)

    def _wait_sliced(self, attempt: Callable[[int], int], call: str, timeout_s: float) -> int:
        deadline_s = time.monotonic() + timeout_s
        left_s = timeout_s
        while True:
            status = attempt(SLICE_NS if left_s > SLICE_S else int(left_s * 1e9))
            if status not in (TIMED_OUT, AGAIN):
                return status
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                return status
            if self.is_closing:
                raise errors.ClosedError(
                    "RDT_ECLOSED", call, "the context was closed during the wait"
                )

    def close(self) -> None:
        """Make every waiter raise ClosedError, and return when all others have, or after 2 s."""
        self.is_closing = True
        deadline_s = time.monotonic() + 20 * SLICE_S
        while self._threads - {threading.get_ident()} and time.monotonic() < deadline_s:
            time.sleep(0.001)


def with_whole_time(error: errors.RdmaTensorError, timeout_s: float) -> errors.RdmaTensorError:
    """Replace the length of the last slice, which C reports, by that of the whole wait."""
    if isinstance(error, errors.TransferTimeoutError):
        whole = f"within {timeout_s:.3f} s"
        told = re.sub(r"within [0-9.]+ s", whole, error.detail)
        error.detail = told if whole in told else f"{told} ({whole})"
        error.args = (error.code, error.call, error.detail)
    return error


class Handle:
    """A C handle that is destroyed once, by its owner or by the context's close()."""

    __slots__ = ("_destroy", "name", "ptr")

    def __init__(self, name: str, ptr: CData, destroy: Callable[[CData], object]) -> None:
        self.name = name
        self.ptr: CData | None = ptr
        self._destroy: Callable[[CData], object] | None = destroy

    def get(self, call: str) -> CData:
        """Return the pointer; raises ClosedError after close()."""
        if self.ptr is None:
            raise errors.ClosedError("RDT_ECLOSED", call, f"the {self.name} was closed")
        return self.ptr

    def close(self) -> None:
        """Destroy the object; idempotent."""
        ptr, destroy = self.ptr, self._destroy
        self.ptr = self._destroy = None  # the destroyer may hold memory that is to be released
        if ptr is not None and destroy is not None:
            destroy(ptr)


def dtype_code(name: str, call: str) -> int:
    """Return the C code of a dtype's name."""
    code: int | None = _DTYPE_CODES.get(name)
    if code is None:
        raise invalid(call, f"dtype {name!r} is not one of {', '.join(DTYPE_NAMES)}")
    return code


def shape_of(shape: int | Sequence[int], call: str) -> tuple[int, ...]:
    """Return a shape as a checked tuple; an int means one dim. Accepts numpy's integers."""
    try:
        dims = (
            tuple(map(operator.index, shape))
            if isinstance(shape, Sequence)
            else (operator.index(shape),)
        )
    except TypeError:
        raise invalid(call, f"shape {shape!r} is neither integer nor tuple of integers") from None
    if len(dims) > lib.RDT_MAX_NDIM:
        raise invalid(call, f"shape {dims} has {len(dims)} dims, at most {lib.RDT_MAX_NDIM}")
    if any(not 0 <= dim < 1 << 62 for dim in dims):
        raise invalid(call, f"shape {dims!r}: each dim must be from 0 to 2**62 - 1")
    return dims


def tensor_desc(kind: str, dtype: str, shape: tuple[int, ...], call: str) -> CData:
    """Make a struct rdt_tensor_desc."""
    if not isinstance(kind, str) or kind not in KINDS:
        raise invalid(call, f"kind {kind!r} is not one of {', '.join(KINDS)}")
    desc = ffi.new("struct rdt_tensor_desc *")
    desc.struct_size = ffi.sizeof("struct rdt_tensor_desc")
    desc.kind = KINDS[kind]
    desc.dtype = dtype_code(dtype, call)
    desc.ndim = len(shape)
    for index, dim in enumerate(shape):
        desc.dims[index] = dim
    return desc
