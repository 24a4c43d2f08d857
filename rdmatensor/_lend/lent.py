"""Memory that ranks of a job lend to others, which write and read it by one-sided transfers."""

from __future__ import annotations

import os
import uuid
from dataclasses import dataclass
from types import TracebackType
from typing import cast

import torch.distributed as dist

from rdmatensor._lend.ranks import Ranks
from rdmatensor._lend.sizes import bytes_of, shown
from rdmatensor._native.arguments import invalid
from rdmatensor._native.ffi import CData, check, ffi, lib, new_error
from rdmatensor.context import Context, default_context
from rdmatensor.endpoint import Endpoint
from rdmatensor.errors import PeerError, TransferTimeoutError
from rdmatensor.memory import RemoteRegion
from rdmatensor.transfer import Transfer
from rdmatensor.types import Array, TensorLike, TransportName

_PAGE = 4096
_DONE = 1  # the notification of a borrower that closes
_SLICE_S = 1.0


@dataclass(frozen=True, slots=True)
class _Offer:
    """What a rank tells the others."""

    lent_bytes: int
    borrows: bool
    address: bytes
    region: bytes
    error: str
    secret: bytes
    job: str


class Place:
    """Memory of a lender that this rank may use.

    Attributes:
        lender: The lender's rank.
        len_bytes: Its size.
        is_closed: Whether it was given back, and with it all parts of it.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        region: RemoteRegion,
        start: int,
        len_bytes: int,
        whole: Place | None = None,
    ) -> None:
        self.lender, self.len_bytes = endpoint.rank, len_bytes
        self.is_closed = False
        self._endpoint, self._region, self._start = endpoint, region, start
        self._whole = whole
        # That of an endpoint that failed is not known any more.
        self._transport: TransportName = endpoint.transport if whole is None else whole._transport

    @property
    def is_direct(self) -> bool:
        """Whether a device reads and writes: it needs memory of the arena on this side."""
        return self._transport == "verbs"

    @property
    def is_on_host(self) -> bool:
        """Whether it is memory of this host, mapped."""
        return self._transport == "shm"

    def part(self, start: int, len_bytes: int) -> Place:
        """Return a part of it."""
        whole = self if self._whole is None else self._whole
        return Place(self._endpoint, self._region, self._start + start, len_bytes, whole)

    def _check_open(self) -> None:
        whole = self if self._whole is None else self._whole
        if whole.is_closed:
            raise invalid("lend", "the lent memory was closed")

    def mapped(self) -> CData | None:
        """Return its bytes in this process's memory, if the path is shared memory, else None.

        They are there until the Lent is closed. Ask for them before each use: what they hold is
        the lender's memory only as long as it lives.

        Raises:
            InvalidArgumentError: The Lent was closed.
            PeerError: The lender died or left.
        """
        self._check_open()
        if not self.is_on_host:
            return None
        out, err = ffi.new("void **"), new_error()
        status = lib.rdt_endpoint_map(self._endpoint._ptr("map"), self._region._c_struct, out, err)
        check(status, "map", err)
        return ffi.buffer(ffi.cast("char *", out[0]) + self._start, self.len_bytes)

    def write(self, source: TensorLike, offset: int) -> Transfer:
        """Start to write a tensor to an offset."""
        self._check_open()
        return self._endpoint.write(source, self._region, dst_offset_bytes=self._start + offset)

    def read(self, target: TensorLike, offset: int) -> Transfer:
        """Start to fill a tensor from an offset."""
        self._check_open()
        return self._endpoint.read(target, self._region, src_offset_bytes=self._start + offset)


class Lent:
    """What the ranks of a group lend and borrow; made by lend(). A context manager.

    Attributes:
        lent_bytes: What this rank lends.
        borrowed_bytes: What this rank may use of another rank's memory.
        lender: That rank, or None.
        group: The ranks that borrow, or the whole group if no rank only lends: the group for fit()
            and for training. None on a rank that only lends.

    Example:
        >>> with lend("1MiB", borrow=False) as lent:
        ...     lent.lent_bytes
        1048576
    """

    def __init__(
        self,
        context: Context,
        memory: Array | None,
        place: Place | None,
        borrowers: dict[int, Endpoint],
        group: dist.ProcessGroup | None,
    ) -> None:
        self._context, self._memory, self._borrowers = context, memory, borrowers
        self.place, self.group = place, group
        self.lent_bytes = 0 if memory is None else memory.nbytes
        self.borrowed_bytes = 0 if place is None else place.len_bytes
        self.lender = None if place is None else place.lender
        self._is_closed = False
        self._waiting = dict(borrowers)
        self._taken = 0

    @property
    def free_bytes(self) -> int:
        """Of borrowed_bytes, what is not taken."""
        return self.borrowed_bytes - self._taken

    def _check_free(self, len_bytes: int, call: str) -> None:
        """Raise InvalidArgumentError if so much cannot be taken."""
        if self._is_closed:
            raise invalid(call, "the lent memory was closed")
        if self.place is None:
            raise invalid(call, "this rank borrows no memory: lend(..., borrow=True)")
        left = self.free_bytes
        if len_bytes > left:
            raise invalid(
                call,
                f"rank {self.lender} lends this rank {shown(self.borrowed_bytes)}, of which "
                f"{shown(left)} are free, and {shown(len_bytes)} ({len_bytes} B) are needed",
            )

    def _take(self, len_bytes: int, call: str) -> Place:
        """Return a part of the borrowed memory that no other caller has, or raise."""
        self._check_free(len_bytes, call)
        assert self.place is not None
        part = self.place.part(self._taken, len_bytes)
        self._taken = min(self.borrowed_bytes, self._taken + -(-len_bytes // _PAGE) * _PAGE)
        return part

    def _give_back(self, place: Place) -> None:
        """Let others take a part again, if it is the last that was taken."""
        assert self.place is not None
        start = place._start - self.place._start
        if start + -(-place.len_bytes // _PAGE) * _PAGE >= self._taken:
            self._taken = start

    def serve(self) -> None:
        """Lend until all borrowers have closed their side: the program of a rank that only lends.

        Raises:
            PeerError: A borrower died.

        Example:
            >>> lend("1MiB", borrow=False).serve()
        """
        while self._waiting:
            for rank, endpoint in list(self._waiting.items()):
                try:
                    endpoint.wait_notify(_SLICE_S)
                except TransferTimeoutError:
                    continue
                except PeerError as error:
                    self._waiting.clear()
                    raise PeerError(
                        error.code, "serve", f"rank {rank}, which borrows memory, ended: {error}"
                    ) from error
                del self._waiting[rank]

    def close(self) -> None:
        """Give back what is borrowed, then wait for the borrowers of this rank. Idempotent.

        Example:
            >>> lend("1MiB", borrow=False).close()
        """
        self._end(is_orderly=True)

    def _end(self, *, is_orderly: bool) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        place = self.place
        try:
            if place is not None:
                place.is_closed = True
                place._endpoint.notify(_DONE, place._region).wait()
        except PeerError:
            if is_orderly:
                raise
        finally:
            try:
                if is_orderly:
                    self.serve()
            finally:
                for endpoint in self._endpoints():
                    endpoint.close()
                self._memory = None

    def _endpoints(self) -> list[Endpoint]:
        found = dict(self._borrowers)
        if self.place is not None:
            found[self.place.lender] = self.place._endpoint
        return list(found.values())

    def __enter__(self) -> Lent:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end(is_orderly=error is None)


def lend(
    size: int | str, *, borrow: bool | None = None, group: dist.ProcessGroup | None = None
) -> Lent:
    """Lend memory to other ranks of a group, or borrow it. All ranks of the group call it.

    A lender's memory is divided evenly among its borrowers; each borrower has one lender. It is
    memory of the arena, which the lender takes now and gives up when the result is closed.

    Args:
        size: Bytes that this rank lends, or a text such as "4GiB"; 0 to lend nothing.
        borrow: Whether this rank borrows; None: if it lends nothing.
        group: The ranks; None: the default group.

    Returns:
        What was lent and borrowed.

    Raises:
        InvalidArgumentError: A process group is missing, no rank lends, or the size is wrong.
        PeerError: Another rank has no memory to lend, or another wrong argument.

    Example:
        >>> lend("1MiB", borrow=False).borrowed_bytes
        0
    """
    if not (dist.is_available() and dist.is_initialized()):
        raise invalid("lend", "lend() needs a process group: call init_process_group() before")
    ranks, context = Ranks(group), default_context()
    memory, offer, failed = _offer(context, size, borrow)
    offers = ranks.all(offer)
    if failed is not None:
        raise failed
    for rank, other in enumerate(offers):
        if other.error:
            raise PeerError("RDT_EPEER", "lend", f"rank {rank} cannot lend: {other.error}")
    plan = _assign(offers)
    mine = dist.get_rank(group)
    if any(one.borrows for one in offers) and not plan:
        raise invalid("lend", "no rank lends memory to another rank: lend() on one of them")
    job, secret = offers[0].job, offers[0].secret
    context.add_job(job, context.settings.secret or secret, rank=_global(mine, group))
    ranks.all(True)  # every rank admits the job before one connects
    lenders = {one.lender for borrower, one in plan.items() if borrower == mine}
    borrowers = [borrower for borrower, one in plan.items() if one.lender == mine]
    endpoints = {
        rank: context.connect(offers[rank].address, job=job, rank=_global(rank, group))
        for rank in sorted({*lenders, *borrowers})
    }
    for endpoint in endpoints.values():
        endpoint.wait_ready()
    place = None
    if mine in plan:
        share = plan[mine]
        region = RemoteRegion.decode(offers[share.lender].region)
        place = Place(endpoints[share.lender], region, share.start, share.len_bytes)
    training = _training_group(offers, group)
    return Lent(context, memory, place, {rank: endpoints[rank] for rank in borrowers}, training)


def _offer(
    context: Context, size: int | str, borrow: bool | None
) -> tuple[Array | None, _Offer, Exception | None]:
    """Return what this rank lends, what it tells the others, and why it cannot."""
    memory, region, lent, failed = None, b"", 0, None
    try:
        lent = bytes_of(size, "lend", "size")
        if lent:
            memory = context.empty((lent,), "uint8")
            region = context.export(memory).encode()
    except Exception as error:  # noqa: BLE001 - raised when the other ranks know
        failed = error
    borrows = lent == 0 if borrow is None else borrow
    why = "" if failed is None else str(failed)
    job = f"lend/{uuid.uuid4().hex[:16]}"
    offer = _Offer(lent, borrows, context.address, region, why, os.urandom(32), job)
    return memory, offer, failed


@dataclass(frozen=True, slots=True)
class _Share:
    lender: int
    start: int
    len_bytes: int


def _assign(offers: list[_Offer]) -> dict[int, _Share]:
    """Return the share of each borrower: lenders in turn, parts of equal size."""
    chosen: dict[int, list[int]] = {}
    lenders = [rank for rank, one in enumerate(offers) if one.lent_bytes]
    for turn, borrower in enumerate(rank for rank, one in enumerate(offers) if one.borrows):
        others = [rank for rank in lenders if rank != borrower]
        if others:
            chosen.setdefault(others[turn % len(others)], []).append(borrower)
    shares = {}
    for lender, borrowers in chosen.items():
        part = offers[lender].lent_bytes // len(borrowers) // _PAGE * _PAGE
        for index, borrower in enumerate(borrowers):
            shares[borrower] = _Share(lender, index * part, part)
    return shares


def _training_group(
    offers: list[_Offer], group: dist.ProcessGroup | None
) -> dist.ProcessGroup | None:
    """Return the group of the ranks that do more than lend."""
    borrowers = [rank for rank, one in enumerate(offers) if one.borrows]
    if len(borrowers) == len(offers) or not borrowers:
        return dist.group.WORLD if group is None else group
    made = dist.new_group([_global(rank, group) for rank in borrowers])
    is_member = offers[dist.get_rank(group)].borrows
    return cast("dist.ProcessGroup", made) if is_member else None


def _global(rank: int, group: dist.ProcessGroup | None) -> int:
    return rank if group is None else dist.get_global_rank(group, rank)
