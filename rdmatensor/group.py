"""Groups of ranks: tagged messages and collectives over numpy arrays, without torch.

Every operation returns a Transfer at once; several may be in flight. All members call the same
collectives in the same order. If they disagree, the member that detects it gets MismatchError with
the difference, and the others MismatchError or a PeerError with the same text.
"""

from __future__ import annotations

import math
import weakref
from functools import partial
from typing import NamedTuple

from rdmatensor import memory
from rdmatensor._native.arguments import U64_MAX, invalid, text_bytes, whole_in
from rdmatensor._native.closable import Closable
from rdmatensor._native.core import Core
from rdmatensor._native.ffi import (
    GIVE_ADDRESS,
    CData,
    Handle,
    check,
    dtype_code,
    ffi,
    lib,
    new_error,
    reduce_op_code,
    take,
)
from rdmatensor.persistent import PersistentCollective, PersistentMessage
from rdmatensor.transfer import ReceiveTransfer, Transfer
from rdmatensor.types import ReduceOpLike, TensorLike


class _Call(NamedTuple):
    """A collective as its caller asked for it; root is checked already."""

    name: str
    collective: int
    dtype: str
    elements: int
    send: TensorLike | None = None
    recv: TensorLike | None = None
    op: ReduceOpLike = "sum"
    root: int = 0

    def args(self) -> tuple[CData, list[CData]]:
        """Make struct rdt_coll_args, and what keeps its tensors alive."""
        args = ffi.new("struct rdt_coll_args *")
        args.struct_size = ffi.sizeof("struct rdt_coll_args")
        args.op, args.count, args.root = self.collective, self.elements, self.root
        args.dtype = dtype_code(self.dtype, self.name)
        args.reduce_op = reduce_op_code(self.op, self.name)
        args.timeout_ns = lib.RDT_TIMEOUT_DEFAULT
        pins = []
        if self.send is not None:
            data, _ = memory.span(self.send, self.name)
            args.send = data
            pins.append(data)
        if self.recv is not None:
            data, _ = memory.span(self.recv, self.name, writable=True)
            args.recv = data
            pins.append(data)
        return args, pins


class Group(Closable):
    """Ranks that communicate; made by World.group(). Ranks below are those of the group.

    The order of arguments is that of torch.distributed; src and dst are ranks of the group, torch's
    group_src and group_dst. A method that ends in _init
    takes the arguments of the method before its _init, waits for all members, and returns what is
    started often; in a coroutine, call it by asyncio.to_thread().

    Ownership:
        All tensors are kept alive, sources must not change and destinations must not be used until
        the Transfer is done.

    Threads:
        Any thread, but collectives of one group in the same order on all members.

    Attributes:
        name: The name that all members use.
        rank: This process's rank in the group.
        size: Number of members.

    Example:
        >>> group.rank, group.size
        (0, 1)
        >>> group.all_reduce(np.ones(3), "avg").wait()
        <Transfer ...: done>
    """

    def __init__(
        self,
        core: Core,
        *,
        name: str,
        job: str,
        members: list[int],
        rank: int,
        addresses: list[bytes],
        timeout_s: float,
    ) -> None:
        if rank not in members or len(set(members)) != len(members):
            raise invalid("group", f"ranks {members} must be distinct and have rank {rank}")
        self.name = name
        self.rank, self.size = members.index(rank), len(members)
        self._core = core
        self._persistent: weakref.WeakSet[PersistentCollective] = weakref.WeakSet()
        opts = ffi.new("struct rdt_group_opts *")
        opts.struct_size = ffi.sizeof("struct rdt_group_opts")
        opts.rank, opts.size = self.rank, self.size
        opts.timeout_ns = max(1, int(timeout_s * 1e9))  # 0 would be the default
        texts = [ffi.new("char[]", text_bytes(text, "group", "name")) for text in (name, job)]
        opts.name, opts.job_id = texts
        ranks = ffi.new("int32_t[]", members)
        opts.global_ranks = ranks
        table, self._kept = _address_table(addresses)
        opts.address, opts.address_arg = GIVE_ADDRESS, table
        out, err = ffi.new("rdt_group **"), new_error()
        check(lib.rdt_group_create(core.get("group"), opts, out, err), "group", err)
        self._handle: Handle = core.adopt(Handle(f"group {name!r}", out[0], lib.rdt_group_destroy))

    # ---- messages ------------------------------------------------------------------------------

    def send(self, tensor: TensorLike, dst: int, *, tag: int = 0) -> Transfer:
        """Send a whole tensor to a member; messages of one source and tag arrive in order.

        Args:
            tensor: Any row-major tensor without gaps.
            dst: Rank of the receiver; this process's own is legal.
            tag: 0 to 2**64 - 1; the receiver's.

        Returns:
            The message in flight.

        Raises:
            InvalidArgumentError: The tensor is not contiguous, or an argument is out of range.
            ClosedError: The group was closed.

        Example:
            >>> sent = group.send(np.arange(3), dst=0, tag=7)
            >>> into = np.zeros(3, int)
            >>> group.recv(into, src=0, tag=7).wait().len_bytes
            24
            >>> sent.wait()
            <Transfer ...: done>
        """
        data, len_bytes = memory.span(tensor, "send")
        dst = whole_in(dst, self.size - 1, "send", "dst")
        tag = whole_in(tag, U64_MAX, "send", "tag")
        frame = take()
        out, err = frame.transfer, frame.err
        check(
            lib.rdt_group_send(
                self._handle.get("send"), dst, tag, data, len_bytes, ffi.NULL, out, err
            ),
            "send",
            err,
        )
        return Transfer(self._core, frame, data, partial(self._what, f"send to {dst}", len_bytes))

    def recv(self, tensor: TensorLike, src: int | None = None, *, tag: int = 0) -> ReceiveTransfer:
        """Receive into a tensor.

        A shorter message is legal: ReceiveTransfer.len_bytes and ReceiveTransfer.source report its
        size and sender. A longer one is a MismatchError. In torch.distributed a shorter one is an
        error too, as it cannot report its size.

        Args:
            tensor: The destination, of any shape.
            src: Rank of the sender; None accepts a message of any member.
            tag: Tag of the message, 0 to 2**64 - 1.

        Returns:
            The receive in flight.

        Raises:
            InvalidArgumentError: The tensor is not contiguous or read-only, or an argument is out
                of range.
            ClosedError: The group was closed.

        Example:
            >>> into = np.zeros(3, int)
            >>> receiving = group.recv(into)
            >>> _ = group.send(np.arange(3), dst=0).wait()
            >>> receiving.wait().source
            0
        """
        data, len_bytes = memory.span(tensor, "recv", writable=True)
        source = lib.RDT_SOURCE_ANY
        if src is not None:
            source = whole_in(src, self.size - 1, "recv", "src")
        tag = whole_in(tag, U64_MAX, "recv", "tag")
        frame = take()
        out, err = frame.transfer, frame.err
        check(
            lib.rdt_group_recv(
                self._handle.get("recv"), source, tag, data, len_bytes, ffi.NULL, out, err
            ),
            "recv",
            err,
        )
        what = partial(self._what, f"recv from {'any' if src is None else src}", len_bytes)
        return ReceiveTransfer(self._core, frame, data, what)

    # ---- collectives ---------------------------------------------------------------------------

    def broadcast(self, tensor: TensorLike, src: int = 0) -> Transfer:
        """Copy the tensor of one member into every member's, in place.

        Args:
            tensor: Any shape, the same on all members. Read on src, written on the others.
            src: The rank that sends.

        Returns:
            The collective in flight.

        Raises:
            InvalidArgumentError: The tensor is not contiguous, or src is not a rank.
            ClosedError: The group was closed.

        Example:
            >>> settings = np.arange(3.0)
            >>> group.broadcast(settings, src=0).wait()
            <Transfer group ...: broadcast of 3 elements: done>
        """
        return self._start(self._broadcast("broadcast", tensor, src))

    def all_reduce(
        self, tensor: TensorLike, op: ReduceOpLike = "sum", *, out: TensorLike | None = None
    ) -> Transfer:
        """Reduce element by element over all members; each gets the result.

        Args:
            tensor: Any shape, the same on all members.
            op: The reduction: a name of rdmatensor.types.ReduceOp in any case, or torch's ReduceOp.
            out: As many elements as tensor; None reduces in place.

        Returns:
            The collective in flight.

        Raises:
            InvalidArgumentError: A tensor is not contiguous, out has another count or dtype, or op
                is unknown.
            ClosedError: The group was closed.

        Example:
            >>> total = np.array([1.0, 2.0])
            >>> group.all_reduce(total, "sum").wait()
            <Transfer ...: done>
            >>> total
            array([1., 2.])
        """
        return self._start(self._all_reduce("all_reduce", tensor, op, out))

    def reduce(
        self,
        tensor: TensorLike,
        dst: int = 0,
        op: ReduceOpLike = "sum",
        *,
        out: TensorLike | None = None,
    ) -> Transfer:
        """Reduce element by element onto one member.

        Args:
            tensor: Any shape, the same on all members. It is only read on the others.
            dst: The rank that gets the result.
            op: The reduction; see all_reduce().
            out: As many elements, used on dst; None reduces in place there.

        Returns:
            The collective in flight.

        Raises:
            InvalidArgumentError: As all_reduce(), or dst is not a rank.
            ClosedError: The group was closed.

        Example:
            >>> group.reduce(np.ones(3), dst=0, op="max").wait()
            <Transfer ...: done>
        """
        return self._start(self._reduce("reduce", tensor, dst, op, out))

    def all_gather(self, out: TensorLike, tensor: TensorLike) -> Transfer:
        """Collect the tensors of all members, in rank order, on every member.

        Args:
            out: As many elements as tensor for each rank, of the same dtype.
            tensor: This member's part; any shape, as many elements on all members.

        Returns:
            The collective in flight.

        Raises:
            InvalidArgumentError: A tensor is not contiguous, or out has another count or dtype.
            ClosedError: The group was closed.

        Example:
            >>> out = np.zeros((group.size, 2))
            >>> group.all_gather(out, np.array([1.0, 2.0])).wait()
            <Transfer ...: done>
            >>> out
            array([[1., 2.]])
        """
        return self._start(self._all_gather("all_gather", out, tensor))

    def reduce_scatter(
        self, out: TensorLike, tensor: TensorLike, op: ReduceOpLike = "sum"
    ) -> Transfer:
        """Reduce the tensors of all members; rank r gets the r-th part of the result.

        Args:
            out: This member's part of the result.
            tensor: As many elements as out for each rank, of the same dtype.
            op: The reduction; see all_reduce().

        Returns:
            The collective in flight.

        Raises:
            InvalidArgumentError: As all_reduce().
            ClosedError: The group was closed.

        Example:
            >>> part = np.zeros(2)
            >>> group.reduce_scatter(part, np.ones(2 * group.size)).wait()
            <Transfer ...: done>
        """
        return self._start(self._reduce_scatter("reduce_scatter", out, tensor, op))

    def gather(self, tensor: TensorLike, out: TensorLike | None = None, dst: int = 0) -> Transfer:
        """Collect the tensors of all members, in rank order, on one member.

        Args:
            tensor: This member's part; any shape, as many elements on all members.
            out: As many elements as tensor for each rank; needed on dst, unused on the others.
            dst: The rank that collects.

        Returns:
            The collective in flight.

        Raises:
            InvalidArgumentError: A tensor is not contiguous, out has another count or dtype or is
                missing on dst, or dst is not a rank.
            ClosedError: The group was closed.

        Example:
            >>> out = np.zeros((group.size, 3)) if group.rank == 0 else None
            >>> group.gather(np.ones(3), out, dst=0).wait()
            <Transfer ...: done>
        """
        return self._start(self._gather("gather", tensor, out, dst))

    def scatter(self, out: TensorLike, tensor: TensorLike | None = None, src: int = 0) -> Transfer:
        """Give each member a part of one member's tensor, in rank order.

        Args:
            out: This member's part; any shape, as many elements on all members.
            tensor: As many elements as out for each rank; needed on src, unused on the others.
            src: The rank that sends.

        Returns:
            The collective in flight.

        Raises:
            InvalidArgumentError: As gather().
            ClosedError: The group was closed.

        Example:
            >>> whole = np.arange(3.0 * group.size) if group.rank == 0 else None
            >>> group.scatter(np.zeros(3), whole, src=0).wait()
            <Transfer ...: done>
        """
        return self._start(self._scatter("scatter", out, tensor, src))

    def all_to_all(self, out: TensorLike, tensor: TensorLike) -> Transfer:
        """Send the r-th part of tensor to rank r; what rank r sent becomes the r-th part of out.

        Args:
            out: As many elements as tensor, of the same dtype.
            tensor: A count of elements that divides by the number of ranks, the same on all.

        Returns:
            The collective in flight.

        Raises:
            InvalidArgumentError: A tensor is not contiguous, or the counts do not match.
            ClosedError: The group was closed.

        Example:
            >>> group.all_to_all(np.zeros(group.size), np.ones(group.size)).wait()
            <Transfer ...: done>
        """
        return self._start(self._all_to_all("all_to_all", out, tensor))

    def barrier(self) -> Transfer:
        """Wait for all members.

        Returns:
            The barrier in flight: it is done when every member has called barrier().

        Raises:
            ClosedError: The group was closed.

        Example:
            >>> group.barrier().wait()
            <Transfer ...: done>
        """
        return self._start(_Call("barrier", lib.RDT_COLL_BARRIER, "uint8", 0))

    # ---- what repeats --------------------------------------------------------------------------

    def send_init(self, tensor: TensorLike, dst: int, *, tag: int = 0) -> PersistentMessage:
        """Initialise a send() that is started often. Not collective, does not wait.

        Returns:
            What to start in each step.

        Example:
            >>> sending = group.send_init(np.ones(3), dst=0)
            >>> for step in range(3):
            ...     sent = sending.start()
            ...     _ = group.recv(np.zeros(3)).wait(), sent.wait()
        """
        memory.span(tensor, "send_init")
        dst = whole_in(dst, self.size - 1, "send_init", "dst")
        return PersistentMessage(partial(self.send, tensor, dst, tag=tag))

    def recv_init(
        self, tensor: TensorLike, src: int | None = None, *, tag: int = 0
    ) -> PersistentMessage:
        """Initialise a recv() that is started often. Not collective, does not wait.

        Returns:
            What to start in each step.

        Example:
            >>> receiving = group.recv_init(np.zeros(3), src=0)
            >>> for step in range(3):
            ...     received = receiving.start()
            ...     _ = group.send(np.ones(3), dst=0).wait(), received.wait()
        """
        memory.span(tensor, "recv_init", writable=True)
        if src is not None:
            src = whole_in(src, self.size - 1, "recv_init", "src")
        return PersistentMessage(partial(self.recv, tensor, src, tag=tag))

    def broadcast_init(self, tensor: TensorLike, src: int = 0) -> PersistentCollective:
        """Initialise a broadcast() that is started often; blocks as all_reduce_init()."""
        return self._init(self._broadcast("broadcast_init", tensor, src))

    def all_reduce_init(
        self, tensor: TensorLike, op: ReduceOpLike = "sum", *, out: TensorLike | None = None
    ) -> PersistentCollective:
        """Initialise an all_reduce() that is started often.

        Collective, as every ``*_init()`` of an operation of all members: they call it in the order
        of their collectives. It blocks until all have, for two exchanges: what each initialises,
        and whether each can do its part. It cannot be awaited: in a coroutine, call it in a thread
        (``asyncio.to_thread``). Its starts exchange nothing but data, do not block, and can be
        awaited.

        Args:
            tensor: Any shape, the same on all members.
            op: The reduction.
            out: As many elements; None reduces in place.

        Returns:
            What to start in each step. Close it when it is not needed any more.

        Raises:
            MismatchError: Members initialised different ones; the group stays usable.
            PeerError: A member died or left.
            TransferTimeoutError: A member did not call it within the group's deadline.
        """
        return self._init(self._all_reduce("all_reduce_init", tensor, op, out))

    def reduce_init(
        self,
        tensor: TensorLike,
        dst: int = 0,
        op: ReduceOpLike = "sum",
        *,
        out: TensorLike | None = None,
    ) -> PersistentCollective:
        """Initialise a reduce() that is started often; blocks as all_reduce_init()."""
        return self._init(self._reduce("reduce_init", tensor, dst, op, out))

    def all_gather_init(self, out: TensorLike, tensor: TensorLike) -> PersistentCollective:
        """Initialise an all_gather() that is started often; blocks as all_reduce_init()."""
        return self._init(self._all_gather("all_gather_init", out, tensor))

    def reduce_scatter_init(
        self, out: TensorLike, tensor: TensorLike, op: ReduceOpLike = "sum"
    ) -> PersistentCollective:
        """Initialise a reduce_scatter() that is started often; blocks as all_reduce_init()."""
        return self._init(self._reduce_scatter("reduce_scatter_init", out, tensor, op))

    def gather_init(
        self, tensor: TensorLike, out: TensorLike | None = None, dst: int = 0
    ) -> PersistentCollective:
        """Initialise a gather() onto dst that is started often; blocks as all_reduce_init()."""
        return self._init(self._gather("gather_init", tensor, out, dst))

    def scatter_init(
        self, out: TensorLike, tensor: TensorLike | None = None, src: int = 0
    ) -> PersistentCollective:
        """Initialise a scatter() from src that is started often; blocks as all_reduce_init()."""
        return self._init(self._scatter("scatter_init", out, tensor, src))

    def all_to_all_init(self, out: TensorLike, tensor: TensorLike) -> PersistentCollective:
        """Initialise an all_to_all() that is started often; blocks as all_reduce_init()."""
        return self._init(self._all_to_all("all_to_all_init", out, tensor))

    def barrier_init(self) -> PersistentCollective:
        """Initialise a barrier() that is started often; blocks as all_reduce_init()."""
        return self._init(_Call("barrier_init", lib.RDT_COLL_BARRIER, "uint8", 0))

    # ---- what each call asks for ---------------------------------------------------------------

    def _broadcast(self, call: str, tensor: TensorLike, src: int) -> _Call:
        src = whole_in(src, self.size - 1, call, "src")
        dtype, shape = memory.describe_tensor(tensor, call)
        count = math.prod(shape)
        return _Call(call, lib.RDT_COLL_BROADCAST, dtype, count, recv=tensor, root=src)

    def _all_reduce(
        self, call: str, tensor: TensorLike, op: ReduceOpLike, out: TensorLike | None
    ) -> _Call:
        dtype, shape = memory.describe_tensor(tensor, call)
        count = math.prod(shape)
        into = tensor if out is None else _like(out, dtype, count, call)
        return _Call(call, lib.RDT_COLL_ALLREDUCE, dtype, count, tensor, into, op)

    def _reduce(
        self, call: str, tensor: TensorLike, dst: int, op: ReduceOpLike, out: TensorLike | None
    ) -> _Call:
        dst = whole_in(dst, self.size - 1, call, "dst")
        dtype, shape = memory.describe_tensor(tensor, call)
        count, into = math.prod(shape), None
        if self.rank == dst:
            into = tensor if out is None else _like(out, dtype, count, call)
        return _Call(call, lib.RDT_COLL_REDUCE, dtype, count, tensor, into, op, dst)

    def _all_gather(self, call: str, out: TensorLike, tensor: TensorLike) -> _Call:
        dtype, shape = memory.describe_tensor(tensor, call)
        count = math.prod(shape)
        _like(out, dtype, count * self.size, call, "out")
        return _Call(call, lib.RDT_COLL_ALLGATHER, dtype, count, tensor, out)

    def _reduce_scatter(
        self, call: str, out: TensorLike, tensor: TensorLike, op: ReduceOpLike
    ) -> _Call:
        dtype, shape = memory.describe_tensor(out, call)
        count = math.prod(shape)
        _like(tensor, dtype, count * self.size, call, "tensor")
        return _Call(call, lib.RDT_COLL_REDUCE_SCATTER, dtype, count, tensor, out, op)

    def _gather(self, call: str, tensor: TensorLike, out: TensorLike | None, dst: int) -> _Call:
        dst = whole_in(dst, self.size - 1, call, "dst")
        dtype, shape = memory.describe_tensor(tensor, call)
        count, into = math.prod(shape), None
        if self.rank == dst:
            whole = _needed(out, call, "out", f"dst, rank {dst},")
            into = _like(whole, dtype, count * self.size, call, "out")
        return _Call(call, lib.RDT_COLL_GATHER, dtype, count, tensor, into, root=dst)

    def _scatter(self, call: str, out: TensorLike, tensor: TensorLike | None, src: int) -> _Call:
        src = whole_in(src, self.size - 1, call, "src")
        dtype, shape = memory.describe_tensor(out, call)
        count, source = math.prod(shape), None
        if self.rank == src:
            whole = _needed(tensor, call, "tensor", f"src, rank {src},")
            source = _like(whole, dtype, count * self.size, call, "tensor")
        return _Call(call, lib.RDT_COLL_SCATTER, dtype, count, source, out, root=src)

    def _all_to_all(self, call: str, out: TensorLike, tensor: TensorLike) -> _Call:
        dtype, shape = memory.describe_tensor(tensor, call)
        total = math.prod(shape)
        if total % self.size:
            raise invalid(call, f"{total} elements do not divide by {self.size} ranks")
        _like(out, dtype, total, call, "out")
        return _Call(call, lib.RDT_COLL_ALLTOALL, dtype, total // self.size, tensor, out)

    def _init(self, asked: _Call) -> PersistentCollective:
        call, count = asked.name, asked.elements
        args, pins = asked.args()
        frame = take()
        out, exchange, err = ffi.new("rdt_persistent **"), frame.transfer, frame.err
        check(lib.rdt_coll_init(self._handle.get(call), args, out, exchange, err), call, err)
        handle = self._core.adopt(Handle(call, out[0], lib.rdt_coll_free))
        try:
            Transfer(self._core, frame, pins, partial(self._what, call, count)).wait()
            frame = take()
            exchange, err = frame.transfer, frame.err
            check(lib.rdt_coll_bind(handle.get(call), exchange, err), call, err)
            Transfer(self._core, frame, pins, partial(self._what, call, count)).wait()
        except BaseException:
            self._core.release(handle)
            raise
        name = call.removesuffix("_init")
        block_bytes = count * lib.rdt_dtype_bytes(dtype_code(asked.dtype, call))
        what = partial(self._what, name, count)
        made = PersistentCollective(self._core, handle, pins, what, (name, block_bytes))
        self._persistent.add(made)
        return made

    def _start(self, asked: _Call) -> Transfer:
        call = asked.name
        args, pins = asked.args()
        frame = take()
        out, err = frame.transfer, frame.err
        check(lib.rdt_coll_post(self._handle.get(call), args, out, err), call, err)
        return Transfer(self._core, frame, pins, partial(self._what, call, asked.elements))

    # ---- the end -------------------------------------------------------------------------------

    def abort(self, reason: str) -> None:
        """End every operation of the group on every member with an error.

        Args:
            reason: The text that the error carries.

        Example:
            >>> broken = world.group("broken", [0])
            >>> broken.abort("the data set is exhausted")
            >>> broken.close()
        """
        lib.rdt_group_abort(self._handle.get("abort"), text_bytes(reason, "abort", "reason"))

    def _what(self, verb: str, amount: int) -> str:
        unit = "B" if " " in verb else "elements"
        return f"group {self.name!r}: {verb} of {amount} {unit}"

    @property
    def is_closed(self) -> bool:
        """Whether close() was called, here or by the World."""
        return self._handle.ptr is None

    def close(self) -> None:
        """Leave the group; what is in flight ends with CanceledError. Idempotent.

        Example:
            >>> world.group("short-lived", [0]).close()
        """
        for made in list(self._persistent):
            made.close()  # one that is open keeps connections, so that peers do not see a leave
        super().close()

    def __repr__(self) -> str:
        return f"<Group {self.name!r} rank {self.rank} of {self.size}>"


def _address_table(addresses: list[bytes]) -> tuple[CData, list[CData]]:
    """Make struct rdtpy_addresses, and what must live as long as the group."""
    data = [ffi.from_buffer("uint8_t[]", address) for address in addresses]
    pointers = ffi.new("uint8_t *[]", data)
    lengths = ffi.new("size_t[]", [len(address) for address in addresses])
    table = ffi.new("struct rdtpy_addresses *")
    table.count = len(addresses)
    table.bytes = ffi.cast("const uint8_t *const *", pointers)
    table.len_bytes = lengths
    return table, [table, pointers, lengths, *data]


def _like(tensor: TensorLike, dtype: str, count: int, call: str, name: str = "out") -> TensorLike:
    """Check that a tensor has a dtype and a count of elements."""
    found, shape = memory.describe_tensor(tensor, call)
    if found != dtype or math.prod(shape) != count:
        raise invalid(
            call,
            f"{name} has {math.prod(shape)} {found} elements, expected {count} {dtype}: the order "
            f"of arguments is that of Group.{call}()",
        )
    return tensor


def _needed(tensor: TensorLike | None, call: str, name: str, who: str) -> TensorLike:
    if tensor is None:
        raise invalid(call, f"{name} is missing: {who} needs it for all members' parts")
    return tensor
