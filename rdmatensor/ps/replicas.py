"""What a worker knows of its servers' replicas."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from rdmatensor import metrics
from rdmatensor._native.ffi import Handle, lib
from rdmatensor.context import Context
from rdmatensor.errors import CanceledError, PeerError, RdmaTensorError
from rdmatensor.ps.board import LOST, Board, last_checkpoint
from rdmatensor.ps.calls import Kind
from rdmatensor.ps.spec import Shape


class Replicas:
    """The servers of a worker and their backups, by numbers of connections; see Shape.connections.

    Threads:
        Any thread.
    """

    def __init__(
        self,
        context: Context,
        worker: Handle,
        shape: Shape,
        board: Board,
        call: Callable[..., dict[str, Any]],
    ) -> None:
        self._context, self._worker, self._shape, self._board = context, worker, shape, board
        self._call = call  # Worker._call
        self._known = 0
        self._reading = threading.RLock()  # counters of the C worker, which lives until close()
        self._is_closed = False
        if shape.replicas:
            metrics._add(context, self._samples)

    def close(self) -> None:
        """Report no metrics any more, and wait for a scrape that reads some; idempotent."""
        metrics._remove(self._context, self._samples)
        with self._reading:
            self._is_closed = True

    def active(self) -> list[int]:
        """Return the connection that each server's rows are read from."""
        ptr = self._worker.get("describe")
        return [int(lib.rdt_ps_worker_active(ptr, one)) for one in range(self._shape.servers)]

    def of(self, server: int) -> list[int]:
        """Return the connections to a server and to its backup."""
        return [server, server + self._shape.servers][: 1 + self._shape.replicas]

    def ask(
        self, connection: int, request: dict[str, object], **kinds: Kind
    ) -> dict[str, Any] | None:
        """Ask one replica; None if it is lost, and the worker goes on without it."""
        try:
            return self._call(connection, dict(request), **kinds)
        except CanceledError:
            if self.is_lost(connection):
                return None
            raise

    def ask_active(self, server: int, request: dict[str, object], **kinds: Kind) -> dict[str, Any]:
        """Ask a server, or its backup if it is lost."""
        while (answer := self.ask(self.active()[server], request, **kinds)) is None:
            pass
        return answer

    def ask_all(self, request: dict[str, object], **kinds: Kind) -> list[dict[str, Any] | None]:
        """Ask all replicas of all servers."""
        connections = range(self._shape.connections)
        return [self.ask(one, request, **kinds) for one in connections]

    def is_lost(self, connection: int) -> bool:
        """Return whether a replica has died, and the worker goes on without it."""
        return bool(lib.rdt_ps_worker_is_lost(self._worker.get("describe"), connection))

    def count(self) -> int:
        """Return how many are lost; 0 of a worker that was closed."""
        with self._reading:
            ptr = None if self._is_closed else self._worker.ptr
            return 0 if ptr is None else int(lib.rdt_ps_worker_losses(ptr))

    def lost(self) -> list[str]:
        """Return the names of those."""
        servers = self._shape.servers
        return [
            f"server {one}" if one < servers else f"backup of server {one - servers}"
            for one in range(self._shape.connections)
            if self.is_lost(one)
        ]

    def look(self) -> None:
        """Tell the servers if another one is lost, for checkpoints that wait for it."""
        lost = self.count()
        if lost > self._known:
            self._known = lost
            self._board.put(LOST, {"replicas": self.lost()})

    def backup_wait_s(self) -> float:
        """Return the time in which ends of steps have waited for backups alone."""
        return int(lib.rdt_ps_worker_backup_ns(self._worker.get("describe"))) / 1e9

    def explained(self, error: RdmaTensorError, names: Sequence[str]) -> RdmaTensorError:
        """Add to the error of a lost server what is lost with it: tables and models by name."""
        shape = self._shape
        connection = error.rank - shape.workers
        if isinstance(error, PeerError) and 0 <= connection < shape.connections:
            error.rank = shape.process_of(error.rank)
            what = f"server {connection % shape.servers}"
            what += " and its backup are" if shape.replicas else " is"
            error.detail += (
                f"; {what} lost, with its rows of tables {', '.join(names) or 'none'}; "
                f"{last_checkpoint(self._board)}"
            )
            error.args = (error.code, error.call, error.detail)
        return error

    def _samples(self) -> list[metrics.Sample]:
        what = "in which ends of steps have waited for backups alone"
        lost = "replicas that have died, and without which this worker goes on"
        with self._reading:  # another thread may close the worker
            if self._is_closed:
                return []
            return [
                metrics.Sample("ps_backup_wait_seconds", "counter", what, self.backup_wait_s()),
                metrics.Sample("ps_replicas_lost", "counter", lost, self.count()),
            ]
