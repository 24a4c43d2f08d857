"""A context's last transfers and their times: as a list, and as a page of a trace viewer.

For example::

    rdmatensor.trace.start(context)
    ...
    rdmatensor.trace.write(context, "transfers.json")   # chrome://tracing, ui.perfetto.dev

write() can merge a trace that torch.profiler has exported, so that both are on one time line:
kernels and Python above, transfers below. RDMATENSOR_TRACE_DIR=FOLDER does all of it for a process:
the trace starts with the context and is written to FOLDER/rdmatensor-<host>-<pid>.json when that is
closed.

A trace costs about 100 bytes and 0.1 us for each transfer; if it was not started, one read of a
pointer.
"""

from __future__ import annotations

import gzip
import heapq
import json
import math
import os
import socket
import time
import zlib
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from rdmatensor._native.arguments import invalid, whole_in
from rdmatensor._native.ffi import OK, check, ffi, lib, new_error
from rdmatensor._observe.observed import Observed
from rdmatensor.errors import RANK_UNKNOWN

__all__ = ["Event", "Histogram", "events", "histograms", "start", "write"]

DEFAULT_CAPACITY = 1 << 16
CAPACITY_MAX = 1 << 24
_BATCH = 4096
# Threads of the process have small numbers; the rows of transfers are shown below them.
_FIRST_ROW = 1 << 30


@dataclass(frozen=True, slots=True)
class Event:
    """One transfer. Times are of the wall clock, in nanoseconds since 1970.

    Attributes:
        sequence: From 1, in the order in which transfers began.
        name: "write", "read", "slot", "send", "receive", "all_reduce", "ps pull".
        peer: Its rank; None for a collective, a message from any source, or an operation of a
            parameter server.
        len_bytes: Payload.
        start_ns: When it began.
        end_ns: When it ended; None while it is in flight.
        status: "RDT_OK", the name of an error, or "in flight".
    """

    sequence: int
    name: str
    peer: int | None
    len_bytes: int
    start_ns: int
    end_ns: int | None
    status: str


def start(context: Observed, capacity: int = DEFAULT_CAPACITY) -> None:
    """Keep the last `capacity` transfers from now on; once in a context's life.

    Args:
        context: The context to trace.
        capacity: Number of transfers, 1 to 2^24.

    Raises:
        InvalidArgumentError: It is on already, or the capacity is out of range.
        OutOfMemoryError: Memory for the trace is lacking.
        ClosedError: The context was closed.

    Example:
        >>> with Context(Settings(loopback=True)) as context:
        ...     start(context, capacity=1000)
    """
    capacity = whole_in(capacity, CAPACITY_MAX, "trace", "capacity")
    err = new_error()
    check(lib.rdt_context_trace_start(context._c_ptr("trace"), capacity, err), "trace", err)


def events(context: Observed, since: int = 1) -> list[Event]:
    """Return the transfers that are kept, oldest first.

    Args:
        context: The traced context.
        since: Only transfers from this sequence number on.

    Returns:
        The transfers; empty if start() was not called.

    Raises:
        ClosedError: The context was closed.

    Example:
        >>> events(context)
        []
    """
    batch = ffi.new("struct rdt_trace_event[]", _BATCH)
    following = ffi.new("uint64_t *", since)
    found: list[Event] = []
    # At most as many as there is room for: others may begin faster than this reads.
    for _ in range(CAPACITY_MAX // _BATCH):
        # Re-read: another thread may close the context.
        pointer = context._c_ptr("trace")
        count = lib.rdt_context_trace_read(pointer, following[0], batch, _BATCH, following)
        found += [_event(batch[i]) for i in range(count)]
        if count < _BATCH:
            break
    return found


@dataclass(frozen=True, slots=True)
class Histogram:
    """How long the transfers of one name took since start().

    Includes those that are not kept any more, except one that `capacity` newer ones overtook.

    Attributes:
        name: As Event.name; "other" for names beyond the first 31.
        count: Number of transfers.
        sum_s: Seconds that they took together.
        len_bytes: Payload of all of them.
        buckets: Pairs of seconds and how many took no longer; the last one is infinite.
    """

    name: str
    count: int
    sum_s: float
    len_bytes: int
    buckets: tuple[tuple[float, int], ...]


def histograms(context: Observed) -> list[Histogram]:
    """Return one histogram for each name that has ended at least once.

    Args:
        context: The traced context.

    Returns:
        The histograms; empty if start() was not called.

    Raises:
        ClosedError: The context was closed.

    Example:
        >>> histograms(context)
        []
    """
    raw = ffi.new("struct rdt_trace_histogram *")
    found: list[Histogram] = []
    while lib.rdt_context_trace_histogram(context._c_ptr("trace"), len(found), raw) == OK:
        bounds = [*(2**i / 1e6 for i in range(lib.RDT_TRACE_BUCKETS - 1)), math.inf]
        found.append(
            Histogram(
                name=ffi.string(raw.name).decode(),
                count=raw.count,
                sum_s=raw.sum_ns / 1e9,
                len_bytes=raw.sum_bytes,
                buckets=tuple(zip(bounds, accumulate(raw.buckets), strict=True)),
            )
        )
    return found


def _event(raw: Any) -> Event:  # noqa: ANN401 - a struct of cffi
    is_over = raw.end_ns != 0
    return Event(
        sequence=raw.sequence,
        name=ffi.string(raw.name).decode(),
        peer=None if raw.peer_rank == RANK_UNKNOWN else raw.peer_rank,
        len_bytes=raw.len_bytes,
        start_ns=raw.start_ns,
        end_ns=raw.end_ns if is_over else None,
        status=ffi.string(lib.rdt_status_name(raw.status)).decode() if is_over else "in flight",
    )


def write(context: Observed, path: str | Path, *, profile: str | Path | None = None) -> int:
    """Write the transfers that are kept as a Chrome trace.

    Args:
        context: The traced context.
        path: The file to write, which ends in .json or .json.gz.
        profile: A trace of torch.profiler's export_chrome_trace() from this machine; its events are
            included, on one time line.

    Returns:
        The number of transfers.

    Raises:
        ClosedError: The context was closed.
        OSError: A file could not be read or written.
        InvalidArgumentError: The other trace is not one of torch.profiler's.

    Example:
        >>> write(context, f"{folder}/transfers.json")
        0
    """
    found = events(context)
    trace: dict[str, Any] = {"traceEvents": [], "displayTimeUnit": "ns"}
    if profile is not None:
        trace = _read(Path(profile))
    # torch counts microseconds from a time of its own; with 0 they are since 1970.
    base_ns: int = trace.get("baseTimeNanoseconds", 0)
    trace["traceEvents"] += chrome_events(found, base_ns, now_ns=time.time_ns())
    _write(Path(path), trace)
    return len(found)


def chrome_events(found: list[Event], base_ns: int, now_ns: int) -> list[dict[str, object]]:
    """Return events of the Chrome trace format; transfers in flight last until now_ns."""
    pid = os.getpid()
    rows: dict[str, list[tuple[int, int]]] = {}  # by title: a heap of (last end, row)
    numbers: dict[tuple[str, int], int] = {}
    drawn: list[dict[str, object]] = []
    for event in found:
        title = f"rdmatensor {_title(event)}"
        end_ns = now_ns if event.end_ns is None else event.end_ns
        place = (title, _free_row(rows.setdefault(title, []), event.start_ns, end_ns))
        drawn.append(
            {
                "ph": "X",
                "cat": "rdmatensor",
                "name": event.name,
                "pid": pid,
                "tid": numbers.setdefault(place, _FIRST_ROW + len(numbers)),
                "ts": (event.start_ns - base_ns) / 1000,
                "dur": max(end_ns - event.start_ns, 0) / 1000,
                "args": {
                    "bytes": event.len_bytes,
                    "peer": event.peer,
                    "status": event.status,
                    "sequence": event.sequence,
                },
            }
        )
    return [*_row_names(numbers, pid), *drawn]


def _title(event: Event) -> str:
    if event.name.startswith("ps "):
        return "parameter server"
    return "collectives" if event.peer is None else f"to and from rank {event.peer}"


def _free_row(rows: list[tuple[int, int]], start_ns: int, end_ns: int) -> int:
    """Take a row in which nothing overlaps: a viewer draws only nested events."""
    if rows and rows[0][0] <= start_ns:
        row = rows[0][1]
        heapq.heapreplace(rows, (end_ns, row))
    else:
        row = len(rows)
        heapq.heappush(rows, (end_ns, row))
    return row


def _row_names(numbers: dict[tuple[str, int], int], pid: int) -> list[dict[str, object]]:
    return [
        {
            "ph": "M",
            "name": kind,
            "pid": pid,
            "tid": number,
            "args": {"name": title} if kind == "thread_name" else {"sort_index": number},
        }
        for (title, _), number in numbers.items()
        for kind in ("thread_name", "thread_sort_index")
    ]


def _read(path: Path) -> dict[str, Any]:
    raw = path.read_bytes()
    try:
        trace = json.loads(gzip.decompress(raw) if path.suffix == ".gz" else raw)
    except (ValueError, OSError, EOFError, zlib.error) as error:
        raise invalid("trace", f"profile={str(path)!r} is not JSON: {error}") from error
    if not isinstance(trace, dict) or not isinstance(trace.get("traceEvents"), list):
        raise invalid("trace", f"profile={str(path)!r} has no list of traceEvents")
    if not isinstance(trace.get("baseTimeNanoseconds", 0), int):
        raise invalid("trace", f"profile={str(path)!r}: baseTimeNanoseconds is not an integer")
    return trace


def _write(path: Path, trace: dict[str, Any]) -> None:
    raw = json.dumps(trace).encode()
    path.write_bytes(gzip.compress(raw) if path.suffix == ".gz" else raw)


def check_folder(folder: str) -> None:
    """Raise InvalidArgumentError if a file could not be written at the end.

    Called before the context exists: a user must not learn of it after an hour of tracing.
    """
    if not Path(folder).is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        raise invalid("Context", f"RDMATENSOR_TRACE_DIR={folder}: no folder that can be written to")


def write_into(folder: str, context: Observed) -> Path:
    """Write FOLDER/rdmatensor-<host>-<pid>.json and return its path; adds "-<uuid>" if it exists.

    Raises:
        OSError: The file cannot be written.
        ClosedError: The context was closed.
    """
    name = f"rdmatensor-{socket.gethostname()}-{os.getpid()}"
    path = Path(folder, f"{name}.json")
    if path.exists():  # of an earlier context of this process
        path = Path(folder, f"{name}-{context.uuid.hex()[:8]}.json")
    write(context, path)
    return path
