"""Joining a cluster of workers and servers."""

from __future__ import annotations

import contextlib
import json
import os
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from rdmatensor._native.arguments import invalid, whole, whole_in
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
from rdmatensor.world import World

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
        self._backup: Cluster | None = None
        self._context: Context | None = None  # to be closed with the cluster
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

    def _host(self, backup: Cluster) -> None:
        """Have the server's process hold the backup of another server."""
        assert self.server is not None
        assert backup.server is not None
        self._backup = backup
        self.server._host(backup.server)

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
        if self._backup is not None and self._backup.server is not None:
            state["backup"] = self._backup.server.describe()
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
        if self._backup is not None:
            self._backup._end(error)
        if self._context is not None:
            self._context.close()

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
    replicas: int = 0,
) -> Cluster:
    # over budget: each is a keyword of its own, which all ranks give
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
        replicas: 1: each server's rows, models and named tensors are also on the next server, its
            backup, with which workers go on if the server dies. Takes twice the memory and, for
            pushes, twice the bytes; at least 2 servers.

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
    shape = _shape(size, servers, mode, on_worker_death, slots, slot_bytes, restore, replicas)
    if shape.replicas and not 0 <= whole(rank, "join", "rank") < size:
        raise invalid("join", f"rank={rank} is not from 0 to {size - 1}")
    if not shape.replicas or rank < shape.workers:
        world = join_world(store, rank, shape.ranks, job=job, context=context, timeout_s=timeout_s)
        return Cluster(world, shape)
    return _join_twice(store, rank, shape, job, context, timeout_s)


def _join_twice(
    store: Store,
    rank: int,
    shape: Shape,
    job: str,
    context: Context | None,
    timeout_s: float | None,
) -> Cluster:
    """Join as a server, and at the same time as the backup of another one."""

    def play(rank: int, own: Context | None) -> Cluster:
        world = join_world(store, rank, shape.ranks, job=job, context=own, timeout_s=timeout_s)
        return Cluster(world, shape)

    # A context has one connection to each peer: the backup has a context of its own.
    with contextlib.ExitStack() as stack:
        other = stack.enter_context(Context(None if context is None else context.settings))
        with ThreadPoolExecutor(1, "rdmatensor backup") as pool:
            coming = pool.submit(play, shape.backup_of(rank), other)
            try:
                cluster = play(rank, context)
            except BaseException as error:
                coming.add_done_callback(partial(_end_backup, error))
                raise
        try:
            cluster._host(coming.result())
        except BaseException as error:
            cluster._end(error)
            raise
        stack.pop_all()
        cluster._context = other
    return cluster


def _end_backup(error: BaseException, joined: Future[Cluster]) -> None:
    """End the backup of a server that did not join."""
    if joined.exception() is None:
        joined.result()._end(error)


def _shape(
    size: int,
    servers: int,
    mode: Mode,
    on_worker_death: str,
    slots: int,
    slot_bytes: int,
    restore: str | os.PathLike[str] | None,
    replicas: int,
) -> Shape:
    size, servers = whole(size, "join", "size"), whole(servers, "join", "servers")
    if not 1 <= servers < size:
        raise invalid("join", f"servers={servers} of {size} ranks: one or more of each role")
    if on_worker_death not in ("stop", "continue"):
        raise invalid("join", f"on_worker_death={on_worker_death!r} is not 'stop' or 'continue'")
    codes_of(mode)
    if whole_in(replicas, 1, "join", "replicas") >= servers:
        raise invalid(
            "join", f"replicas={replicas} of servers={servers}: a backup is on another one"
        )
    return Shape(
        workers=size - servers,
        servers=servers,
        mode=mode,
        slots=whole_in(slots, 64, "join", "slots"),
        slot_bytes=whole_in(slot_bytes, 1 << 26, "join", "slot_bytes"),
        goes_on=on_worker_death == "continue",
        restore=None if restore is None else str(Path(restore).absolute()),
        replicas=replicas,
    )
