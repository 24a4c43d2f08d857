"""Operations that repeat: initialised once, started often."""

from __future__ import annotations

from collections.abc import Callable
from threading import RLock
from typing import cast

from rdmatensor._native.closable import Closable
from rdmatensor._native.core import Core
from rdmatensor._native.ffi import CData, Handle, check, ffi, lib, take
from rdmatensor.state import BindingState, Way
from rdmatensor.transfer import Transfer


class PersistentCollective(Closable):
    """A collective over fixed tensors; made by the ``*_init()`` methods of a Group.

    What does not change between two runs is done once: arguments are checked and compared among the
    members, the algorithm is chosen, its schedule is built, temporary memory is taken, and peers
    learn where the tensors lie. A start then only writes and reads. Where all members are on one
    host, members use each other's large tensors in place, if these come from ``Context.empty()``:
    all tensors of ``all_reduce`` (without ``out``), the inputs of ``all_gather`` and
    ``reduce_scatter``, and the root's of ``broadcast``. ``describe()`` says whether they do.

    Members start the same ones in the same order. The next start needs the end of the last one.

    Ownership:
        It keeps its tensors alive until ``close()``. A source must not change, and a destination
        must not be used, from a start until its Transfer is done.

    Threads:
        Any thread, one start at a time.

    Example:
        >>> gradient = np.zeros(1000)
        >>> with group.all_reduce_init(gradient, "avg") as average:
        ...     for step in range(3):
        ...         gradient[:] = step  # compute it
        ...         _ = average.start().wait()
    """

    _handle: Handle

    def __init__(
        self,
        core: Core,
        handle: Handle,
        pins: list[CData],
        what: Callable[[], str],
        block: tuple[str, int],
    ) -> None:
        self._operation, self._block_bytes = block
        self._core = core
        self._handle = handle
        self._pins = pins
        self._what = what
        self._lock = RLock()  # a close() in another thread waits for a start() to have begun

    def start(self) -> Transfer:
        """Start it; reads what is in the tensors now. Does not wait for the other members.

        Returns:
            The run in flight: wait() for it, or ``await`` it.

        Raises:
            BusyError: The last start has not ended.
            ClosedError: It, its group or its context was closed.
            PeerError: A member died or left, or the group broke.

        Example:
            >>> with group.all_reduce_init(np.ones(3)) as total:
            ...     total.start().wait()
            <Transfer ...: done>
        """
        self._core.refuse_fork("start")  # a thread of the parent may have had the lock
        with self._lock:
            frame = take()
            out, err = frame.transfer, frame.err
            check(lib.rdt_coll_start(self._handle.get("start"), 0, out, err), "start", err)
            return Transfer(self._core, frame, self._pins, self._what)

    def describe(self) -> BindingState:
        """Return how its starts work, and why they do not work in place.

        Returns:
            As "way": "stages", "reason": "its tensor is in no arena", "rank": 1.

        Raises:
            ClosedError: It, its group or its context was closed.

        Example:
            >>> with group.all_reduce_init(np.ones(3)) as total:
            ...     total.describe()["way"]
            'alone'
        """
        self._core.refuse_fork("describe")
        with self._lock:
            found = ffi.new("struct rdt_coll_binding *")
            found.struct_size = ffi.sizeof("struct rdt_coll_binding")
            lib.rdt_coll_get_binding(self._handle.get("describe"), found)
        return BindingState(
            operation=self._operation,
            bytes=self._block_bytes,
            way=cast("Way", _text(found.way_name)),
            algorithm=_text(found.algorithm) if found.algorithm else None,
            reason=_text(found.reason),
            rank=None if found.rank == lib.RDT_SOURCE_ANY else found.rank,
            starts=found.starts,
        )

    def close(self) -> None:
        """Free it; not collective. A start in flight goes on. Idempotent.

        Example:
            >>> group.all_reduce_init(np.ones(3)).close()
        """
        if self._core.is_foreign:  # likewise; it belongs to the parent
            return
        with self._lock:
            super().close()
            self._pins = []  # a start in flight has the list

    @property
    def is_closed(self) -> bool:
        """Whether close() was called, here or by the context."""
        return self._handle.ptr is None

    def __repr__(self) -> str:
        return f"<PersistentCollective {self._what()}{' (closed)' if self.is_closed else ''}>"


def _text(static: CData) -> str:
    return cast("bytes", ffi.string(static)).decode("ascii")


class PersistentMessage:
    """A send or a receive over a fixed tensor; made by Group.send_init() and Group.recv_init().

    A receive that is posted again at the same address announces its place once; from then on each
    start of the receive is a credit, and each start of the send one write into the place.

    Example:
        >>> sending = group.send_init(np.ones(3), dst=0)
        >>> receiving = group.recv_init(np.zeros(3), src=0)
        >>> for batch in range(3):
        ...     sent, received = sending.start(), receiving.start()
        ...     _ = received.wait(), sent.wait()
    """

    def __init__(self, begin: Callable[[], Transfer]) -> None:
        self._begin = begin

    def start(self) -> Transfer:
        """Post the message; several may be in flight, and match in order.

        Returns:
            The message in flight: wait() for it, or ``await`` it. A ReceiveTransfer for a receive.

        Raises:
            ClosedError: The group or its context was closed.
            PeerError: The member died or left, or the group broke.

        Example:
            >>> received = group.recv_init(np.zeros(3), src=0).start()
            >>> _ = group.send(np.ones(3), dst=0).wait(), received.wait()
        """
        return self._begin()
