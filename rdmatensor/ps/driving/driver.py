"""The driver: it schedules batches, and workers run their functions."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from rdmatensor._native.arguments import U32_MAX, invalid, whole_in
from rdmatensor.errors import ClosedError, PeerError, RdmaTensorError
from rdmatensor.ps.driving.functions import FunctionError, name_of
from rdmatensor.ps.driving.pipe import Packed, Pipe
from rdmatensor.ps.worker import Worker

_AHEAD = 4


class Scheduled(Future[Any]):
    """The result of a batch; made by Driver.schedule()."""

    def __init__(self, flush: Callable[[], None]) -> None:
        super().__init__()
        self._flush = flush

    def result(self, timeout: float | None = None) -> Any:  # noqa: ANN401 - of the function
        """Return what the function has returned; see concurrent.futures.Future.

        In "sync" it sends out batches that wait for others of their step.
        """
        if not self.done():
            self._flush()
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return its exception, or None; see result()."""
        if not self.done():
            self._flush()
        return super().exception(timeout)


@dataclass
class _Batch:
    """One batch until its result is there; it keeps the tensors."""

    name: str
    packed: Packed
    future: Scheduled
    is_answered: bool = False  # its future is being set


@dataclass
class _Book:
    """The batches of a driver, under one lock."""

    changed: threading.Condition = field(default_factory=threading.Condition)
    batches: dict[int, _Batch] = field(default_factory=dict)  # those that are not done
    scheduled: int = 0
    sent: int = 0  # that workers may lease
    alive: set[int] = field(default_factory=set)
    failure: Exception | None = None  # that ends the job
    error: Exception | None = None  # of a function, until it is raised
    is_closing: bool = False

    def take_lost(self) -> list[Scheduled]:
        """Remove all batches; return the futures that get no result. Under the lock."""
        lost = [one.future for one in self.batches.values() if not one.is_answered]
        self.batches.clear()
        self.changed.notify_all()
        return lost


class Driver:
    """The process that has the data; made by drive().

    Attributes:
        workers: Number of workers that run functions.
        worker: This process's connection to the servers: tables, `kv`, save(). It has no steps of
            its own, so it cannot push.
        in_flight: Batches that are scheduled and not done, at most.

    Threads:
        One at a time.
    """

    def __init__(self, w: Worker, in_flight: int | None = None) -> None:
        self.worker, self.workers = w, w.workers
        most = _AHEAD * self.workers if in_flight is None else in_flight
        self.in_flight = whole_in(most, U32_MAX, "drive", "in_flight")
        if self.in_flight < self.workers:
            raise invalid("drive", f"in_flight={in_flight!r} for {self.workers} workers")
        self._book = _Book(alive=set(range(self.workers)))
        self._sending = threading.Lock()
        self._results: list[Scheduled] = []
        self._pipes = [Pipe(w._context, w._peer(rank)) for rank in range(self.workers)]
        self._threads = [
            threading.Thread(
                target=self._serve, args=(rank,), name=f"rdmatensor drive {rank}", daemon=True
            )
            for rank in range(self.workers)
        ]
        for server in range(w.servers):
            w._call(server, {"call": "feed"})
            w._call(server, {"call": "observe"})
        w._is_observer = True
        for thread in self._threads:
            thread.start()

    # ---- for the program -----------------------------------------------------------------------

    def schedule(self, function: Callable[..., Any], *batch: object) -> Future[Any]:
        """Have a worker run a function of its ps.Worker and the batch; returns soon.

        What the function pushes is one step, which ends after it, unless the function has called
        Worker.clock() or Dense.step(). Each batch is applied once. A batch whose worker dies runs
        again on another one, if the job goes on. Waits while in_flight batches are not done.

        In "sync" a step that has fewer batches than workers waits for more, until join(), gather(),
        or result() or exception() of a future. concurrent.futures.wait() and as_completed() do not
        end it, nor does add_done_callback(): call join() before, or they wait for ever for a short
        last step.

        Ownership:
            Tensors are not copied: they must not change until the result is there.

        Args:
            function: At the top of a module that workers import too, such as the program itself,
                or named by register().
            batch: CPU tensors, numbers, texts, True, False, None, and lists, tuples and dicts of
                them. The worker gets copies.

        Returns:
            The future of what the function returns, which is such a value too.

        Raises:
            InvalidArgumentError: The function or a part of the batch cannot be sent.
            FunctionError: An earlier function failed.
            PeerError: A server, or a worker without which the job ends, died.

        Example:
            >>> driver.schedule(twice, torch.ones(2)).result()
            tensor([2., 2.])
        """
        name, book = name_of(function), self._book
        packed = Packed([name, list(batch)], "schedule")
        future = Scheduled(self._flush)
        with book.changed:
            self._wait(lambda: len(book.batches) < self.in_flight)
            book.batches[book.scheduled] = _Batch(name, packed, future)
            book.scheduled += 1
        self._results.append(future)
        self._send(is_all=self.worker.shape.mode != "sync")
        return future

    def join(self) -> None:
        """Wait until all batches are done.

        Raises:
            FunctionError: A function failed: the first one that was not raised yet.
            PeerError: A server, or a worker without which the job ends, died.

        Example:
            >>> driver.join()
        """
        self._results = []
        self._flush()
        with self._book.changed:
            self._wait(lambda: not self._book.batches)

    def gather(self) -> list[Any]:
        """Return all results since the last call, or the last one of join(); waits for them.

        Returns:
            What the functions have returned, in the order of schedule().

        Raises:
            FunctionError: As join(); the results are dropped.
            PeerError: As join().

        Example:
            >>> for x in (1, 2, 3):
            ...     _ = driver.schedule(twice, x)
            >>> driver.gather()[-3:]
            [2, 4, 6]
        """
        results = self._results
        self.join()
        return [one.result() for one in results]

    def __repr__(self) -> str:
        return f"<Driver of {self.workers} workers>"

    # ---- batches -------------------------------------------------------------------------------

    def _wait(self, is_there: Callable[[], bool]) -> None:
        """Wait under the lock; raises what has ended the job, or the first error of a function."""
        book = self._book
        while True:
            if book.failure is not None:
                raise book.failure
            if book.error is not None:
                error, book.error = book.error, None
                raise error
            if is_there():
                return
            book.changed.wait()

    def _flush(self) -> None:
        """Send out also the batches that do not fill a step of all workers."""
        self._send(is_all=True)

    def _send(self, *, is_all: bool, is_last: bool = False) -> None:
        """Let workers lease what was scheduled; in "sync" by steps of one batch for each."""
        book = self._book
        with self._sending:
            with book.changed:
                if book.failure is not None:
                    return
                width = 1 if is_all else max(1, len(book.alive))
                ready = (book.scheduled - book.sent) // width * width
                if ready == 0 and not is_last:
                    return
                book.sent += ready
                request = {"call": "feed more", "chunks": book.sent, "last": is_last}
            for server in reversed(range(self.worker.servers)):  # server 0 leases
                self.worker._call(server, dict(request))

    # ---- workers -------------------------------------------------------------------------------

    def _serve(self, rank: int) -> None:
        """Serve one worker, in a thread of its own."""
        try:
            self._pipes[rank].open()
            while self._answer(rank, *self._pipes[rank].receive()):
                pass
        except Exception as error:  # noqa: BLE001 - the program gets it
            if not self._book.is_closing:
                self._lose(rank, error)

    def _answer(self, rank: int, kind: str, batch: int, *rest: str) -> bool:
        """Answer a worker; returns whether it goes on."""
        if kind == "want":
            found = self._wanted(batch)
            self._pipes[rank].send(Packed(None, "drive") if found is None else found.packed)
        elif kind in ("result", "failure"):
            self._finish(rank, batch, kind, rest)
        return kind != "end"

    def _wanted(self, number: int) -> _Batch | None:
        """Return a batch that a worker has leased; None: it is done, or was cancelled."""
        book = self._book
        with book.changed:
            found = book.batches.get(number)
            if found is None or found.future.running():  # its worker has died
                return found
            if found.future.set_running_or_notify_cancel():
                return found
            del book.batches[number]
            book.changed.notify_all()
            return None

    def _finish(self, rank: int, number: int, kind: str, rest: tuple[str, ...]) -> None:
        book = self._book
        with book.changed:
            found = book.batches.get(number)
            if found is None:  # the driver has closed
                return
            found.is_answered = True
        error: Exception | None = None
        if kind == "failure":
            error = FunctionError(found.name, rank, *rest)
            found.future.set_exception(error)
        else:
            found.future.set_result(rest[0])
        with book.changed:
            book.error = book.error or error
            book.batches.pop(number, None)
            book.changed.notify_all()

    def _lose(self, rank: int, error: Exception) -> None:
        """Go on without a worker, or end with the error of the server that is the cause."""
        book = self._book
        with book.changed:
            book.alive.discard(rank)
            goes_on = self.worker.shape.goes_on and bool(book.alive)
            if goes_on and isinstance(error, PeerError):
                book.changed.notify_all()
                return
        try:
            for server in range(self.worker.servers):
                self.worker._call(server, {"call": "observe"})
        except PeerError as cause:
            error = cause
        except RdmaTensorError:  # as of memory that a server freed: the first error says more
            pass
        self._fail(error)

    def _fail(self, error: Exception) -> None:
        book = self._book
        with book.changed:
            book.failure = book.failure or error
            lost = book.take_lost()
        for one in lost:
            if not one.cancelled():
                one.set_exception(error)

    # ---- the end -------------------------------------------------------------------------------

    def _close(self) -> None:
        """Drop what is not done, and let the workers end."""
        book = self._book
        with book.changed:
            lost = book.take_lost()
        for one in lost:
            if not one.cancel():
                one.set_exception(ClosedError("RDT_ECLOSED", "drive", "the driver ended"))
        try:
            with contextlib.suppress(RdmaTensorError):  # workers that are gone need no end
                self._send(is_all=True, is_last=True)
            for thread in self._threads:
                thread.join(self.worker._core.timeout_s)
        finally:
            book.is_closing = True
            for pipe in self._pipes:
                pipe.close()
