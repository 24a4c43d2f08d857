"""The counters of a context: as a dict, as Prometheus text, and served on loopback.

The numbers are those of Context.counters() and describe(), and the RDMA devices' own counters. Text
and server need the package prometheus-client (`pip install "rdmatensor[metrics]"`), the dict does
not.
"""

from __future__ import annotations

import errno
import importlib
import math
import os
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from socket import socket as Socket  # noqa: N812 - a class
from threading import Thread
from types import ModuleType
from typing import Literal, Protocol

from rdmatensor import trace
from rdmatensor._observe.observed import Observed
from rdmatensor.errors import ClosedError, DeviceError, NotSupportedError
from rdmatensor.state import ContextState, EndpointState

__all__ = ["Sample", "samples", "text", "values"]

ADDRESS = "127.0.0.1"
_HISTOGRAM = "transfer_seconds"
_MEANINGS = {
    "writes": "one-sided writes posted",
    "reads": "one-sided reads posted",
    "notifications": "notifications received",
    "moved_bytes": "payload that a transport moved into its final place",
    "copied_bytes": "other passes over payload",
    "control_messages": "messages with an address, a shape or a request that were sent",
    "credits_alone": "credits that rode on no data",
    "registrations": "regions registered or allocated",
    "wakeups_sent": "system calls made only to wake a sleeping peer",
    "wire_bytes": "bytes handed to sockets, with headers, and to RDMA devices",
    "mailbox_eager": "messages sent through an eager ring",
    "mailbox_rendezvous": "messages whose payload the receiver fetched, or was given in place",
    "mailbox_placed": "messages written at once where their receive stood",
    "verified_bytes": "payload that was compared with its sender's sums",
    "mismatches": "comparisons that found other bytes than were sent",
    "registered_bytes": "memory registered with RDMA devices, for each device and kind of access",
    "registration_s": "time taken to register memory with RDMA devices, and to deregister it",
    "shm_bytes": "of moved_bytes, through shared memory",
    "tcp_bytes": "of moved_bytes, over tcp",
    "verbs_bytes": "of moved_bytes, over RDMA devices",
    "planned_bytes": "of moved_bytes, to or from a place that was known before",
    "dynamic_bytes": "of moved_bytes, where place or size was sent for it alone",
    "control_bytes": "of moved_bytes, what carries no payload",
    "fallback_bytes": "payload over a worse path than the pair should have had, or past its place",
    "reconnections": "paths to a process that another path had reached before",
    "side_channel_bytes": "frames on the side channels to peers, which no transport moves",
    "planned_copied_bytes": "of copied_bytes, for traffic whose place was known before",
    "dynamic_copied_bytes": "of copied_bytes, for traffic whose place or size was sent for it",
    "planned_control_messages": "of control_messages, for traffic whose place was known before",
    "dynamic_control_messages": "of control_messages, for traffic whose place or size was sent",
    "failovers": "peers that moved to tcp because the path over RDMA was lost",
    "wait_s": "time that threads spent waiting for transfers, for data and for room at peers",
}
# The first of these files that a device has; csrc/transport/verbs/device/nic.c reads the same.
_DEVICE_COUNTERS = {
    "retries": ("completer_retry_err", "roce_adp_retrans", "tx_retransmits"),
    "out_of_sequence": ("out_of_seq_request", "out_of_sequence", "packet_seq_err"),
    "rnr": ("rcvd_rnr_err", "rnr_nak_retry_err", "send_rnr_err"),
    "timeouts": ("retry_exceeded_err", "local_ack_timeout_err", "req_transport_retries_exceeded"),
}


@dataclass(frozen=True, slots=True)
class Sample:
    """One number. Seconds and bytes are the only units.

    A histogram has samples that end in "_bucket", one for each value of its label le, "_sum", and
    "_count".

    Attributes:
        name: The name, without ``rdmatensor_`` and ``_total``.
        kind: "counter", "gauge" or "histogram".
        meaning: What is counted.
        value: The number.
        labels: Labels and their values.
    """

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    meaning: str
    value: float
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def full_name(self) -> str:
        """The name in Prometheus."""
        labels = ",".join(f'{name}="{value}"' for name, value in self.labels.items())
        total = "_total" if self.kind == "counter" else ""
        return f"rdmatensor_{self.name}{total}" + (f"{{{labels}}}" if labels else "")


def samples(context: Observed, root: Path = Path("/")) -> list[Sample]:
    """Return all numbers as they are now.

    Args:
        context: The context to read.
        root: The folder that contains sys.

    Returns:
        One sample for each number.

    Raises:
        ClosedError: The context was closed.

    Example:
        >>> next(iter(samples(context))).full_name
        'rdmatensor_writes_total'
    """
    counters = asdict(context.counters())
    state = context._state()  # describe() would also make the kernel visit each page
    found = [
        Sample(_in_seconds(name), "counter", _MEANINGS[name], value)
        for name, value in counters.items()
    ]
    found += _of_memory(state)
    found += _of_endpoints(state["endpoints"])
    found += _of_devices(root)
    for histogram in trace.histograms(context):
        found += _of_transfers(histogram)
    for reference in list(_sources.get(context, ())):
        source = reference()
        found += [] if source is None else source()
    return found


Source = Callable[[], Sequence[Sample]]
_sources: weakref.WeakKeyDictionary[Observed, list[weakref.WeakMethod[Source]]]
_sources = weakref.WeakKeyDictionary()


def _add(context: Observed, source: Source) -> None:
    """Include what source() returns while its object lives; a method of parts above a context."""
    _sources.setdefault(context, []).append(weakref.WeakMethod(source))


def _remove(context: Observed, source: Source) -> None:
    """Include it no more; idempotent."""
    kept = [one for one in _sources.get(context, []) if one() != source]
    _sources[context] = kept


def values(context: Observed) -> dict[str, float]:
    """Return all numbers by name.

    Args:
        context: The context to read.

    Returns:
        Numbers by names as Prometheus writes them, labels included.

    Raises:
        ClosedError: The context was closed.

    Example:
        >>> values(context)["rdmatensor_failovers_total"]
        0
    """
    return {sample.full_name: sample.value for sample in samples(context)}


def text(context: Observed) -> str:
    """Return the numbers in Prometheus' text format.

    Args:
        context: The context to read.

    Returns:
        The text of a scrape.

    Raises:
        ClosedError: The context was closed.
        NotSupportedError: prometheus-client is not installed.

    Example:
        >>> "rdmatensor_failovers_total 0.0" in text(context)
        True
    """
    client = _client()
    return str(client.generate_latest(_registry(client, context)).decode())


def _in_seconds(name: str) -> str:
    return name.removesuffix("_s") + "_seconds" if name.endswith("_s") else name


def _of_memory(state: ContextState) -> list[Sample]:
    arena, regions = state["arena"], state["regions"]
    gauges = {
        "arena_segments": (arena["segments"], "pieces of the arena"),
        "arena_mapped_bytes": (arena["mapped_bytes"], "the arena's size"),
        "arena_allocated_bytes": (arena["allocated_bytes"], "what of the arena is in use"),
        "arena_peak_allocated_bytes": (arena["peak_allocated_bytes"], "the most so far"),
        "arena_huge_bytes": (arena["huge_bytes"], "what of the arena lies in huge pages"),
        "regions": (regions["live"], "regions alive"),
        "regions_bytes": (regions["live_bytes"], "bytes of regions alive"),
        "regions_exported": (regions["exported"], "regions that peers may write"),
        "quarantine_bytes": (regions["quarantine_bytes"], "freed, but peers may still write it"),
    }
    found = [Sample(name, "gauge", what, value) for name, (value, what) in gauges.items()]
    what = "time taken to get the arena's pages"
    return [*found, Sample("arena_populate_seconds", "counter", what, arena["populate_s"])]


def _of_endpoints(endpoints: list[EndpointState]) -> list[Sample]:
    found: dict[tuple[str, str], int] = {}
    for endpoint in endpoints:
        key = (endpoint["path"], endpoint["state"])
        found[key] = found.get(key, 0) + 1
    return [
        Sample("endpoints", "gauge", "connections", count, {"path": path, "state": state})
        for (path, state), count in sorted(found.items())
    ]


def _of_devices(root: Path) -> Iterator[Sample]:
    """Yield the devices' own counters, which count for all processes of the host."""
    for port in sorted((root / "sys/class/infiniband").glob("*/ports/*")):
        labels = {"device": port.parent.parent.name, "port": port.name}
        for name, files in _DEVICE_COUNTERS.items():
            for file in files:
                try:
                    number = int((port / "hw_counters" / file).read_text(encoding="ascii"))
                except (OSError, ValueError):
                    continue
                what = f"{name.replace('_', ' ')} of an RDMA port, by all processes"
                yield Sample(f"device_{name}", "counter", what, number, labels)
                break


def _of_transfers(histogram: trace.Histogram) -> Iterator[Sample]:
    labels = {"operation": histogram.name}
    what = "how long transfers took"
    for bound_s, count in histogram.buckets:
        bound = "+Inf" if math.isinf(bound_s) else str(bound_s)
        yield Sample(f"{_HISTOGRAM}_bucket", "histogram", what, count, {"le": bound, **labels})
    yield Sample(f"{_HISTOGRAM}_count", "histogram", what, histogram.buckets[-1][1], labels)
    yield Sample(f"{_HISTOGRAM}_sum", "histogram", what, histogram.sum_s, labels)
    yield Sample("transfer_bytes", "counter", "payload of transfers", histogram.len_bytes, labels)


# ---- Prometheus ----------------------------------------------------------------------------------


def _client() -> ModuleType:
    try:
        return importlib.import_module("prometheus_client")
    except ImportError as error:
        raise NotSupportedError(
            "RDT_ENOTSUP",
            "metrics",
            f'{error}; install it: pip install "rdmatensor[metrics]", or unset '
            "RDMATENSOR_METRICS_PORTS",
        ) from error


class _Family(Protocol):
    """The part of prometheus-client's families of metrics that is used here."""

    def add_metric(self, labels: list[str], value: float) -> None: ...


class _Collector:
    """The collector that a registry of prometheus-client asks at each scrape."""

    def __init__(self, context: Observed) -> None:
        self._context = weakref.ref(context)

    def collect(self) -> Iterator[object]:
        core = importlib.import_module("prometheus_client.core")
        kinds = {"counter": core.CounterMetricFamily, "gauge": core.GaugeMetricFamily}
        context = self._context()
        families: dict[str, _Family] = {}
        try:
            found = samples(context) if context is not None else []
        except ClosedError:  # closed by another thread meanwhile: there is nothing to report
            found = []
        for sample in found:
            if sample.kind == "histogram":
                continue
            family = families.get(sample.name)
            if family is None:
                family = kinds[sample.kind](
                    f"rdmatensor_{sample.name}", sample.meaning, labels=list(sample.labels)
                )
                families[sample.name] = family
            family.add_metric(list(sample.labels.values()), sample.value)
        yield from families.values()
        yield self._transfers(core, [sample for sample in found if sample.kind == "histogram"])

    def _transfers(self, core: ModuleType, found: list[Sample]) -> object:
        family = core.HistogramMetricFamily(
            f"rdmatensor_{_HISTOGRAM}", "how long transfers took", labels=["operation"]
        )
        for total in found:
            if not total.name.endswith("_sum"):
                continue
            operation = total.labels["operation"]
            buckets = [
                (one.labels["le"], one.value)
                for one in found
                if "le" in one.labels and one.labels["operation"] == operation
            ]
            family.add_metric([operation], buckets, total.value)
        return family


def _registry(client: ModuleType, context: Observed) -> object:
    registry = client.CollectorRegistry()
    registry.register(_Collector(context))
    return registry


class _Httpd(Protocol):
    """The part of the server that prometheus-client starts which is used here."""

    socket: Socket

    def shutdown(self) -> None: ...

    def server_close(self) -> None: ...


class Server:
    """Answers Prometheus on 127.0.0.1 until close(); one thread of its own."""

    def __init__(self, context: Observed, ports: tuple[int, int]) -> None:
        """Take the first port that is free of ports, both ends included.

        Raises:
            NotSupportedError: prometheus-client is not installed.
            DeviceError: No port is free.
        """
        client = _client()
        registry = _registry(client, context)
        self._httpd: _Httpd | None = None
        self._thread: Thread | None = None
        self._pid = os.getpid()
        for port in range(ports[0], ports[1] + 1):
            try:
                started = client.start_http_server(port, addr=ADDRESS, registry=registry)
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise _refused(f"{ADDRESS}:{port}", error) from error
                last = error
                continue
            self._httpd, self._thread = started
            self.port = port
            _servers.add(self)
            return
        raise _refused(f"{ADDRESS}, ports {ports[0]} to {ports[1]}", last) from last

    def close(self) -> None:
        """Stop answering; idempotent, and does nothing after a fork."""
        httpd, thread = self._httpd, self._thread
        self._httpd = self._thread = None
        if httpd is None or os.getpid() != self._pid:
            return
        httpd.shutdown()
        httpd.server_close()
        if thread is not None:
            thread.join()

    def _let_go(self) -> None:
        """Close the port in a forked child, which must not keep it."""
        if self._httpd is not None:
            self._httpd.socket.close()


def _refused(where: str, error: OSError) -> DeviceError:
    refused = DeviceError(
        "RDT_EDEVICE",
        "metrics",
        f"RDMATENSOR_METRICS_PORTS: cannot listen on {where}: {error.strerror}; each process of a "
        "host needs a port of the range",
    )
    refused.sys_errno = error.errno or 0
    return refused


_servers: weakref.WeakSet[Server] = weakref.WeakSet()


def _after_fork() -> None:
    for server in list(_servers):
        server._let_go()


os.register_at_fork(after_in_child=_after_fork)
