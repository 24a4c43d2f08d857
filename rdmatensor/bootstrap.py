"""Joining a job: ranks find each other through a store, and share a secret."""

from __future__ import annotations

import asyncio
import threading

from rdmatensor._join import arguments
from rdmatensor.context import DEFAULT_JOB, Context
from rdmatensor.errors import ClosedError
from rdmatensor.store import Store
from rdmatensor.world import World


def join(
    store: Store,
    rank: int,
    size: int,
    *,
    job: str = DEFAULT_JOB,
    context: Context | None = None,
    timeout_s: float | None = None,
) -> World:
    """Join a job as one of its ranks; all ranks use the same store and job.

    The job's secret is RDMATENSOR_SECRET or RDMATENSOR_SECRET_FILE. Without them rank 0 makes one
    and puts it into the store, which keeps out strays, but no reader of the store; describe() says
    which. join() returns once the ranks have agreed on the job: connections are made at first use.

    Args:
        store: FileStore, or any torch.distributed.Store.
        rank: This process's rank, from 0.
        size: Number of processes.
        job: Name of the job, at most 46 bytes; jobs of different names may share a store.
        context: The context to use, which the World then leaves open; None opens one from the
            environment.
        timeout_s: Seconds that waiting for other ranks may take, here and later; None takes the
            context's deadline.

    Returns:
        The ranks of the job. Close it, or use it as a context manager.

    Raises:
        TransferTimeoutError: Rank 0 is missing.
        MismatchError: Ranks disagree on the size of the job or the kind of its secret.
        InvalidArgumentError: An argument is wrong.

    Example:
        >>> with join(FileStore(folder), 0, 1) as world:
        ...     world.size
        1
    """
    return _join(*arguments.checked(store, rank, size, job, timeout_s), context, threading.Event())


def _join(
    store: Store,
    rank: int,
    size: int,
    job: str,
    wait_s: float | None,
    context: Context | None,
    closed: threading.Event,
) -> World:
    """Join; waits end with ClosedError once closed is set."""
    own = Context() if context is None else None
    used = context if context is not None else own
    assert used is not None
    try:
        return World(
            *(store, rank, size, job, used, closed), owns_context=own is not None, wait_s=wait_s
        )
    except BaseException:
        if own is not None:
            own.close()
        raise


async def join_async(
    store: Store,
    rank: int,
    size: int,
    *,
    job: str = DEFAULT_JOB,
    context: Context | None = None,
    timeout_s: float | None = None,
) -> World:
    """Join a job as join() does; waits in a thread of asyncio's.

    If the task is cancelled, the thread ends soon, and what it made is closed.

    Args:
        store: As for join().
        rank: As for join().
        size: As for join().
        job: As for join().
        context: As for join().
        timeout_s: As for join().

    Returns:
        The ranks of the job.

    Raises:
        TransferTimeoutError: Rank 0 is missing. The other exceptions are those of join().

    Example:
        >>> asyncio.run(join_async(FileStore(folder), 0, 1)).close()
    """
    checked = arguments.checked(store, rank, size, job, timeout_s)
    closed, lock = threading.Event(), threading.Lock()
    made: list[World] = []

    def run() -> World:
        world = _join(*checked, context, closed)
        with lock:
            if not closed.is_set():
                made.append(world)
                return world
        world.close()
        raise ClosedError("RDT_ECLOSED", "join", "the task that joined was cancelled")

    try:
        return await asyncio.to_thread(run)
    except asyncio.CancelledError:
        with lock:
            closed.set()  # ends the thread, which closes what it makes from here on
        for world in made:
            threading.Thread(target=world.close, name="rdmatensor close").start()
        raise
