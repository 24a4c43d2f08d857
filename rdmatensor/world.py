"""The ranks of a job: connections, slots and groups by rank."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from types import TracebackType
from typing import TypeVar

from rdmatensor._join import records
from rdmatensor._native.arguments import invalid, whole
from rdmatensor.context import Context
from rdmatensor.endpoint import Endpoint
from rdmatensor.errors import ClosedError, MismatchError, PeerError
from rdmatensor.group import Group
from rdmatensor.slot import SlotReceiver
from rdmatensor.state import ContextState
from rdmatensor.store import PatientStore, Store, wait_for
from rdmatensor.types import DTypeLike, SlotKind

# Addresses of this many neighbours are fetched with one request.
BATCH = 64
_LOOK_S = 0.5
_LAST_WORDS_S = 2.0  # for the store to take the last message of a rank that leaves

T = TypeVar("T")


class World:
    """The ranks of a job as this process sees them; made by join(). A context manager.

    `world[1]` is `world.endpoint(1)`.

    Threads:
        Any thread.

    Attributes:
        rank: This process's rank.
        size: Number of ranks.
        context: The context in use.
        job: The job's name with its incarnation.
        secret_source: Where the job's secret came from.

    Example:
        >>> world.rank, world.size
        (0, 2)
        >>> world[1].wait_ready(timeout_s=10)
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        size: int,
        job: str,
        context: Context,
        closed: threading.Event,
        *,
        owns_context: bool,
        wait_s: float | None,
    ) -> None:
        self.rank, self.size, self.context = rank, size, context
        self._store, self._owns_context = PatientStore(store), owns_context
        self._timeout_s = context.settings.timeout_s if wait_s is None else wait_s
        self._lock = threading.Lock()  # guards the endpoints; never held while waiting
        self._closed = closed  # ends waits for ranks that have not joined
        self._look_after_s = 0.0
        self._addresses: dict[int, bytes] = {}
        self._endpoints: dict[int, Endpoint] = {}
        self._groups: list[Group] = []
        self.job = job
        self._root = f"rdmatensor/{job}/root"
        root = self._run = self._publish_root() if rank == 0 else self._read_root()
        self._prefix = f"rdmatensor/{job}/{root['incarnation']}"
        self.job = f"{job}.{root['incarnation']}"
        try:
            self._check_size(root)
            secret, self.secret_source = records.secret_of(root, context.settings)
            context.add_job(self.job, secret, rank=rank)
        except Exception as error:
            self._leave_word(error)
            raise
        context._set_peers(self.endpoint)
        context.notes["job"] = {"id": self.job, "rank": rank, "size": size}
        context.notes["secret"] = self.secret_source
        self._ask(lambda store: store.set(self._key(rank), context.address.hex()))

    def _ask(self, request: Callable[[Store], T]) -> T:
        return self._store.ask(request, self._timeout_s, "join", self._check_open)

    def _key(self, rank: int) -> str:
        return f"{self._prefix}/{rank}"

    def _publish_root(self) -> dict[str, object]:
        has_secret = self.context.settings.secret is not None
        root: dict[str, object] = {
            "incarnation": secrets.token_hex(records.INCARNATION_BYTES),
            "size": self.size,
            "secret": None if has_secret else secrets.token_hex(records.SECRET_BYTES),
        }
        self._ask(lambda store: records.publish_root(store, self._root, root))
        return root

    def _read_root(self) -> dict[str, object]:
        wanted = {self._root: "rank 0"}
        wait_for(
            *(self._store, wanted, self._timeout_s, "join", self._check_open),
            has=records.has_root,
        )
        root = records.read_root(self._ask(lambda store: store.get(self._root)))
        records.check_root(root)
        return root

    def _check_size(self, root: dict[str, object]) -> None:
        if root.get("size") != self.size:
            raise MismatchError(
                "RDT_EMISMATCH",
                "join",
                f"rank 0 joined a job of {root.get('size')} ranks, rank {self.rank} one of "
                f"{self.size}",
            )

    # ---- messages of ranks that gave up: others would wait until their deadlines without them
    # -----

    def _leave_word(self, error: BaseException) -> None:
        """Replace this rank's address by the reason why no peer will find it."""
        with contextlib.suppress(RuntimeError, OSError):  # the original error is raised in any case
            word = records.left(error)
            self._store.ask(
                lambda store: store.set(self._key(self.rank), word), _LAST_WORDS_S, "join"
            )

    def _look_for_leaving(self, rank: int) -> None:
        """Raise PeerError if a rank that is waited for has left; checks now and then."""
        now_s = time.monotonic()
        if now_s < self._look_after_s:
            return
        self._look_after_s = now_s + _LOOK_S
        with contextlib.suppress(RuntimeError, OSError):  # C's own wait goes on
            found = self._store.ask(partial(records.found, [self._key(rank)]), _LOOK_S / 2, "join")
            if found:
                records.read_address(rank, found[0])

    # ---- peers ---------------------------------------------------------------------------------

    def endpoint(self, rank: int) -> Endpoint:
        """Return the endpoint of a rank, which the World owns. Waits for the rank to join.

        Args:
            rank: Another rank of the job.

        Returns:
            The endpoint; the same object at each call.

        Raises:
            InvalidArgumentError: It is this process's own rank, or no rank of the job.
            TransferTimeoutError: The rank did not join.
            PeerError: The rank gave up; the message has its reason.

        Example:
            >>> world.endpoint((world.rank + 1) % world.size)
            <Endpoint rank=1 ...>
        """
        rank = whole(rank, "endpoint", "rank")
        if not 0 <= rank < self.size or rank == self.rank:
            others = f"0 to {self.size - 1}"
            which = "this process's own" if rank == self.rank else "not one of the job's"
            raise invalid(
                "endpoint", f"rank {rank} is {which}: expected another rank from {others}"
            )
        known = self._endpoints.get(rank)
        if known is not None:
            return known
        address = self._fetch([rank])[rank]  # may wait: not under the lock
        with self._lock:
            self._check_open()
            endpoint = self._endpoints.get(rank)
            if endpoint is None:
                endpoint = self.context.connect(address, job=self.job, rank=rank)
                endpoint._look_for_leaving = partial(self._look_for_leaving, rank)
                self._endpoints[rank] = endpoint
        return endpoint

    def _check_open(self) -> None:
        if self._closed.is_set() or self.context.is_closed:
            raise self._closed_error()

    def _closed_error(self) -> ClosedError:
        return ClosedError("RDT_ECLOSED", "join", f"the World of job {self.job!r} was closed")

    async def endpoint_async(self, rank: int) -> Endpoint:
        """Return the endpoint of a rank as endpoint(); waits in a thread of asyncio's.

        Args:
            rank: Another rank of the job.

        Returns:
            The endpoint.

        Raises:
            TransferTimeoutError: The rank did not join. The other exceptions are those of
                endpoint().

        Example:
            >>> asyncio.run(world.endpoint_async(1))
            <Endpoint rank=1 ...>
        """
        return await asyncio.to_thread(self.endpoint, rank)

    def __getitem__(self, rank: int) -> Endpoint:
        return self.endpoint(rank)

    def recv_slot(
        self,
        name: str,
        shape: int | Sequence[int],
        dtype: DTypeLike | None = "float32",
        *,
        src: int,
        kind: SlotKind = "static",
    ) -> SlotReceiver:
        """Make the slot into which rank src sends tensors; waits for the rank to join.

        Args:
            name: As for Context.recv_slot().
            shape: As for Context.recv_slot().
            dtype: As for Context.recv_slot().
            src: The rank of the sender, which calls `world[rank].send_slot(name)`.
            kind: As for Context.recv_slot().

        Returns:
            The receiving side.

        Raises:
            TransferTimeoutError: The rank did not join. The other exceptions are those of
                Context.recv_slot().

        Example:
            >>> with world.recv_slot("gradients", (1024,), src=1) as receiver:
            ...     receiver
            <SlotReceiver 'gradients' static float32 [1024]>
        """
        return self.context.recv_slot(name, shape, dtype, src=self.endpoint(src), kind=kind)

    async def recv_slot_async(
        self,
        name: str,
        shape: int | Sequence[int],
        dtype: DTypeLike | None = "float32",
        *,
        src: int,
        kind: SlotKind = "static",
    ) -> SlotReceiver:
        """Make a slot as recv_slot(); waits for the rank to join in a thread of asyncio's.

        Args:
            name: As for Context.recv_slot().
            shape: As for Context.recv_slot().
            dtype: As for Context.recv_slot().
            src: The rank of the sender.
            kind: As for Context.recv_slot().

        Returns:
            The receiving side.

        Raises:
            TransferTimeoutError: The rank did not join. The other exceptions are those of
                Context.recv_slot().

        Example:
            >>> asyncio.run(world.recv_slot_async("gradients", 1024, src=1)).close()
        """
        endpoint = await self.endpoint_async(src)
        return self.context.recv_slot(name, shape, dtype, src=endpoint, kind=kind)

    def group(self, name: str, ranks: list[int] | None = None) -> Group:
        """Make a group of ranks for messages and collectives; the World closes it.

        All members call this with the same name and ranks. Waits for all of them to join.

        Args:
            name: A name that no other live group of the job has.
            ranks: The members; a rank's index in the list is its rank in the group. None: all.

        Returns:
            The group.

        Raises:
            InvalidArgumentError: This rank is not a member, or a rank is not one of the job's.
            TransferTimeoutError: A member did not join.
            PeerError: A member gave up; the message has its reason.

        Example:
            >>> with world.group("evens", [0]) as group:
            ...     group.size
            1
        """
        members = list(range(self.size))
        if ranks is not None:
            members = [whole(member, "group", "rank") for member in ranks]
        if self.rank not in members or not set(members) <= set(range(self.size)):
            raise invalid(
                "group",
                f"ranks {members} must be from 0 to {self.size - 1} and have rank {self.rank}",
            )
        self._fetch([member for member in members if member != self.rank])
        addresses = [self._addresses.get(member, b"") for member in members]
        group = Group(
            self.context._core,
            name=name,
            job=self.job,
            members=members,
            rank=self.rank,
            addresses=addresses,
            timeout_s=self._timeout_s,
        )
        with self._lock:
            if not self._closed.is_set():
                self._groups = [*(old for old in self._groups if not old.is_closed), group]
                return group
        group.close()  # close() did not see it
        raise self._closed_error()

    async def group_async(self, name: str, ranks: list[int] | None = None) -> Group:
        """Make a group as group(); waits in a thread of asyncio's.

        Args:
            name: As for group().
            ranks: As for group().

        Returns:
            The group.

        Raises:
            TransferTimeoutError: A member did not join. The other exceptions are those of group().

        Example:
            >>> asyncio.run(world.group_async("awaited", [0])).close()
        """
        return await asyncio.to_thread(self.group, name, ranks)

    def _fetch(self, ranks: list[int]) -> dict[int, bytes]:
        """Return the addresses of ranks, in few requests that include joined neighbours."""
        missing = [rank for rank in ranks if rank not in self._addresses]
        deadline_s = time.monotonic() + self._timeout_s
        for start in range(0, len(missing), BATCH):
            batch = {self._key(rank): f"rank {rank}" for rank in missing[start : start + BATCH]}
            left_s = max(0.0, deadline_s - time.monotonic())
            wait_for(
                *(self._store, batch, left_s, "join", self._check_open), has=self._are_there_or_over
            )
            values = self._ask(partial(records.found, list(batch)))
            if not values:
                raise self._run_is_over()
            for rank, value in zip(missing[start : start + BATCH], values, strict=True):
                self._addresses[rank] = records.read_address(rank, value)
        if len(ranks) == 1 and missing:
            self._fetch_neighbours(ranks[0])
        return {rank: self._addresses[rank] for rank in ranks}

    def _are_there_or_over(self, store: Store, keys: list[str]) -> bool:
        """Return whether the keys are there, or will not come: rank 0 has begun another run."""
        if store.check(keys):
            return True
        now_s = time.monotonic()
        if now_s < self._look_after_s:
            return False
        self._look_after_s = now_s + _LOOK_S
        return records.is_replaced(store, self._root, self._run)

    def _run_is_over(self) -> PeerError:
        error = PeerError(
            "RDT_EPEER",
            "join",
            f"rank 0 has begun another run than {self.job!r}, which this rank joined: join again",
        )
        error.rank = 0
        return error

    def _fetch_neighbours(self, rank: int) -> None:
        first = rank // BATCH * BATCH
        near = [
            other
            for other in range(first, min(first + BATCH, self.size))
            if other != self.rank and other not in self._addresses
        ]
        values = (
            self._ask(partial(records.found, [self._key(other) for other in near])) if near else []
        )
        for other, value in zip(near, values, strict=bool(values)):
            with contextlib.suppress(PeerError):  # reported when that rank is asked for
                self._addresses[other] = records.read_address(other, value)

    def describe(self) -> ContextState:
        """Return Context.describe(), with the job and where its secret came from.

        Returns:
            A dictionary; rdmatensor.state.ContextState documents each key.

        Raises:
            ClosedError: The context was closed.

        Example:
            >>> world.describe()["job"]["size"]
            2
        """
        return self.context.describe()

    def close(self) -> None:
        """Close groups and endpoints, delete this rank's keys, and close the World's own context.

        If an exception leaves the `with` block, this rank's key keeps its message for the waiting
        ranks.

        Example:
            >>> join(FileStore(folder), 0, 1).close()
        """
        self._end(None)

    def _end(self, error: BaseException | None) -> None:
        if error is not None and not self._closed.is_set():
            self._leave_word(error)
        with self._lock:
            self._closed.set()
            groups, self._groups = self._groups, []
            endpoints, self._endpoints = self._endpoints, {}
        for group in groups:
            group.close()
        for endpoint in endpoints.values():
            endpoint.close()
        self.context._set_peers(None)
        # The store may be gone first: rank 0 of torch hosts it.
        with contextlib.suppress(RuntimeError, OSError):
            self._store.ask(partial(self._clear, error), _LAST_WORDS_S, "join")
        if self._owns_context:
            self.context.close()

    def _clear(self, failure: BaseException | None, store: Store) -> None:
        """Delete this rank's keys; its message about an error stays."""
        if failure is None:
            store.delete_key(self._key(self.rank))
        if self.rank == 0:
            records.withdraw_root(store, self._root, self._run, failure)

    def __enter__(self) -> World:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end(error)

    def __repr__(self) -> str:
        return f"<World rank {self.rank} of {self.size}, job {self.job!r}>"
