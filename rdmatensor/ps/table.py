"""A table as a worker sees it: rows by ids."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import torch

from rdmatensor._native.arguments import U32_MAX, invalid, whole_in
from rdmatensor._native.ffi import CData, ffi, lib
from rdmatensor.errors import BusyError, ClosedError
from rdmatensor.ps.spec import TableSpec

Ids = torch.Tensor | Sequence[int]
Ask = Callable[[int, dict[str, object]], dict[str, object]]
Run = Callable[[str, Callable[[CData, int, CData], int]], None]

_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.uint8, torch.int8)


class Prefetched(Future[torch.Tensor]):
    """Rows of Table.prefetch(); the step that takes them by result() uses them."""

    def __init__(self) -> None:
        super().__init__()
        self.clock: int | None = None  # of the worker when they were pulled
        self.is_taken = False

    def result(self, timeout: float | None = None) -> torch.Tensor:
        """Return the rows; see concurrent.futures.Future."""
        rows = super().result(timeout)
        self.is_taken = True
        return rows


class Table:
    """Rows that servers hold; made by Worker.table().

    Attributes:
        name: Of the table.
        dim: Floats of a row.
        rows: Number of rows: ids are 0 to rows - 1; 0 if ids are keys.
        in_flight: Prefetches whose step has not ended; None: any number.

    Threads:
        Any thread; operations of one worker run one after the other.
    """

    def __init__(
        self,
        spec: TableSpec,
        number: int,
        run: Run,
        ask: Ask,
        ask_all: Callable[[dict[str, object]], object],
        servers: int,
        in_flight: int | None = None,
    ) -> None:
        self.spec, self._number, self._run = spec, number, run
        self._ask, self._ask_all, self._servers = ask, ask_all, servers
        self.in_flight = in_flight
        self._ahead: list[Prefetched] = []
        self._ahead_lock = threading.Lock()
        self.name, self.dim, self.rows = spec.name, spec.dim, spec.rows
        self._prefetcher: ThreadPoolExecutor | None = None
        self._is_closed = False

    def pull(self, ids: Ids, out: torch.Tensor | None = None) -> torch.Tensor:
        """Return the rows of ids.

        Rows of servers on this host are read in place while servers may write them: in "async" and
        SSP a row may hold parts of two versions, unless the table's consistency is "row".

        Args:
            ids: Integers of any shape, which may repeat; empty is legal.
            out: A contiguous float32 tensor of shape (*ids.shape, dim), or None.

        Returns:
            Rows of shape (*ids.shape, dim).

        Raises:
            InvalidArgumentError: Ids out of range or of a wrong dtype, or a wrong out.
            PeerError: A server died.

        Example:
            >>> table.pull([3, 4]).shape
            torch.Size([2, 2])
        """
        return self._pull(self._ids(ids, "pull"), out, ffi.NULL)

    def find(self, ids: Ids) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the rows of ids, and which of them are there; of a table of keys.

        Args:
            ids: As for pull().

        Returns:
            Rows as of pull(), and a bool tensor of the shape of ids: False where a key has no row,
            and its first values were returned.

        Raises:
            InvalidArgumentError: As of pull().
            PeerError: A server died.

        Example:
            >>> rows, is_there = table.find([3, 7])
        """
        wanted = self._ids(ids, "find")
        found = torch.zeros(wanted.shape, dtype=torch.uint8)
        rows = self._pull(wanted, None, _pointer("uint8_t *", found))
        return rows, found.bool()

    def set_epoch(self, epoch: int) -> None:
        """Have pushes that are applied from now on count for an epoch, for evict="epoch".

        Args:
            epoch: Not below an earlier one, which would stay.

        Raises:
            InvalidArgumentError: The epoch is not from 0 to 2^32 - 1, or the table has no keys.
            PeerError: A server died.

        Example:
            >>> table.set_epoch(4)
        """
        number = whole_in(epoch, U32_MAX, "set_epoch", "epoch")
        self._ask_all({"call": "epoch", "name": self.name, "epoch": number})

    def describe(self) -> list[dict[str, object]]:
        """Return the table's state on each server: of keys, how full it is, and what came and went.

        Returns:
            For each server "dim", "rows" and "rule"; of a table of keys, or with a file, counters:
            "filtered" keys have no row yet, "load" is the part of the capacity that is used.

        Raises:
            PeerError: A server died.

        Example:
            >>> [one["rows"] for one in table.describe()]
            [10]
        """
        request = {"call": "table state", "name": self.name}
        return [self._ask(server, dict(request)) for server in range(self._servers)]

    def _pull(self, wanted: torch.Tensor, out: torch.Tensor | None, found: CData) -> torch.Tensor:
        shape = (*wanted.shape, self.dim)
        if out is None:
            out = torch.empty(shape)
        elif (
            not isinstance(out, torch.Tensor)
            or (out.shape, out.dtype, out.device.type) != (shape, torch.float32, "cpu")
            or not out.is_contiguous()
        ):
            raise invalid(
                "pull",
                f"out is {getattr(out, 'dtype', type(out).__name__)} of shape "
                f"{tuple(getattr(out, 'shape', ()))} on {getattr(out, 'device', 'no device')}, not "
                f"contiguous float32 of shape {shape} on cpu",
            )
        self._fetch(wanted, out, found)
        return out

    def _fetch(self, ids: torch.Tensor, out: torch.Tensor, found: CData = ffi.NULL) -> int:
        """Pull rows; return the worker's clock when they were pulled."""
        clock = 0

        def begin(ptr: CData, timeout_ns: int, err: CData) -> int:
            nonlocal clock
            clock = int(lib.rdt_ps_worker_clock(ptr))
            status: int = lib.rdt_ps_worker_find(
                ptr, self._number, _pointer("int64_t *", ids), ids.numel(),
                _pointer("float *", out), found, timeout_ns, err,
            )  # fmt: skip
            return status

        self._run("pull", begin)
        return clock

    def push(self, ids: Ids, rows: torch.Tensor) -> None:
        """Send rows, such as gradients, which the rule applies after the next clock().

        Rows of an id that repeats are summed first; under Assign() the last one counts. When it
        returns, `rows` may be changed.

        Args:
            ids: Integers of any shape; empty is legal.
            rows: float32 of shape (*ids.shape, dim).

        Raises:
            InvalidArgumentError: Ids out of range or of a wrong dtype, or rows of another shape or
                dtype; nothing was sent.
            PeerError: A server died.
            RdmaTensorError: A server refused an earlier push of this step; clock() raises it too.

        Example:
            >>> table.push([3, 4], torch.ones(2, 2))
            >>> w.clock()
            1
        """
        wanted = self._ids(ids, "push")
        shape = (*wanted.shape, self.dim)
        if not isinstance(rows, torch.Tensor) or rows.dtype != torch.float32 or rows.shape != shape:
            raise invalid(
                "push",
                f"rows are {getattr(rows, 'dtype', type(rows).__name__)} of shape "
                f"{tuple(getattr(rows, 'shape', ()))}, not float32 of {shape}",
            )
        if rows.device.type != "cpu":
            raise invalid("push", f"rows are on {rows.device.type!r}: copy them to the CPU")
        source = rows.detach().contiguous()

        def begin(ptr: CData, timeout_ns: int, err: CData) -> int:
            status: int = lib.rdt_ps_worker_push(
                ptr, self._number, _pointer("int64_t *", wanted), _pointer("float *", source),
                wanted.numel(), timeout_ns, err,
            )  # fmt: skip
            return status

        self._run("push", begin)

    def prefetch(self, ids: Ids) -> Future[torch.Tensor]:
        """Start to pull rows; result() of the returned future waits for them.

        Args:
            ids: As for pull(); they must not change until the result is there.

        Returns:
            The future. Its rows are those of some time before result(): pushes of this worker that
            a later clock() applies are not in them. The step in which result() is called counts as
            so much staler in describe().

        Raises:
            InvalidArgumentError: As pull().
            BusyError: in_flight prefetches were made, and no clock() has ended a step with one.
            ClosedError: The worker has left or was closed.

        Example:
            >>> coming = table.prefetch([3, 4])
            >>> coming.result().shape
            torch.Size([2, 2])
        """
        wanted = self._ids(ids, "prefetch")
        if self._is_closed:
            raise ClosedError("RDT_ECLOSED", "prefetch", "the worker has left or was closed")
        rows = Prefetched()
        with self._ahead_lock:
            self._ahead = [one for one in self._ahead if one.clock is not None or not one.done()]
            if self.in_flight is not None and len(self._ahead) >= self.in_flight:
                raise BusyError(
                    "RDT_EBUSY",
                    "prefetch",
                    f"{len(self._ahead)} prefetches of {self.name!r} are in flight, and "
                    f"in_flight={self.in_flight}: call clock() after the step that uses the first",
                )
            self._ahead.append(rows)
            if self._prefetcher is None:
                self._prefetcher = ThreadPoolExecutor(1, f"rdmatensor prefetch {self.name}")
        work = self._prefetcher.submit(self._fill, rows, wanted)
        work.add_done_callback(lambda done: done.cancelled() and rows.cancel())
        return rows

    def _fill(self, rows: Prefetched, ids: torch.Tensor) -> None:
        """Pull rows in the thread of prefetch()."""
        if not rows.set_running_or_notify_cancel():
            return
        try:
            out = torch.empty((*ids.shape, self.dim))
            rows.clock = self._fetch(ids, out)
        except BaseException as error:  # noqa: BLE001 - it is the future's
            rows.set_exception(error)
        else:
            rows.set_result(out)

    def _used(self) -> list[int]:
        """Return the clocks of the rows that this step has taken; Worker.clock() calls this."""
        with self._ahead_lock:
            return [one.clock for one in self._ahead if one.is_taken and one.clock is not None]

    def _end_step(self) -> None:
        """Forget those rows; Worker.clock() calls this."""
        with self._ahead_lock:
            self._ahead = [one for one in self._ahead if not one.is_taken]

    def close(self) -> None:
        """End the thread of prefetch(); the worker calls this.

        Example:
            >>> table.close()
        """
        self._is_closed = True
        if self._prefetcher is not None:
            self._prefetcher.shutdown(wait=False, cancel_futures=True)

    def _ids(self, ids: Ids, call: str) -> torch.Tensor:
        try:
            found = ids if isinstance(ids, torch.Tensor) else torch.as_tensor(ids)
        except (TypeError, ValueError, RuntimeError) as error:
            raise invalid(call, f"ids are no integers: {error}") from None
        if found.numel() == 0 and not isinstance(ids, torch.Tensor):
            found = found.to(torch.int64)  # an empty list is of floats
        if found.dtype not in _INTEGERS:
            raise invalid(call, f"ids are {found.dtype}, not integers")
        if found.device.type != "cpu":
            raise invalid(call, f"ids are on {found.device.type!r}: copy them to the CPU")
        return found.detach().to(torch.int64).contiguous()

    def __repr__(self) -> str:
        if self.spec.keys != "dense":
            return f"<Table {self.name!r} of keys with rows of {self.dim}>"
        return f"<Table {self.name!r} of {self.rows} rows of {self.dim}>"


def _pointer(kind: str, tensor: torch.Tensor) -> CData:
    """Return the address of a tensor's elements; the caller keeps the tensor."""
    return ffi.cast(kind, tensor.data_ptr())
