"""Joining a cluster of workers and servers."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from rdmatensor._native.arguments import invalid, whole, whole_in
from rdmatensor.bootstrap import World
from rdmatensor.bootstrap import join as join_world
from rdmatensor.context import Context
from rdmatensor.errors import MismatchError, PeerError, RdmaTensorError
from rdmatensor.memory import RemoteRegion
from rdmatensor.ps.board import Board
from rdmatensor.ps.modes import Mode, codes_of
from rdmatensor.ps.restorer import clocks_of
from rdmatensor.ps.server import Server
from rdmatensor.ps.spec import Shape
from rdmatensor.ps.worker import Worker
from rdmatensor.store import Store, wait_for

SLOTS = 4
SLOT_BYTES = 256 * 1024

Own = TypeVar("Own", bound="Cluster")


class Cluster:
    """A process's place in a cluster: its world, and its worker or its server.

    Made by join(). A context manager; close() it, the worker or server first.

    Attributes:
        role: "worker" or "server".
        rank: Of this process among all; workers come first.
        worker: The worker, or None.
        server: The server, or None.
    """

    def __init__(self, world: World, shape: Shape) -> None:
        self._world, self.shape = world, shape
        self.rank = world.rank
        self.role = "worker" if world.rank < shape.workers else "server"
        self.worker: Worker | None = None
        self.server: Server | None = None
        self._board = Board(world)
        peers = range(shape.workers, world.size) if self.role == "worker" else range(shape.workers)
        try:
            endpoints = [world.endpoint(peer) for peer in peers]
            if self.role == "worker":
                self.worker = Worker(world.context, shape, world.rank, self._board)
                self.worker._peer = world.endpoint
                self._publish(self.worker._outboxes())
                for index, (peer, endpoint) in enumerate(zip(peers, endpoints, strict=True)):
                    self.worker._attach(index, endpoint, self._regions_of(peer)[world.rank])
            else:
                index = world.rank - shape.workers
                self.server = self._make_server(index)
                self._publish(self.server._inboxes())
                for peer, endpoint in zip(peers, endpoints, strict=True):
                    self.server._attach(peer, endpoint, self._regions_of(peer)[index])
        except BaseException as error:
            self._end(error)
            raise

    def _key(self, rank: int) -> str:
        return f"{self._world._prefix}/ps/{rank}"

    def _make_server(self, index: int) -> Server:
        """Make the server; the workers get the reason if it cannot be made."""
        try:
            return Server(self._world.context, self.shape, index, self._board)
        except RdmaTensorError as error:
            why = {"error": f"server {index} cannot begin: {error.detail}"}
            self._world._ask(lambda store: store.set(self._key(self.rank), json.dumps(why)))
            raise

    def _publish(self, regions: list[RemoteRegion]) -> None:
        """Tell all others, in one value, where they write."""
        value: dict[str, object] = {"shape": self.shape.as_text()}
        value["regions"] = [one.encode().hex() for one in regions]
        checkpoint = None if self.server is None else self.server._restorer.checkpoint
        if checkpoint is not None:
            value["clocks"] = clocks_of(checkpoint, self.shape.workers)
        self._world._ask(lambda store: store.set(self._key(self.rank), json.dumps(value)))

    def _regions_of(self, rank: int) -> list[RemoteRegion]:
        world, key = self._world, self._key(rank)
        wait_for(world._store, {key: f"rank {rank}"}, world._timeout_s, "join", world._check_open)
        value = json.loads(world._ask(lambda store: store.get(key)))
        if "error" in value:
            raise PeerError("RDT_EPEER", "join", value["error"])
        if self.worker is not None and "clocks" in value:
            self.worker._begin_at(value["clocks"][self.rank])
        if value["shape"] != self.shape.as_text():
            raise MismatchError(
                "RDT_EMISMATCH",
                "join",
                f"rank {rank} joined {value['shape']}, and rank {self.rank} {self.shape.as_text()}",
            )
        return [RemoteRegion.decode(bytes.fromhex(one)) for one in value["regions"]]

    def describe(self) -> dict[str, object]:
        """Return the state of the worker or server, and of its context under "context".

        Returns:
            The keys of PsWorkerState or PsServerState, with role, rank and context.

        Raises:
            ClosedError: It was closed.

        Example:
            >>> cluster.describe()["role"]
            'worker'
        """
        one = self.worker if self.worker is not None else self.server
        state: dict[str, object] = {} if one is None else {**one.describe()}
        return {**state, "role": self.role, "rank": self.rank, "context": self._world.describe()}

    def close(self) -> None:
        """Close the worker or server, then the world; idempotent.

        Example:
            >>> cluster.close()
        """
        self._end(None)

    def _end(self, error: BaseException | None) -> None:
        """Close everything; ranks that still join get the error as the reason."""
        for one in (self.worker, self.server):
            if one is not None:
                one.close()
        self._world._end(error)

    def __enter__(self: Own) -> Own:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end(error)


def join(
    store: Store,
    rank: int,
    size: int,
    *,
    servers: int,
    mode: Mode = "sync",
    on_worker_death: str = "stop",
    job: str = "ps",
    context: Context | None = None,
    timeout_s: float | None = None,
    slots: int = SLOTS,
    slot_bytes: int = SLOT_BYTES,
    restore: str | os.PathLike[str] | None = None,
) -> Cluster:
    """Join a cluster as one of its ranks: the first are workers, the last `servers` are servers.

    All ranks give the same arguments.

    Args:
        store: As for rdmatensor.join().
        rank: Of this process.
        size: Number of processes.
        servers: Number of servers; at least one rank is a worker.
        mode: "sync", "async" or SSP(clocks).
        on_worker_death: "stop": all end with PeerError; "continue": the others go on.
        job: Name of the job.
        context: The one to use; None opens one from the environment.
        timeout_s: For joining.
        slots: Requests that a worker has in flight to one server.
        slot_bytes: Payload of a request, a multiple of 64; larger pushes and pulls are cut.
        restore: Folder of a checkpoint to begin with, which all servers can read; it may be of
            another number of servers.

    Returns:
        The cluster.

    Raises:
        InvalidArgumentError: An argument is wrong.
        MismatchError: The ranks' arguments differ.
        TransferTimeoutError: A rank is missing.

    Example:
        >>> cluster = join(FileStore(folder), 0, 2, servers=1)
        >>> cluster.worker
        <Worker 0 of 1>
        >>> cluster.close()
    """
    shape = _shape(size, servers, mode, on_worker_death, slots, slot_bytes, restore)
    world = join_world(store, rank, size, job=job, context=context, timeout_s=timeout_s)
    return Cluster(world, shape)


def _shape(
    size: int,
    servers: int,
    mode: Mode,
    on_worker_death: str,
    slots: int,
    slot_bytes: int,
    restore: str | os.PathLike[str] | None,
) -> Shape:
    size, servers = whole(size, "join", "size"), whole(servers, "join", "servers")
    if not 1 <= servers < size:
        raise invalid("join", f"servers={servers} of {size} ranks: one or more of each role")
    if on_worker_death not in ("stop", "continue"):
        raise invalid("join", f"on_worker_death={on_worker_death!r} is not 'stop' or 'continue'")
    codes_of(mode)
    return Shape(
        workers=size - servers,
        servers=servers,
        mode=mode,
        slots=whole_in(slots, 64, "join", "slots"),
        slot_bytes=whole_in(slot_bytes, 1 << 26, "join", "slot_bytes"),
        goes_on=on_worker_death == "continue",
        restore=None if restore is None else str(Path(restore).absolute()),
    )
