"""A worker: tables, clocks, and the operations of the C library that go on over several calls."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, cast

import torch

from rdmatensor._native.arguments import U32_MAX, invalid, timeout_s_of, whole_in
from rdmatensor._native.closable import Closable
from rdmatensor._native.ffi import (
    OK,
    SLICE_NS,
    TIMED_OUT,
    CData,
    Handle,
    check,
    error_of,
    ffi,
    lib,
    new_error,
)
from rdmatensor.context import Context
from rdmatensor.endpoint import Endpoint
from rdmatensor.errors import ClosedError, MismatchError, RdmaTensorError
from rdmatensor.memory import RemoteRegion
from rdmatensor.ps.board import Board
from rdmatensor.ps.calls import Kind, flag, number, parse_answer, region
from rdmatensor.ps.dense import SPLIT_BYTES, Dense
from rdmatensor.ps.kv import KV
from rdmatensor.ps.modes import codes_of
from rdmatensor.ps.pyrules import PythonRule
from rdmatensor.ps.queue import WorkQueue, batches
from rdmatensor.ps.replicas import Replicas
from rdmatensor.ps.rules import Init, Rule, zeros
from rdmatensor.ps.saving import Saving, asker, save
from rdmatensor.ps.spec import Keys, Shape, TableSpec, table_spec
from rdmatensor.ps.table import Table
from rdmatensor.state import PsServerState, PsWorkerState

Call = Callable[[CData, int, CData], int]
_RESTORE_POLL_S = 0.01
_OF_STEPS = ("clock", "push", "queue", "dense")


class Worker(Closable):
    """One worker of a cluster; made by join() or run().

    Attributes:
        rank: Of this worker among the workers.
        workers: Number of workers.
        servers: Number of servers.
        kv: Named tensors on the servers.

    Threads:
        Any thread; operations run one after the other.
    """

    def __init__(self, context: Context, shape: Shape, rank: int, board: Board) -> None:
        self.shape, self.rank, self._board = shape, rank, board
        self.workers, self.servers = shape.workers, shape.servers
        self._context, self._core = context, context._core
        self._lock = threading.RLock()
        opts = ffi.new("struct rdt_ps_worker_opts *")
        opts.struct_size = ffi.sizeof("struct rdt_ps_worker_opts")
        opts.mode, opts.staleness = codes_of(shape.mode)
        opts.index, opts.servers = rank, shape.servers
        opts.slots, opts.slot_bytes = shape.slots, shape.slot_bytes
        opts.replicas = shape.replicas
        # Bytes that are read in mapped memory are compared with no checksum.
        opts.maps = int(context.settings.verify == "off")
        out, err = ffi.new("rdt_ps_worker **"), new_error()
        check(lib.rdt_ps_worker_create(self._core.get("join"), opts, out, err), "join", err)
        self._handle: Handle = self._core.adopt(Handle("worker", out[0], lib.rdt_ps_worker_destroy))
        self._replicas = Replicas(context, self._handle, shape, board, self._call)
        self._tables: dict[str, Table] = {}
        self._models: dict[str, Dense] = {}
        self._undone: list[Dense] = []
        self._has_left = self._is_closing = self._is_observer = False
        self._peer: Callable[[int], Endpoint]  # of ranks; the cluster sets it
        self.kv = KV(self._call, shape.servers, shape.slot_bytes, self._core.timeout_s)
        self.kv._replicas = self._replicas

    # ---- set-up --------------------------------------------------------------------------------

    def _outboxes(self) -> list[RemoteRegion]:
        """Return where each server writes its answers."""
        found = []
        for server in range(self.shape.connections):
            struct, err = ffi.new("struct rdt_remote_region *"), new_error()
            status = lib.rdt_ps_worker_outbox(self._handle.get("join"), server, struct, err)
            check(status, "join", err)
            found.append(RemoteRegion._of_struct(struct))
        return found

    def _attach(self, server: int, endpoint: Endpoint, inbox: RemoteRegion) -> None:
        """Connect to a server; inbox is where requests go."""
        endpoint.wait_ready()
        err = new_error()
        status = lib.rdt_ps_worker_attach(
            self._handle.get("join"), server, endpoint._ptr("join"), inbox._c_struct, err
        )
        check(status, "join", err)

    def _begin_at(self, clock: int) -> None:
        """Begin with the steps of a checkpoint."""
        lib.rdt_ps_worker_write_clock(self._handle.get("join"), clock)

    # ---- operations ----------------------------------------------------------------------------

    def _run(
        self,
        name: str,
        begin: Call,
        timeout_s: float | None = None,
        watch: Callable[[], None] | None = None,
    ) -> None:
        """Run an operation to its end, in slices, so that Ctrl-C and close() are noticed.

        begin(worker, timeout in ns, error) is its first C call; what it points into must live on.
        watch is called after each slice.
        """
        limit_s = timeout_s_of(timeout_s, self._core.timeout_s, name)
        err = new_error()
        if self._is_observer and name in _OF_STEPS:
            raise invalid(name, "a driver has no steps: schedule a function that does this")
        with self._lock:
            status = self._to_end(name, begin, limit_s, err, watch)
        self._replicas.look()
        if status != OK:
            raise self._explained(error_of(status, name, err))

    def _explained(self, error: RdmaTensorError) -> RdmaTensorError:
        """Add to the error of a lost server what is lost with it."""
        return self._replicas.explained(error, sorted([*self._tables, *self._models]))

    def _open_ptr(self, name: str) -> CData:
        """Return the worker; raises ClosedError, also while close() waits for the lock."""
        ptr = self._handle.get(name)
        self._core.get(name)
        if self._is_closing:
            raise ClosedError("RDT_ECLOSED", name, "the worker was closed")
        return ptr

    def _to_end(
        self,
        name: str,
        begin: Call,
        limit_s: float,
        err: CData,
        watch: Callable[[], None] | None = None,
    ) -> int:
        deadline_s = time.monotonic() + limit_s
        try:
            status = begin(self._open_ptr(name), SLICE_NS, err)
            while status == TIMED_OUT:
                if time.monotonic() >= deadline_s:
                    raise error_of(TIMED_OUT, name, err)
                if watch is not None:
                    watch()
                status = int(lib.rdt_ps_worker_resume(self._open_ptr(name), SLICE_NS, err))
        except BaseException:
            if self._handle.ptr is not None:
                lib.rdt_ps_worker_abandon(self._handle.ptr)
            raise
        return status

    def close(self) -> None:
        """End prefetches and operations of other threads, then release the worker; idempotent.

        Example:
            >>> w.close()
        """
        self._is_closing = True
        self._replicas.close()
        for model in self._models.values():
            model._unhook()
        self._models, self._undone = {}, []  # they hold this worker, and arrays of the context
        for table in list(self._tables.values()):
            table.close()
        with self._lock:
            super().close()

    def _call(self, server: int, request: dict[str, object], **kinds: Kind) -> dict[str, Any]:
        """Ask the program that runs a server; kinds read the answer's fields.

        "data" in a request and in an answer are bytes.
        """
        call = str(request["call"])
        tail = cast("bytes", request.pop("data", b""))
        said = self._ask(server, call, b"\n".join((json.dumps(request).encode(), tail)))
        return parse_answer(said, call, server, self.shape.workers + server, **kinds)

    def _ask(self, server: int, call: str, data: bytes) -> bytes:
        answer = ffi.new("uint8_t[]", self.shape.slot_bytes)
        length = ffi.new("uint64_t *")

        def begin(ptr: CData, timeout_ns: int, err: CData) -> int:
            status: int = lib.rdt_ps_worker_call(
                ptr, server, data, len(data), answer, len(answer), length, timeout_ns, err
            )
            return status

        self._run(call, begin)
        return bytes(ffi.buffer(answer, length[0]))

    def clock(self, lr_scale: float = 1.0, *, timeout_s: float | None = None) -> int:
        """End a step: apply the pushes since the last one, and wait as the mode says.

        In "sync" it returns when all workers' pushes of the step are applied, averaged in the order
        of ranks. In "async" and SSP its own are applied; SSP waits for workers that are too slow.

        Args:
            lr_scale: Multiplies the rules' learning rates for this step; equal on all workers in
                "sync".
            timeout_s: None takes the settings' timeout.

        Returns:
            The number of steps of this worker.

        Raises:
            TransferTimeoutError: Another worker did not end its step in time; the error names it.
            PeerError: A server, or a worker without which the job ends, died.
            RdmaTensorError: A server refused a push of this step; no server applies the step, and
                its batch goes back to the queue.

        After a timeout or Ctrl-C only leave() and close() are possible: the servers may have
        applied the step.

        Example:
            >>> w.clock(), w.clock(lr_scale=0.5)
            (1, 2)
        """
        tables = list(self._tables.values())

        def begin(ptr: CData, timeout_ns: int, err: CData) -> int:
            for clock in (one for table in tables for one in table._used()):
                check(lib.rdt_ps_worker_use(ptr, clock, err), "clock", err)
            status: int = lib.rdt_ps_worker_tick(ptr, lr_scale, timeout_ns, err)
            return status

        if isinstance(lr_scale, bool) or not isinstance(lr_scale, (int, float)):
            raise invalid("clock", f"lr_scale={lr_scale!r} is not a number")
        try:
            self._run("clock", begin, timeout_s)
        finally:
            for table in tables:
                table._end_step()
        return self.steps

    def _drop(self) -> None:
        """Have the next clock() drop what was pushed before it, and raise CanceledError."""
        with self._lock:
            lib.rdt_ps_worker_drop(self._open_ptr("clock"))

    @property
    def steps(self) -> int:
        """Steps that this worker has ended, with those before a restored checkpoint."""
        return int(lib.rdt_ps_worker_clock(self._handle.get("clock")))

    def save(self, path: str | os.PathLike[str], *, incremental: bool = False) -> Saving:
        """Have the servers save a checkpoint, while steps go on.

        It has the rows, their state, dense models, the chunks that are done, and the workers'
        clocks: on all servers the same steps of each worker. Pushes without a clock() are not in
        it. The call returns when all servers have begun it; steps that other workers end meanwhile
        are applied afterwards. run() and serve() of servers return when it is saved.

        Args:
            path: Its folder, which all servers can write. A checkpoint in it is replaced as a
                whole: until then it stays as it is.
            incremental: Only rows that have changed since the last full checkpoint of this run,
                which is in the folder; an earlier increment there is replaced.

        Returns:
            A handle, with wait() and progress().

        Raises:
            InvalidArgumentError: An increment without a full checkpoint.
            DeviceError: The folder cannot be written.
            BusyError: Another checkpoint is being saved.
            CanceledError: A worker died meanwhile; save again.
            PeerError: A server died.

        Example:
            >>> w.save("saved").wait()
        """
        ask = asker(self._replicas.ask_active, self._replicas.count)
        return save(ask, self.servers, path, is_increment=bool(incremental))

    def leave(self) -> None:
        """End this worker's part: the others do not wait for it any more. Idempotent.

        What was pushed since the last clock() is dropped.

        Raises:
            PeerError: A server died.

        Example:
            >>> w.leave()
        """
        if self._has_left:
            return
        self._has_left = True
        for table in list(self._tables.values()):
            table.close()
        self._run("leave", lambda ptr, ns, err: int(lib.rdt_ps_worker_leave(ptr, ns, err)))

    # ---- tables --------------------------------------------------------------------------------

    def table(
        self,
        name: str,
        dim: int,
        *,
        rows: int | None = None,
        rule: Rule | PythonRule,
        init: Init | None = None,
        seed: int = 0,
        keys: Keys | str = "dense",
        spill: str | os.PathLike[str] | None = None,
        memory: int | None = None,
        consistency: str = "relaxed",
        in_flight: int | None = None,
    ) -> Table:
        """Return the table of that name, which the first worker that asks makes.

        Elements are float32. All workers give the same description.

        Args:
            name: Of the table.
            dim: Floats of a row.
            rows: Number of rows, over all servers; None with keys.
            rule: What a push does: a Rule, or an object of a subclass of PythonRule.
            init: First values of the rows; None: zeros.
            seed: Of the first values, which depend on it and the id or key alone.
            keys: "dense": ids are 0 to rows - 1. "int64", or Keys(): ids are any 64 bits, and a row
                is made when its key is pushed.
            spill: A folder on each server: rows that memory has no room for are in a file there.
            memory: Bytes of rows and their state in the servers' memory, over all servers, with
                spill.
            consistency: "row": each pulled row is of one version. "relaxed": one that is read in
                place while a server updates it may hold parts of two.
            in_flight: Prefetches of this worker whose step has not ended, at most; None: any
                number. Their rows are so many steps staler than the mode permits.

        Returns:
            The table; the same object for the same name.

        Raises:
            InvalidArgumentError: An argument is wrong.
            MismatchError: Another worker, or an earlier call, described the table differently.
            OutOfMemoryError: A server has no room; the message has the line that lifts the limit.

        Example:
            >>> w.table("user", 16, rows=944, rule=Adagrad(lr=0.1), init=uniform(-0.1, 0.1))
            <Table 'user' of 944 rows of 16>
        """
        first = zeros() if init is None else init
        spec = table_spec(name, dim, rows, rule, first, seed, keys, spill, memory, consistency)
        if in_flight is not None and whole_in(in_flight, U32_MAX, "table", "in_flight") == 0:
            raise invalid("table", "in_flight=0: nothing could be prefetched")
        with self._lock:
            known = self._tables.get(name)
            if known is None:
                known = self._tables[name] = self._open(spec, in_flight)
            elif known.in_flight != in_flight:
                raise invalid("table", f"{name!r} was opened with in_flight={known.in_flight}")
            elif known.spec != spec:
                raise MismatchError(
                    "RDT_EMISMATCH",
                    "table",
                    f"table {name!r} was made as {known.spec}, and is wanted as {spec}",
                )
        return known

    def _make_on(self, connection: int, request: dict[str, object]) -> dict[str, Any] | None:
        """Have a server make a table, and restore its rows, however long that takes."""
        kinds: dict[str, Kind] = {"id": number, "rows": region, "is_ready": flag}
        while (answer := self._replicas.ask(connection, request, **kinds)) is not None:
            if answer["is_ready"]:
                break
            time.sleep(_RESTORE_POLL_S)
        return answer

    def _open(self, spec: TableSpec, in_flight: int | None) -> Table:
        answers = [
            self._make_on(one, {"call": "table", "table": spec.to_json()})
            for one in range(self.shape.connections)
        ]
        ids = ffi.new("uint32_t[]", len(answers))
        regions = ffi.new("struct rdt_remote_region[]", len(answers))
        for index, answer in enumerate(answers):
            if answer is not None:
                ids[index], regions[index] = answer["id"], answer["rows"]._c_struct[0]
        table, err = ffi.new("uint32_t *"), new_error()
        status = lib.rdt_ps_worker_add_table(
            self._handle.get("table"), spec.struct(), ids, regions, table, err
        )
        check(status, "table", err)
        ask, ask_all = self._replicas.ask_active, self._replicas.ask_all
        return Table(spec, int(table[0]), self._run, ask, ask_all, self.servers, in_flight)

    def dense(
        self,
        model: torch.nn.Module,
        rule: Rule,
        *,
        split_bytes: int = SPLIT_BYTES,
        name: str = "dense",
    ) -> Dense:
        """Have the servers hold and update a model's parameters; all begin with worker 0's.

        Args:
            model: Parameters that require gradients are float32, on the CPU.
                Frozen parameters and buffers become those of worker 0, of any dtype that
                Worker.kv has.
            rule: Add, SGD, Adagrad, Adam(lazy=False) or AdamW; applied to all parameters.
            split_bytes: Bytes of a piece, which is written when the backward pass has filled it,
                and is on one server.
            name: A new one for each model. Worker.kv has a frozen parameter or buffer as
                "NAME/its name in the model".

        Returns:
            The model's handle; call step() after the backward pass.

        Raises:
            InvalidArgumentError: An argument is wrong.
            MismatchError: Another worker's model or rule differs.
            OutOfMemoryError: This process or a server has no room.

        Example:
            >>> w.dense(torch.nn.Linear(3, 2), SGD(0.1), name="another")
            <Dense of 8 parameters in 1 pieces>
        """
        if isinstance(rule, PythonRule):
            raise invalid("dense", f"{rule!r} is applied to rows: use it for a table")
        if not isinstance(rule, Rule):
            raise invalid("dense", f"rule={rule!r} is a {type(rule).__name__}, not a ps rule")
        if rule.kind == "ASSIGN":
            raise invalid("dense", "Assign() would replace parameters by gradients")
        if not isinstance(name, str) or not 0 < len(name) <= 100 or name in self._models:
            raise invalid("dense", f"name={name!r} is not a new text of 1 to 100 characters")
        made = Dense(model, self._context, split_bytes, self._at_once, self.clock)
        try:
            ask = self._replicas.ask
            made._attach(ask, self.shape, self.rank, rule, name, self._core.timeout_s)
            made._share(self.kv, name, self.rank, self._core.timeout_s)
        except BaseException:
            made._undo()
            self._undone.append(made)  # servers that have it may write into its array
            raise
        self._models[name] = made
        return made

    def _refresh(self) -> None:
        """Get the values of dense models that rounds without this worker have changed."""
        for name in self._models:
            for server in range(self.servers):
                self._replicas.ask_active(server, {"call": "values", "name": name})

    def _at_once(self, name: str, post: Callable[[CData, CData], int]) -> None:
        """Make a C call that does not wait."""
        err = new_error()
        if self._is_observer:
            raise invalid(name, "a driver has no steps: schedule a function that does this")
        with self._lock:
            status = post(self._open_ptr(name), err)
        if status != OK:
            raise self._explained(error_of(status, name, err))

    # ---- samples -------------------------------------------------------------------------------

    def queue(self, name: str, chunks: int) -> WorkQueue:
        """Return a queue of chunks of work, which the workers share.

        Args:
            name: A new one for each pass over the data; the same on all workers.
            chunks: Number of chunks; the same on all workers.

        Returns:
            The queue; iterate over it.

        Raises:
            InvalidArgumentError: An argument is wrong.
            MismatchError: Another worker gave another number of chunks.

        Example:
            >>> for chunk in w.queue("work", 2):
            ...     print(chunk, w.clock())
            0 1
            1 2
        """
        if not isinstance(name, str) or not name or len(name) > 200:
            raise invalid("queue", f"name={name!r} is not a text of 1 to 200 characters")
        count = whole_in(chunks, 1 << 28, "queue", "chunks")
        request: dict[str, object] = {"call": "queue", "name": name, "chunks": count}
        answers = self._replicas.ask_all(request, id=number)
        ids = [0 if answer is None else answer["id"] for answer in answers]
        return WorkQueue(self._run, self._refresh, name, count, ids)

    def batches(
        self,
        data: Sequence[torch.Tensor],
        *,
        batch_size: int = 256,
        epochs: int = 1,
        seed: int | None = 0,
        name: str = "batches",
    ) -> Iterator[tuple[torch.Tensor, ...]]:
        """Yield batches of samples, which the workers share; call clock() after each.

        Each sample is processed once in an epoch: the batch of a worker that dies goes to another
        worker, see WorkQueue.

        Args:
            data: Tensors of one length; all workers have the same samples in the same order.
            batch_size: Samples of a batch.
            epochs: Passes over the samples.
            seed: Of the order of samples in each epoch; None: the order of data.
            name: A new one for each use.

        Yields:
            A tuple of tensors, one for each of data.

        Raises:
            InvalidArgumentError: An argument is wrong, or clock() was not called since the last
                batch.
            PeerError: A server, or a worker without which the job ends, died.

        Example:
            >>> for x, y in w.batches((torch.arange(4), torch.ones(4)), batch_size=3, seed=None):
            ...     print(x.tolist(), w.clock())
            [0, 1, 2] 1
            [3] 2
        """
        return batches(self.queue, data, batch_size, epochs, seed, name)

    def describe(self) -> PsWorkerState:
        """Return the clock, which servers' rows are mapped, the tables, and the servers' state.

        Returns:
            The state, whose keys are those of the type.

        Raises:
            ClosedError: The worker was closed.
            PeerError: A server died.

        Example:
            >>> w.describe()["clock"]
            0
        """
        ptr = self._handle.get("describe")
        mapped = partial(lib.rdt_ps_worker_is_mapped, ptr)
        ask = self._replicas.ask_active
        servers = [ask(one, {"call": "describe"}) for one in range(self.servers)]
        return {
            "clock": int(lib.rdt_ps_worker_clock(ptr)),
            "mapped": [bool(mapped(server)) for server in self._replicas.active()],
            "tables": sorted(self._tables),
            "lost": self._replicas.lost(),
            "backup_wait_s": self._replicas.backup_wait_s(),
            "servers": [cast("PsServerState", one) for one in servers],
        }

    def __repr__(self) -> str:
        return f"<Worker {self.rank} of {self.workers}>"
