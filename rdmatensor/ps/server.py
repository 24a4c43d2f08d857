"""A server: the C library holds and updates its rows, this module makes its tables."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

from rdmatensor import errors, metrics
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
from rdmatensor._observe.reports import Report
from rdmatensor.context import Context
from rdmatensor.endpoint import Endpoint
from rdmatensor.memory import RemoteRegion
from rdmatensor.metrics import Sample
from rdmatensor.ps import report
from rdmatensor.ps.board import Board
from rdmatensor.ps.calls import parse_call
from rdmatensor.ps.driving.feed import Feed
from rdmatensor.ps.part import Contents
from rdmatensor.ps.pyrules import Appliers
from rdmatensor.ps.restorer import Restorer, read
from rdmatensor.ps.rules import Rule
from rdmatensor.ps.saver import Saver, restored_note
from rdmatensor.ps.spec import Shape, TableSpec
from rdmatensor.ps.values import HEAD_BYTES, Values
from rdmatensor.state import PsServerState

_TEXT_BYTES = 600


def _text(message: str) -> bytes:
    """Return an error's text, cut to what fits any slot."""
    return message.encode(errors="backslashreplace")[:_TEXT_BYTES]


class Server(Closable):
    """One server of a cluster; made by join(). Call serve().

    Threads:
        A thread of the C library carries out pushes, pulls and clocks; serve() only makes tables.
    """

    def __init__(self, context: Context, shape: Shape, number: int, board: Board) -> None:
        self.shape, self.index = shape, (index := number % shape.servers)
        self.is_backup = number >= shape.servers
        self._beside: Server | None = None
        checkpoint = read(shape.restore)
        self._context, self._core = context, context._core
        out, err = ffi.new("rdt_ps_server **"), new_error()
        opts = shape.server_struct(number)
        check(lib.rdt_ps_server_create(self._core.get("join"), opts, out, err), "join", err)
        self._handle: Handle = self._core.adopt(Handle("server", out[0], lib.rdt_ps_server_destroy))
        self._restorer = Restorer(self._handle.get, index, shape.servers, shape.workers, checkpoint)
        self._saver = Saver(
            *(self._handle.get, index, shape.servers, shape.workers, self._contents, board),
            self._core.timeout_s,
            shape.replicas,
        )
        if checkpoint is not None and number == 0:
            board.put("checkpoint", restored_note(checkpoint))
        self._parameters: dict[str, list[object]] = {}
        self._appliers = Appliers()
        self._tables: dict[str, tuple[TableSpec, dict[str, object]]] = {}
        self._queues: dict[str, tuple[object, int]] = {}
        self._models: dict[str, tuple[object, int]] = {}
        self._has_first: set[str] = set()
        self._refused: set[str] = set()
        self._endpoints: list[Endpoint] = []
        self._lock, self._is_closing = threading.RLock(), False
        self._reading = threading.Lock()  # apart from _lock, which serve() holds while it waits
        self._buffer = ffi.new("uint8_t[]", shape.slot_bytes)
        self._kv = Values(context, shape.slot_bytes - HEAD_BYTES, shape.replicas)
        self._restorer.values(self._kv)
        self._calls: dict[str, Callable[[dict[str, object], int], dict[str, object]]] = {
            "table": self._make_table,
            "queue": self._make_queue,
            "dense": self._make_dense,
            "first values": self._send_first,
            "values": self._send_values,
            "epoch": self._set_epoch,
            "table state": lambda request, _: self._state_of(str(request["name"])),
            "parameters": self._name_parameters,
            **self._saver.calls(),
            **Feed(self._handle.get).calls(),
            "describe": lambda *_: dict(self.describe()),
            "kv": self._kv.carry_out,
        }
        metrics._add(context, self._samples)
        self._report = Report("ps", self.describe)

    def _inboxes(self) -> list[RemoteRegion]:
        """Return where each worker writes its requests."""
        found = []
        for worker in range(self.shape.workers):
            struct, err = ffi.new("struct rdt_remote_region *"), new_error()
            status = lib.rdt_ps_server_inbox(self._handle.get("join"), worker, struct, err)
            check(status, "join", err)
            found.append(RemoteRegion._of_struct(struct))
        return found

    def _attach(self, worker: int, endpoint: Endpoint, outbox: RemoteRegion) -> None:
        """Connect a worker; outbox is where its answers go."""
        err = new_error()
        status = lib.rdt_ps_server_attach(
            self._handle.get("join"), worker, endpoint._ptr("join"), outbox._c_struct, err
        )
        check(status, "join", err)
        self._endpoints.append(endpoint)

    def _host(self, backup: Server) -> None:
        """Serve for the backup of another server too."""
        self._beside = backup

    def serve(self) -> None:
        """Serve until all workers have left or died; with replicas also as another one's backup.

        Raises:
            PeerError: A worker died, and the cluster does not go on without it.
            CanceledError: A PythonRule raised an exception, which is the cause.

        Example:
            >>> w.leave()
            >>> server.serve()
        """
        if self._beside is None:
            self._serve()
            return
        with ThreadPoolExecutor(1, "rdmatensor backup") as pool:
            served = pool.submit(self._beside._serve)
            try:
                self._serve()
            except BaseException:
                self._beside.close()
                raise
            served.result()

    def _serve(self) -> None:
        call, err = ffi.new("struct rdt_ps_call *"), new_error()
        while True:
            with self._lock:
                if self._is_closing:
                    raise errors.ClosedError("RDT_ECLOSED", "serve", "the server was closed")
                status = lib.rdt_ps_server_take(
                    self._handle.get("serve"), SLICE_NS, self._buffer, len(self._buffer), call, err
                )
                if status == OK:
                    self._answer(call)
            if status == lib.RDT_ECLOSED:
                self._saver.finish()
                return
            if status not in (OK, TIMED_OUT):
                raise error_of(status, "serve", err) from self._appliers.failure()

    def close(self) -> None:
        """End serve() of another thread, then release the server; idempotent.

        Example:
            >>> server.close()
        """
        self._is_closing = True
        if self._beside is not None:
            self._beside.close()
        metrics._remove(self._context, self._samples)
        self._report.close()
        with self._lock, self._reading:
            if self._is_open():
                self._saver.close()
                self._restorer.close()
            super().close()

    def _answer(self, call: CData) -> None:
        request = bytes(ffi.buffer(self._buffer, call.len_bytes))
        status, answer = OK, b""
        try:
            result = self._carry_out(parse_call(request), call.worker)
            data = result.get("data", b"")
            head = json.dumps({key: one for key, one in result.items() if key != "data"})
            answer = b"\n".join((head.encode(), data))  # type: ignore[arg-type]
        except errors.RdmaTensorError as error:
            status, answer = getattr(lib, error.code), _text(error.detail)
        except Exception as error:  # noqa: BLE001 - a worker's bad call must not end the server
            status, answer = lib.RDT_EPROTO, _text(f"{type(error).__name__}: {error}")
        if len(answer) > self.shape.slot_bytes:
            status, answer = (
                lib.RDT_ERANGE,
                _text(f"an answer of {len(answer)} B exceeds a slot of {self.shape.slot_bytes} B"),
            )
        err = new_error()
        check(
            lib.rdt_ps_server_answer(
                self._handle.get("serve"), call, status, answer, len(answer), err
            ),
            "serve",
            err,
        )

    def _carry_out(self, request: dict[str, object], worker: int) -> dict[str, object]:
        if not isinstance(request.get("call"), str) or request["call"] not in self._calls:
            raise ValueError(f"unknown call {str(request)[:100]!r}")
        return self._calls[str(request["call"])](request, worker)

    def _make_table(self, request: dict[str, object], _worker: int) -> dict[str, object]:
        """Make a table, or return the one of that name if it is the same."""
        data = request["table"]
        if not isinstance(data, dict):
            raise TypeError("a table's description is an object")
        spec = TableSpec.from_json(data)
        known = self._tables.get(spec.name)
        if known is not None:
            if known[0] != spec:
                raise errors.MismatchError(
                    "RDT_EMISMATCH",
                    "table",
                    f"table {spec.name!r} was made as {known[0]}, and is wanted as {spec}",
                )
            return {**known[1], "is_ready": self._restorer.is_ready("table", spec.name)}
        number, region, err = (
            ffi.new("uint32_t *"),
            ffi.new("struct rdt_remote_region *"),
            new_error(),
        )
        spill = ffi.new("char[]", spec.spill.encode()) if spec.spill else ffi.NULL
        opts = spec.struct(spill)
        self._appliers.fill(opts, spec.rule, spec.name, spec.dim)
        ptr = self._handle.get("table")
        status = lib.rdt_ps_server_add_table(ptr, opts, number, region, err)
        check(status, "table", err)
        answer: dict[str, object] = {
            "id": int(number[0]),
            "rows": RemoteRegion._of_struct(region).encode().hex(),
        }
        self._restorer.table(spec.name, int(number[0]), spec.to_json())
        self._tables[spec.name] = (spec, answer)
        return {**answer, "is_ready": self._restorer.is_ready("table", spec.name)}

    def _make_queue(self, request: dict[str, object], _worker: int) -> dict[str, object]:
        """Make a queue, or return the one of that name if it is the same."""
        name, chunks = str(request["name"]), request["chunks"]
        if type(chunks) is not int:
            raise TypeError("the number of chunks is an integer")
        known = self._queues.get(name)
        if known is None:
            number, err = ffi.new("uint32_t *"), new_error()
            ptr = self._handle.get("queue")
            check(lib.rdt_ps_server_add_queue(ptr, chunks, number, err), "queue", err)
            self._restorer.queue(name, int(number[0]), chunks)
            known = self._queues[name] = (chunks, int(number[0]))
        if known[0] != chunks:
            raise errors.MismatchError(
                "RDT_EMISMATCH",
                "queue",
                f"queue {name!r} was made with {known[0]} chunks, and is wanted with {chunks}",
            )
        return {"id": known[1]}

    def _make_dense(self, request: dict[str, object], worker: int) -> dict[str, object]:
        """Make a dense model, or return the one of that name; exchange addresses."""
        name, rule = str(request["name"]), request["rule"]
        if not isinstance(rule, dict):
            raise TypeError("a rule is an object")
        spec = (rule, request["count"], request["params_off"], request["model"])
        known = self._models.get(name)
        if known is None:
            known = self._models[name] = (spec, self._add_dense(Rule(**rule), *spec[1:3]))
            self._restorer.model(name, known[1], self._model(name))
        if known[0] != spec:
            self._refused.add(name)  # a worker may wait for the first values of another
            raise errors.MismatchError(
                "RDT_EMISMATCH",
                "dense",
                f"model {name!r} was made with (rule, parameters, offset, [all parameters, digest "
                "of their shapes, of names and shapes of frozen parameters and buffers]) "
                f"{known[0]}, and worker {worker} has {spec}",
            )
        slot, err = ffi.new("struct rdt_remote_region *"), new_error()
        params = RemoteRegion.decode(bytes.fromhex(str(request["params"])))
        status = lib.rdt_ps_server_attach_dense(
            self._handle.get("dense"), known[1], worker, params._c_struct, slot, err
        )
        check(status, "dense", err)
        return {"id": known[1], "slot": RemoteRegion._of_struct(slot).encode().hex()}

    def _add_dense(self, rule: Rule, count: object, params_off: object) -> int:
        opts = ffi.new("struct rdt_ps_dense_opts *")
        opts.struct_size = ffi.sizeof("struct rdt_ps_dense_opts")
        opts.count, opts.params_off = count, params_off
        rule._fill(opts.rule)
        number, err = ffi.new("uint32_t *"), new_error()
        ptr = self._handle.get("dense")
        check(lib.rdt_ps_server_add_dense(ptr, opts, number, err), "dense", err)
        return int(number[0])

    def _send_first(self, request: dict[str, object], worker: int) -> dict[str, object]:
        """Take the first values from worker 0, and send them to the others."""
        name, err = str(request["name"]), new_error()
        ptr, number = self._handle.get("dense"), self._models[name][1]
        if name in self._refused:
            raise errors.MismatchError(
                "RDT_EMISMATCH", "dense", f"another worker's model {name!r} differs from this one"
            )
        if self._restorer.has("dense", name):
            if not self._restorer.is_ready("dense", name):
                return {"is_ready": False}
            check(lib.rdt_ps_server_send_dense(ptr, number, worker, err), "dense", err)
            return {"is_ready": True}
        if worker == 0:
            check(lib.rdt_ps_server_load_dense(ptr, number, 0, err), "dense", err)
            self._has_first.add(name)
        elif name in self._has_first:
            check(lib.rdt_ps_server_send_dense(ptr, number, worker, err), "dense", err)
        return {"is_ready": name in self._has_first}

    def _send_values(self, request: dict[str, object], worker: int) -> dict[str, object]:
        number, err = self._models[str(request["name"])][1], new_error()
        status = lib.rdt_ps_server_send_dense(self._handle.get("dense"), number, worker, err)
        check(status, "dense", err)
        return {}

    def _name_parameters(self, request: dict[str, object], _worker: int) -> dict[str, object]:
        """Note names and shapes of a model's parameters, which a checkpoint has."""
        some = request["parameters"]
        if not isinstance(some, list):
            raise TypeError("parameters are a list")
        known = self._parameters.setdefault(str(request["name"]), [])
        known[int(str(request["first"])) :] = some
        return {}

    def _model(self, name: str) -> dict[str, Any]:
        spec: Any = self._models[name][0]
        rule, count, params_off, model = spec
        arrays = 1 + lib.rdt_ps_rule_state_floats(Rule(**rule)._struct(), 1)
        return {
            "rule": rule,
            "count": count,
            "params_off": params_off,
            "model": model,
            "arrays": arrays,
            "parameters": self._parameters.get(name, []),
        }

    def _contents(self) -> Contents:
        """Return what a checkpoint has of this server."""
        tables = {
            name: (
                int(str(answer["id"])),
                spec.to_json(),
                self._state_floats(int(str(answer["id"])), spec),
            )
            for name, (spec, answer) in self._tables.items()
        }
        models = {name: (number, self._model(name)) for name, (_, number) in self._models.items()}
        queues = {name: (number, int(str(one))) for name, (one, number) in self._queues.items()}
        return Contents(tables, models, queues, self._kv.copies())

    def _state_floats(self, number: int, spec: TableSpec) -> int:
        """Return what a record has after the values, with what a key is followed by."""
        size, err = ffi.new("uint64_t *"), new_error()
        ptr = self._handle.get("save")
        check(lib.rdt_ps_server_record_bytes(ptr, number, size, err), "save", err)
        return int(size[0]) // 4 - 2 - spec.dim

    def describe(self) -> PsServerState:
        """Return the counters, the tables by name, and each worker as this server sees it.

        Returns:
            The state, whose keys are those of the type.

        Raises:
            ClosedError: The server was closed.

        Example:
            >>> server.describe()["mode"]
            'sync'
        """
        with self._reading:
            ptr = self._handle.get("describe")
            tables = {name: self._state_of(name) for name in list(self._tables)}
            state = report.state_of(ptr, self._context, self.shape, self.index, tables)
            state["replica"] = self._replica()
            state["checkpoint"] = self._saver.describe()
            state["restored_bytes"] = self._restorer.read_bytes
        return {**state, "kv": self._kv.describe()}

    def _replica(self) -> Literal["none", "primary", "backup"]:
        if self.shape.replicas == 0:
            return "none"
        return "backup" if self.is_backup else "primary"

    def _samples(self) -> list[Sample]:
        with self._reading:
            return report.samples_of(self._handle.get("metrics"), self.index, self._replica())

    def _state_of(self, name: str) -> dict[str, object]:
        """Return what a table is, and how full one of keys, or one with a file, is here."""
        spec, answer = self._tables[name]
        return report.table_state(self._handle.get("describe"), spec, answer["id"])

    def _set_epoch(self, request: dict[str, object], _worker: int) -> dict[str, object]:
        number, err = self._tables[str(request["name"])][1]["id"], new_error()
        ptr = self._handle.get("epoch")
        check(lib.rdt_ps_server_set_epoch(ptr, number, request["epoch"], err), "epoch", err)
        return {}

    def __repr__(self) -> str:
        what = "Backup of server" if self.is_backup else "Server"
        return f"<{what} {self.index} of {self.shape.servers}>"
