"""The per-process context: memory arena, transports and progress engine."""

from __future__ import annotations

import atexit
import threading
import warnings
import weakref
from collections.abc import Callable, Sequence
from dataclasses import fields
from hashlib import sha256
from typing import cast

from rdmatensor import config, memory, metrics, trace
from rdmatensor._native.arguments import (
    U32_MAX,
    invalid,
    rank_of,
    raw_bytes,
    text_bytes,
    timeout_s_of,
    whole_in,
)
from rdmatensor._native.closable import Closable
from rdmatensor._native.core import Core
from rdmatensor._native.ffi import OK, TRANSPORTS, CData, check, fail, ffi, lib, new_error
from rdmatensor._observe.brief import brief_of
from rdmatensor._observe.describe import placement_of, state_of
from rdmatensor._observe.describe_text import text_of
from rdmatensor.endpoint import Endpoint, open_endpoint
from rdmatensor.errors import RANK_UNKNOWN
from rdmatensor.memory import Region, RemoteRegion
from rdmatensor.slot import SlotReceiver
from rdmatensor.state import ContextState
from rdmatensor.types import Array, Counters, DTypeLike, SlotKind, TensorLike

DEFAULT_JOB = "default"
_LOG_LEVELS = {
    "error": lib.RDT_LOG_ERROR,
    "warn": lib.RDT_LOG_WARN,
    "info": lib.RDT_LOG_INFO,
    "debug": lib.RDT_LOG_DEBUG,
}
# Contexts to close when the interpreter ends, before its teardown.
_open_contexts: weakref.WeakSet[Context] = weakref.WeakSet()


class Context(Closable):
    """The transports found, the arena, the progress engine, and the settings of one process.

    A context manager; or close() it. A context that is open when the interpreter ends is closed
    then. Arrays of its arena stay valid until they are dropped, also after close().

    Threads:
        Any thread may call everything but close().

    Args:
        settings: None reads the environment.

    Attributes:
        settings: The settings in force.

    Raises:
        InvalidArgumentError: A setting is wrong.
        TransportNotViableError: The transport that the settings force cannot be used here.
        DeviceError: The operating system refused a call.
        OutOfMemoryError: A limit on memory was hit.
        ForkedProcessError: This is a forked child of a process with a context.

    Example:
        >>> with Context(Settings(loopback=True)) as context:
        ...     context.zeros((2, 3)).shape
        (2, 3)
    """

    def __init__(self, settings: config.Settings | None = None) -> None:
        if not isinstance(settings, config.Settings | None):
            raise invalid("Context", f"settings={settings!r} is a {type(settings).__name__}")
        self.settings = config.from_environment() if settings is None else settings
        self.notes: dict[str, object] = {}  # what describe() adds to the C library's description
        lib.rdt_log_set_level(_LOG_LEVELS[self.settings.log_level])
        if self.settings.trace_dir is not None:
            trace.check_folder(self.settings.trace_dir)
        opts, _texts = _options(self.settings)
        out, err = ffi.new("rdt_context **"), new_error()
        check(lib.rdt_context_open(opts, out, err), "Context", err)
        self._core = Core(out[0], self.settings.timeout_s)
        self._jobs: set[str] = set()
        self._peers: Callable[[int], Endpoint] | None = None
        _open_contexts.add(self)
        self._metrics = self._serve_metrics()
        if self.settings.trace_dir is not None or self.settings.metrics_ports is not None:
            try:
                trace.start(self)
            except BaseException:
                self.close()
                raise

    def _serve_metrics(self) -> metrics.Server | None:
        if self.settings.metrics_ports is None:
            return None
        try:
            return metrics.Server(self, self.settings.metrics_ports)
        except BaseException:
            self._metrics = None
            self.close()
            raise

    # ---- memory --------------------------------------------------------------------------------

    def empty(self, shape: int | Sequence[int], dtype: DTypeLike | None = "float32") -> Array:
        """Return a numpy array in the arena, with undefined content.

        Ownership:
            Freed with the last array or view of it. Bytes that peers may still write are not reused
            before. DLPack and the buffer protocol are numpy's.

        Args:
            shape: Any shape of at most 8 dims, as one argument; zero-size is legal.
            dtype: A name, or numpy's or torch's; None is float32.

        Returns:
            The array.

        Raises:
            OutOfMemoryError: The arena has no room; the message has the line that lifts the limit.
            InvalidArgumentError: The shape or the dtype is wrong.

        Example:
            >>> context.empty((2, 3), "bfloat16").nbytes
            12
        """
        _refuse_sizes("empty", shape, dtype)
        return memory.new_array(self._core, shape, dtype, zero=False, call="empty")

    def zeros(self, shape: int | Sequence[int], dtype: DTypeLike | None = "float32") -> Array:
        """Return a numpy array in the arena, filled with zeros.

        Args:
            shape: As for empty().
            dtype: As for empty().

        Returns:
            The array; ownership is as of empty().

        Raises:
            OutOfMemoryError: As empty().
            InvalidArgumentError: As empty().

        Example:
            >>> context.zeros(3)
            array([0., 0., 0.], dtype=float32)
        """
        _refuse_sizes("zeros", shape, dtype)
        return memory.new_array(self._core, shape, dtype, zero=True, call="zeros")

    def register(self, tensor: TensorLike) -> Region:
        """Make existing memory accessible to peers, without moving it.

        Peers on this host reach it over tcp or through the kernel, never by mapping it: memory of
        the arena is faster.

        Ownership:
            The memory is kept alive until Region.close(), and longer while a peer may still write
            it; it must not be moved or resized meanwhile.

        Args:
            tensor: Any writable row-major tensor without gaps.

        Returns:
            The region.

        Raises:
            InvalidArgumentError: The tensor is not contiguous, or read-only.
            OutOfMemoryError: A limit on memory was hit.

        Example:
            >>> with context.register(np.zeros(4)) as region:
            ...     region.export().len_bytes
            32
        """
        return Region(self._core, tensor)

    def export(self, tensor: TensorLike) -> RemoteRegion:
        """Return the handle by which a peer accesses an array of the arena, or registered memory.

        A handle is a value: send it pickled, or as encode() gives it, by Group.send(), a store, a
        file. Exporting an array again gives an equal handle; when the array is freed, the peers'
        handles become stale.

        Args:
            tensor: The whole array that empty(), zeros() or register() knows.

        Returns:
            The handle.

        Raises:
            InvalidArgumentError: The tensor lies in no region, or is only a part of one.

        Example:
            >>> RemoteRegion.decode(context.export(context.zeros(4)).encode()).len_bytes
            16
        """
        return memory.export(self._core, tensor)

    # ---- peers ---------------------------------------------------------------------------------

    @property
    def address(self) -> bytes:
        """What peers need for connect(): where this process listens, no secret."""
        buf = ffi.new("uint8_t[]", lib.RDT_ADDRESS_MAX_BYTES)
        length, err = ffi.new("size_t *"), new_error()
        status = lib.rdt_context_address(self._c_ptr("address"), buf, len(buf), length, err)
        check(status, "address", err)
        return bytes(ffi.buffer(buf, length[0]))

    @property
    def uuid(self) -> bytes:
        """128 random bits that identify this process to its peers."""
        buf = ffi.new("uint8_t[]", lib.RDT_UUID_BYTES)
        lib.rdt_context_uuid(self._c_ptr("uuid"), buf)
        return bytes(ffi.buffer(buf))

    def add_job(
        self,
        job: str = DEFAULT_JOB,
        secret: bytes | None = None,
        *,
        epoch: int = 0,
        rank: int = RANK_UNKNOWN,
    ) -> None:
        """Admit the peers of a job: those that know the secret and have the same epoch.

        Args:
            job: The job's name.
            secret: Any bytes, of which the SHA-256 is used; None takes the settings' secret.
            epoch: Number of the job's incarnation, the same in all processes.
            rank: This process's rank in the job, for messages; -1 if it has none.

        Raises:
            InvalidArgumentError: A secret is missing, or an argument is out of range.

        Example:
            >>> context.add_job("another", b"a long secret", rank=0)
        """
        secret = self.settings.secret if secret is None else secret
        if not secret:
            raise invalid(
                "add_job",
                f"job {job!r} has no secret: set RDMATENSOR_SECRET or RDMATENSOR_SECRET_FILE in "
                "all processes, or use rdmatensor.join(), which shares one through the store",
            )
        if not isinstance(secret, bytes | bytearray | memoryview):
            raise invalid("add_job", f"secret is a {type(secret).__name__}, not bytes: encode() it")
        key = sha256(secret).digest()
        err = new_error()
        status = lib.rdt_context_add_job(
            self._c_ptr("add_job"), text_bytes(job, "add_job", "job"), key, len(key),
            whole_in(epoch, U32_MAX, "add_job", "epoch"), rank_of(rank, "add_job"), err,
        )  # fmt: skip
        check(status, "add_job", err)
        self._jobs.add(job)

    def connect(
        self,
        address: bytes,
        *,
        job: str = DEFAULT_JOB,
        rank: int = RANK_UNKNOWN,
        timeout_s: float | None = None,
    ) -> Endpoint:
        """Return the endpoint to a process; set-up goes on in the background.

        Both sides must have the job, see add_job(); it is added here if the settings have a secret.

        Args:
            address: Context.address of the peer.
            job: The job's name.
            rank: The peer's rank, for messages and PeerError.rank; -1 if it has none.
            timeout_s: Seconds that the whole set-up may take; None takes the context's deadline.

        Returns:
            The endpoint.

        Raises:
            InvalidArgumentError: The address is this process's own, or damaged.
            VersionMismatchError: The address is of another version of the library.

        Example:
            >>> with context.connect(other.address, rank=1) as endpoint:
            ...     endpoint
            <Endpoint rank=1 ...>
        """
        limit_s = timeout_s_of(timeout_s, self.settings.timeout_s, "connect")
        number, data = (
            rank_of(rank, "connect"),
            raw_bytes(address, "connect", "address", "Context.address"),
        )
        job_id = text_bytes(job, "connect", "job")
        if job not in self._jobs:
            self.add_job(job)
        return open_endpoint(self._core, data, job_id, number, limit_s)

    def recv_slot(
        self,
        name: str,
        shape: int | Sequence[int],
        dtype: DTypeLike | None = "float32",
        *,
        src: Endpoint | int,
        kind: SlotKind = "static",
    ) -> SlotReceiver:
        """Make the slot into which src sends tensors, and announce it; returns at once.

        The sender opens its side with Endpoint.send_slot() of the same name.

        Args:
            name: 1 to 63 bytes, unique among the slots from this sender.
            shape: What every tensor has (static); its maximum in each dim (bounded: the actual
                shape travels with the payload); any shape with as many dims (dynamic: the payload
                is read when its size is known).
            dtype: A name, or numpy's or torch's; None is float32.
            src: The sender: an Endpoint or, after join(), a rank.
            kind: "static", "bounded" or "dynamic".

        Returns:
            The receiving side.

        Raises:
            InvalidArgumentError: An argument is wrong.
            OutOfMemoryError: The arena has no room for two buffers.
            PeerError: The sender died or left.

        Example:
            >>> with other.recv_slot("gradients", (1024,), src=peer) as receiver:
            ...     receiver
            <SlotReceiver 'gradients' static float32 [1024]>
        """
        if isinstance(src, Endpoint):
            endpoint = src
        elif isinstance(src, bool) or not hasattr(src, "__index__"):
            raise invalid(
                "recv_slot",
                f"src={src!r} is a {type(src).__name__}, neither an Endpoint nor, after join(), "
                "a rank",
            )
        elif self._peers is None:
            raise invalid(
                "recv_slot", f"src={src!r} is a rank, and only join() gives ranks a meaning"
            )
        else:
            endpoint = self._peers(src)
        return SlotReceiver(self._core, endpoint._ptr("recv_slot"), name, shape, dtype, kind)

    def _set_peers(self, peers: Callable[[int], Endpoint] | None) -> None:
        """Set how slot() finds the endpoint of a rank; join() calls this."""
        self._peers = peers

    # ---- state ---------------------------------------------------------------------------------

    def describe(self) -> ContextState:
        """Return the live state: settings, arena, each peer's path and why, counters.

        The kernel visits each page of the process for the arena's placement: do not call it from a
        timer. counters() is cheap.

        Returns:
            A dictionary; rdmatensor.state.ContextState documents each key.

        Raises:
            ClosedError: The context was closed.
            ForkedProcessError: This is a forked child.

        Example:
            >>> state = context.describe()
            >>> state["transports"]["tcp"]["is_viable"]
            True
        """
        state = self._state()
        state["arena"]["placement"] = placement_of(self._core)
        return state

    def _state(self) -> ContextState:
        """Return the result of describe() without the placement, which takes long."""
        return cast("ContextState", {**state_of(self._core), **self.notes})

    def describe_text(self, *, verbose: bool = False) -> str:
        """Return the state for a person.

        Args:
            verbose: Return all of describe() as lines; otherwise version, transports, peers,
                memory and what went wrong.

        Returns:
            Lines of text.

        Raises:
            ClosedError: The context was closed.
            ForkedProcessError: This is a forked child.

        Example:
            >>> print(context.describe_text())
            rdmatensor ..., process ...
            ...
        """
        return text_of(self.describe()) if verbose else brief_of(self._state())

    def counters(self) -> Counters:
        """Return the totals since the context was opened.

        Returns:
            The counters; rdmatensor.Counters documents each.

        Raises:
            ClosedError: The context was closed.

        Example:
            >>> context.counters().failovers
            0
        """
        struct = ffi.new("struct rdt_counters *")
        struct.struct_size = ffi.sizeof("struct rdt_counters")
        lib.rdt_context_counters(self._c_ptr("counters"), struct)
        names = [field.name for field in fields(Counters) if not field.name.endswith("_s")]
        return Counters(
            **{name: getattr(struct, name) for name in names},
            registration_s=struct.registration_ns / 1e9,
            wait_s=struct.wait_ns / 1e9,
        )

    def fileno(self) -> int:
        """Return a descriptor that is readable when the engine has something to do.

        For event loops of your own: call progress() then. Do not read from it. `await` does not
        need it.

        Returns:
            The descriptor, which the context owns.

        Raises:
            ClosedError: The context was closed.
            ForkedProcessError: This is a forked child.

        Example:
            >>> readable, _, _ = select.select([context], [], [], 0)
            >>> context.progress()
        """
        self._core.refuse_fork("fileno")
        return int(lib.rdt_context_fd(self._c_ptr("fileno")))

    def progress(self) -> None:
        """Drive the engine once, without waiting.

        Raises:
            ClosedError: The context was closed.

        Example:
            >>> context.progress()
        """
        status = lib.rdt_context_progress(self._c_ptr("progress"))
        if status != OK:
            fail(status, "progress", new_error())
        self._core.reap()

    def _c_ptr(self, call: str = "c_addr") -> CData:
        """Return the rdt_context *, for modules of this package; raises ClosedError."""
        return self._core.get(call)

    @property
    def _c_addr(self) -> int:
        """The address of the rdt_context, for C and C++ code of the same process."""
        return int(ffi.cast("uintptr_t", self._c_ptr()))

    @property
    def is_closed(self) -> bool:
        """Whether close() was called."""
        return self._core.waiters.is_closing

    def close(self) -> None:
        """Close endpoints and slots, then the context; idempotent, and does nothing after a fork.

        Waiting threads get ClosedError. Memory stays mapped while arrays of it are alive.

        Example:
            >>> Context(Settings(loopback=True)).close()
        """
        _open_contexts.discard(self)
        if self._metrics is not None:
            self._metrics.close()
        try:
            self._write_trace()
        finally:
            self._core.close()

    def _write_trace(self) -> None:
        if self.settings.trace_dir is None or self.is_closed or self._core.is_foreign:
            return
        try:
            trace.write_into(self.settings.trace_dir, self)
        except OSError as error:  # close() must close in any case
            warnings.warn(f"rdmatensor: no trace: {error}", RuntimeWarning, stacklevel=3)

    def __repr__(self) -> str:
        return f"<Context {'closed' if self.is_closed else self.uuid.hex()[:8]}>"

    def _is_open(self) -> bool:
        core = getattr(self, "_core", None)
        return core is not None and not core.waiters.is_closing and not core.is_foreign

    def _name(self) -> str:
        return "a Context"


def _refuse_sizes(call: str, shape: object, dtype: object) -> None:
    """Refuse empty(2, 3): sizes one by one, as torch takes them and numpy does not."""
    if isinstance(dtype, int):
        raise invalid(
            call, f"{call}({shape!r}, {dtype!r}): give the shape as one tuple, as to numpy"
        )


def _options(settings: config.Settings) -> tuple[CData, list[CData]]:
    """Make struct rdt_context_opts, and what its strings point to."""
    opts = ffi.new("struct rdt_context_opts *")
    texts = []
    opts.struct_size = ffi.sizeof("struct rdt_context_opts")
    opts.force_transport = TRANSPORTS[settings.transport]
    opts.require_transport = TRANSPORTS[settings.require]
    opts.tcp_streams = settings.tcp_streams or 0
    opts.port_from, opts.port_to = settings.ports or (0, 0)
    opts.loopback_only = settings.loopback
    opts.timeout_ns = int(settings.timeout_s * 1e9)
    opts.peer_timeout_ns = int(settings.peer_timeout_s * 1e9)
    opts.verify = lib.RDT_VERIFY_OFF if settings.verify == "off" else lib.RDT_VERIFY_CRC32C
    opts.arena_chunk_bytes = settings.arena_mib << 20
    opts.arena_max_bytes = (settings.arena_max_mib or 0) << 20
    for name in ("ifname", "addr"):
        text = getattr(settings, name)
        if text is not None:
            texts.append(ffi.new("char[]", text.encode()))
            setattr(opts, name, texts[-1])
    return opts, texts


def _close_all() -> None:
    for context in list(_open_contexts):
        context.close()


atexit.register(_close_all)

_default_lock = threading.Lock()
_default: Context | None = None


def default_context(settings: Callable[[], config.Settings] | None = None) -> Context:
    """Return the process's own context, opened at the first call.

    It is closed when the interpreter ends, or by close(); then the next call opens another.

    Args:
        settings: A function that returns the settings of a context that has to be opened; None
            reads the environment.

    Returns:
        The context; the same one until it is closed.

    Raises:
        InvalidArgumentError: A setting is wrong. The other exceptions are those of Context.

    Example:
        >>> default_context() is default_context()
        True
    """
    global _default
    with _default_lock:
        if _default is None or _default.is_closed:
            _default = Context(None if settings is None else settings())
        return _default
