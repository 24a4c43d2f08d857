"""Joining a job: ranks find each other through a store, and share a secret."""

from __future__ import annotations

import contextlib
import json
import re
import secrets
import threading
import time
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import TypeVar

from rdmatensor._native.arguments import invalid, seconds, text_bytes, whole
from rdmatensor.config import Settings
from rdmatensor.context import Context
from rdmatensor.endpoint import Endpoint
from rdmatensor.errors import ClosedError, MismatchError, PeerError, ProtocolError
from rdmatensor.group import Group
from rdmatensor.slot import SlotReceiver
from rdmatensor.store import PatientStore, Store, wait_for
from rdmatensor.types import SlotKind

# Blobs of this many neighbours are fetched with one request.
BATCH = 64
_INCARNATION_BYTES = 8
_SECRET_BYTES = 32
_STORE_CALLS = ("set", "get", "check", "multi_get", "delete_key")
_LEFT = "left: "  # not hexadecimal digits, as blobs are
_REASON_CHARS_MAX = 500
_LOOK_S = 0.5
_LAST_WORDS_S = 2.0  # for the store to take the last message of a rank that leaves
_JOB_BYTES_MAX = 63 - 2 * _INCARNATION_BYTES - 1  # the C library's job id has 63 in all

T = TypeVar("T")


def join(
    store: Store,
    rank: int,
    size: int,
    *,
    job: str = "job",
    context: Context | None = None,
    timeout_s: float | None = None,
) -> World:
    """Join a job of `size` processes as one of its ranks; all use the same store and job.

    store: FileStore, or any torch.distributed.Store, used by one run of the job at a time.
    context: the one to use, which the World then leaves open; None opens one from the environment.
    Secret: RDMATENSOR_SECRET or RDMATENSOR_SECRET_FILE; otherwise rank 0 makes one and puts it into
        the store, which keeps out strays, but no reader of the store. describe() says which.
    Returns once the ranks have agreed on the job, not on connections: those are made at first use.
    Raises: TransferTimeoutError (rank 0 is missing), MismatchError (another size, another kind of
        secret).
    """
    missing = [name for name in _STORE_CALLS if not callable(getattr(store, name, None))]
    if missing:
        raise invalid(
            "join",
            f"store={store!r} has no {missing[0]}(): give it a FileStore(path), the same folder "
            "for all ranks, or a torch.distributed.Store",
        )
    rank, size = whole(rank, "join", "rank"), whole(size, "join", "size")
    if size < 1:
        raise invalid("join", f"size {size} is not 1 or more")
    if not 0 <= rank < size:
        raise invalid("join", f"rank {rank} is not from 0 to {size - 1}")
    if not 1 <= len(text_bytes(job, "join", "job")) <= _JOB_BYTES_MAX:
        raise invalid("join", f"job {job!r} must have 1 to {_JOB_BYTES_MAX} bytes")
    wait_s = None if timeout_s is None else seconds(timeout_s, "join")
    own = Context() if context is None else None
    used = context if context is not None else own
    assert used is not None
    try:
        return World(store, rank, size, job, used, owns_context=own is not None, wait_s=wait_s)
    except BaseException:
        if own is not None:
            own.close()
        raise


class World:
    """The ranks of a job as this process sees them; made by join(). A context manager.

    Threads: any thread.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        size: int,
        job: str,
        context: Context,
        *,
        owns_context: bool,
        wait_s: float | None,
    ) -> None:
        self.rank, self.size, self.context = rank, size, context
        self._store, self._owns_context = PatientStore(store), owns_context
        self._timeout_s = context.settings.timeout_s if wait_s is None else wait_s
        self._lock = threading.Lock()  # guards the endpoints; never held while waiting
        self._is_closed = False
        self._look_after_s = 0.0
        self._blobs: dict[int, bytes] = {}
        self._endpoints: dict[int, Endpoint] = {}
        self._groups: list[Group] = []
        self._root = f"rdmatensor/{job}/root"
        root = self._publish_root() if rank == 0 else self._read_root()
        self._prefix = f"rdmatensor/{job}/{root['incarnation']}"
        self.job = f"{job}.{root['incarnation']}"
        try:
            self._check_size(root)
            secret, self.secret_source = _secret(root, context.settings)
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
            "incarnation": secrets.token_hex(_INCARNATION_BYTES),
            "size": self.size,
            "secret": None if has_secret else secrets.token_hex(_SECRET_BYTES),
        }
        self._ask(lambda store: store.set(self._root, json.dumps(root)))
        return root

    def _read_root(self) -> dict[str, object]:
        wait_for(self._store, {self._root: "rank 0"}, self._timeout_s, "join")
        return _read_root(self._ask(lambda store: store.get(self._root)))

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
        """Replace this rank's blob by the reason why no peer will find it."""
        why = f"{type(error).__name__}: {error}"
        with contextlib.suppress(RuntimeError, OSError):  # the original error is raised in any case
            word = _LEFT + why[:_REASON_CHARS_MAX]
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
            found = self._store.ask(partial(_found, [self._key(rank)]), _LOOK_S / 2, "join")
            if found:
                _read_blob(rank, found[0])

    # ---- peers ---------------------------------------------------------------------------------

    def endpoint(self, rank: int) -> Endpoint:
        """Return the endpoint of a rank, which the World owns. Waits for the rank to join."""
        rank = whole(rank, "endpoint", "rank")
        if not 0 <= rank < self.size or rank == self.rank:
            raise invalid(
                "endpoint", f"rank {rank} is not one of the others of 0 to {self.size - 1}"
            )
        known = self._endpoints.get(rank)
        if known is not None:
            return known
        blob = self._fetch([rank])[rank]  # may wait: not under the lock
        with self._lock:
            self._check_open()
            endpoint = self._endpoints.get(rank)
            if endpoint is None:
                endpoint = self.context.connect(blob, job=self.job, rank=rank)
                endpoint._look_for_leaving = partial(self._look_for_leaving, rank)
                self._endpoints[rank] = endpoint
        return endpoint

    def _check_open(self) -> None:
        if self._is_closed or self.context.is_closed:
            raise ClosedError("RDT_ECLOSED", "join", f"the World of job {self.job!r} was closed")

    def __getitem__(self, rank: int) -> Endpoint:
        return self.endpoint(rank)

    def recv_slot(
        self,
        name: str,
        shape: int | tuple[int, ...],
        dtype: object = "float32",
        *,
        src: int,
        kind: SlotKind = "static",
    ) -> SlotReceiver:
        """Make the slot into which rank src sends tensors; see Context.recv_slot()."""
        return self.context.recv_slot(name, shape, dtype, src=self.endpoint(src), kind=kind)

    def group(self, name: str, ranks: list[int] | None = None) -> Group:
        """Make a group of ranks (None: all) for messages and collectives; the World closes it.

        All members call this with the same ranks and the same name, which no other live group of
        the job has. A rank's index in the list is its rank in the group. Waits for all of them.
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
        blobs = [self._blobs.get(member, b"") for member in members]
        group = Group(
            self.context._core,
            name=name,
            job=self.job,
            members=members,
            rank=self.rank,
            blobs=blobs,
            timeout_s=self._timeout_s,
        )
        self._groups = [*(old for old in self._groups if not old.is_closed), group]
        return group

    def _fetch(self, ranks: list[int]) -> dict[int, bytes]:
        """Return the blobs of ranks, in few requests that include neighbours that have joined."""
        missing = [rank for rank in ranks if rank not in self._blobs]
        deadline_s = time.monotonic() + self._timeout_s
        for start in range(0, len(missing), BATCH):
            batch = {self._key(rank): f"rank {rank}" for rank in missing[start : start + BATCH]}
            left_s = max(0.0, deadline_s - time.monotonic())
            wait_for(self._store, batch, left_s, "join", self._check_open)
            values = self._ask(partial(_values, list(batch)))
            for rank, value in zip(missing[start : start + BATCH], values, strict=True):
                self._blobs[rank] = _read_blob(rank, value)
        if len(ranks) == 1 and missing:
            self._fetch_neighbours(ranks[0])
        return {rank: self._blobs[rank] for rank in ranks}

    def _fetch_neighbours(self, rank: int) -> None:
        first = rank // BATCH * BATCH
        near = [
            other
            for other in range(first, min(first + BATCH, self.size))
            if other != self.rank and other not in self._blobs
        ]
        values = self._ask(partial(_found, [self._key(other) for other in near])) if near else []
        for other, value in zip(near, values, strict=bool(values)):
            with contextlib.suppress(PeerError):  # reported when that rank is asked for
                self._blobs[other] = _read_blob(other, value)

    def describe(self) -> dict[str, object]:
        """Return Context.describe(), with the job and where its secret came from."""
        return self.context.describe()

    def close(self) -> None:
        """Close groups and endpoints, delete this rank's keys, and close the World's own context.

        If an exception leaves the `with` block, this rank's key keeps its message for the waiting
        ranks.
        """
        self._end(None)

    def _end(self, error: BaseException | None) -> None:
        if error is not None and not self._is_closed:
            self._leave_word(error)
        self._is_closed = True  # ends waits for ranks that have not joined
        for group in self._groups:
            group.close()
        self._groups.clear()
        with self._lock:
            endpoints, self._endpoints = self._endpoints, {}
        for endpoint in endpoints.values():
            endpoint.close()
        self.context._set_peers(None)
        # The store may be gone first: rank 0 of torch hosts it.
        keys = [self._key(self.rank)] if error is None else []  # the message about an error stays
        keys += [self._root] if self.rank == 0 else []
        with contextlib.suppress(RuntimeError, OSError):
            self._store.ask(partial(_delete, keys), _LAST_WORDS_S, "join")
        if self._owns_context:
            self.context.close()

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


def _values(keys: list[str], store: Store) -> list[bytes]:
    return list(store.multi_get(keys))


def _found(keys: list[str], store: Store) -> list[bytes]:
    """Return the values of keys, or nothing while one of them is missing."""
    return _values(keys, store) if store.check(keys) else []


def _delete(keys: list[str], store: Store) -> None:
    for key in keys:
        store.delete_key(key)


def _stored_wrongly(rank: int, what: str, value: bytes) -> ProtocolError:
    error = ProtocolError(
        "RDT_EPROTO",
        "join",
        f"rank {rank} put {value[:40]!r} into the store, which is not {what}: does something else "
        "use the same store and job?",
    )
    error.rank = rank
    return error


def _read_blob(rank: int, value: bytes) -> bytes:
    """Return the blob that a rank put into the store; PeerError if the rank left."""
    text = value.decode(errors="replace")
    if text.startswith(_LEFT):
        error = PeerError("RDT_EPEER", "join", f"rank {rank} left: {text.removeprefix(_LEFT)}")
        error.rank = rank
        raise error
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise _stored_wrongly(rank, "an address", value) from None


def _read_root(value: bytes) -> dict[str, object]:
    """Return what rank 0 put into the store for all, after checking it."""
    try:
        root = json.loads(value)
    except (ValueError, RecursionError):
        root = None
    if (
        not isinstance(root, dict)
        or not _is_hex(root.get("incarnation"), _INCARNATION_BYTES)
        or not (root.get("secret") is None or _is_hex(root.get("secret"), _SECRET_BYTES))
    ):
        raise _stored_wrongly(0, "the root of a job", value)
    return root


def _is_hex(text: object, size_bytes: int) -> bool:
    return isinstance(text, str) and re.fullmatch(f"[0-9a-f]{{{2 * size_bytes}}}", text) is not None


def _secret(root: dict[str, object], settings: Settings) -> tuple[bytes, str]:
    """Return the job's secret and its source, which must be the same on both sides."""
    shared = root.get("secret")
    if settings.secret is not None and shared is None:
        return settings.secret, f"from the {settings.secret_source or 'argument'}"
    if settings.secret is None and isinstance(shared, str):
        return bytes.fromhex(shared), "generated by rank 0 into the store: stops strays only"
    has, lacks = ("rank 0", "this rank") if shared is None else ("this rank", "rank 0")
    raise MismatchError(
        "RDT_EMISMATCH",
        "join",
        f"{has} has RDMATENSOR_SECRET or RDMATENSOR_SECRET_FILE set and {lacks} has not; set it "
        "for all ranks or for none",
    )
