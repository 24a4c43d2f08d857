"""What a worker does for a driver: it leases a batch, gets its tensors, and runs its function."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator
from functools import partial

from rdmatensor._native.arguments import SECONDS_MAX
from rdmatensor.errors import CanceledError, PeerError
from rdmatensor.ps.calls import number
from rdmatensor.ps.driving.functions import function_of
from rdmatensor.ps.driving.pipe import Packed, Pipe
from rdmatensor.ps.queue import WorkQueue
from rdmatensor.ps.worker import Worker

_TRACE_CHARACTERS = 60_000


def work(w: Worker, driver: int) -> None:
    """Run functions until the driver ends.

    Raises:
        PeerError: The driver, a server, or a worker without which the job ends, died.
    """
    pipe = Pipe(w._context, w._peer(driver))
    pipe.open()
    for batch in _leases(w, pipe):
        pipe.send(Packed(["want", batch], "drive"))
        order = pipe.receive()
        if order is None:  # done before, or not wanted any more
            w.clock()
        else:
            pipe.send(_carry_out(w, batch, *order))
    pipe.send(Packed(["end", None], "drive"))
    pipe.close()  # not after an error: the driver then gets the end of this process


def _leases(w: Worker, pipe: Pipe) -> Iterator[int]:
    """Yield the batches of this worker, however long it waits for the next one."""
    ids = [w._call(server, {"call": "feed"}, id=number)["id"] for server in range(w.servers)]
    run = partial(w._run, timeout_s=SECONDS_MAX, watch=pipe.check)
    return iter(WorkQueue(run, w._refresh, "drive", 0, ids))


def _carry_out(w: Worker, batch: int, name: str, arguments: tuple[object, ...]) -> Packed:
    """Run a function and end its step; return the answer to the driver."""
    steps = w.steps
    try:
        result = function_of(name)(w, *arguments)
        answer = Packed(["result", batch, result], f"result of {name}")
        if w.steps == steps:
            w.clock()
    except PeerError:  # the job has ended
        raise
    except Exception as error:  # noqa: BLE001 - it is the driver's
        trace = traceback.format_exc()[-_TRACE_CHARACTERS:]
        if w.steps == steps:
            _give_up(w)
        return Packed(["failure", batch, type(error).__name__, str(error)[:1000], trace], "drive")
    return answer


def _give_up(w: Worker) -> None:
    """End the step without what the function has pushed."""
    w._drop()
    with contextlib.suppress(CanceledError):
        w.clock()
