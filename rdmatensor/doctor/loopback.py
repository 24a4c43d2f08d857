"""A real write over each available transport: from one context of this process to another."""

from __future__ import annotations

import secrets
import statistics
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from rdmatensor.config import Settings
from rdmatensor.doctor.cures import cure
from rdmatensor.doctor.finding import Finding, broken, ok, slower
from rdmatensor.errors import RdmaTensorError

# Imports in functions load numpy or the C library: what the doctor finds first does not need them.
if TYPE_CHECKING:
    from rdmatensor.context import Context
    from rdmatensor.endpoint import Endpoint
    from rdmatensor.memory import RemoteRegion
    from rdmatensor.types import Array, TransportName

DEADLINE_S = 10.0
LARGE_BYTES = 1 << 20
SMALL_BYTES = 8
_ARENA_MIB = 4
_ROUNDS = 20


def check(settings: Settings, *, has_device: bool) -> Iterator[Finding]:
    """Try all transports, even if one is forced.

    has_device: whether the kernel shows an RDMA device, so that verbs ought to work.
    """
    from rdmatensor.context import Context

    try:
        with Context(for_trial(settings, "auto")) as context:
            state = cast("dict[str, dict[str, object]]", context.describe()["transports"])
    except RdmaTensorError as error:
        yield broken("transports", f"no context can be opened: {error}", cure(error))
        return
    names: tuple[TransportName, ...] = ("shm", "tcp", "verbs")
    for name in names:
        if state[name]["is_viable"]:
            yield _try(settings, name)
        else:
            yield _judge(settings, name, str(state[name]["reason"]), has_device=has_device)
    if not any(state[name]["is_viable"] for name in names):
        yield broken("transports", "none can be used", "the lines above say why each cannot")


def _judge(settings: Settings, name: str, why: str, *, has_device: bool) -> Finding:
    """Say what it means that a transport cannot be used."""
    text, cure = f"cannot be used: {why}", "what the lines above say of devices and limits"
    if name == settings.transport:
        text += f"; RDMATENSOR_TRANSPORT={name} forces it"
        return broken(name, text, "unset RDMATENSOR_TRANSPORT, or " + cure)
    if name == settings.require:
        text += f"; RDMATENSOR_REQUIRE={name} makes every pair with another host fail"
        return broken(name, text, "unset RDMATENSOR_REQUIRE, or " + cure)
    if name == "verbs" and has_device:
        return broken(name, f"{text}; tcp is used in its place", cure)
    if name == "verbs":
        return ok(name, f"not used: {why}")
    return slower(name, text, "see the reason")


def for_trial(settings: Settings, name: TransportName) -> Settings:
    """Drop what a trial in one process does not need: a large arena, fixed ports, a trace."""
    return replace(
        settings, transport=name, require="auto", arena_mib=_ARENA_MIB, arena_max_mib=None,
        ports=None, metrics_ports=None, trace_dir=None,
    )  # fmt: skip


def _try(settings: Settings, name: TransportName) -> Finding:
    from rdmatensor.context import Context

    chosen = for_trial(settings, name)
    try:
        with Context(chosen) as writer, Context(chosen) as owner:
            return ok(name, measure_pair(writer, owner))
    except RdmaTensorError as error:
        return broken(name, f"a write to ourselves fails: {error}", cure(error))


def measure_pair(writer: Context, owner: Context) -> str:
    """Write from one context into another's memory, check the bytes, and return the times."""
    import numpy as np

    secret = secrets.token_bytes(16)
    for context in (writer, owner):
        context.add_job("doctor", secret)
    source, target = writer.empty(LARGE_BYTES, "uint8"), owner.zeros(LARGE_BYTES, "uint8")
    source[:] = np.arange(LARGE_BYTES) % 251
    region = owner.export(target)
    begun_s = time.perf_counter()
    with writer.connect(
        owner.address, job="doctor", timeout_s=min(DEADLINE_S, writer.settings.timeout_s)
    ) as endpoint:
        endpoint.wait_ready()
        ready_s = time.perf_counter() - begun_s
        small_s, large_s = time_writes(endpoint, source, region)
        lane = str(cast("list[dict[str, object]]", writer.describe()["endpoints"])[0]["lane"])
    if not np.array_equal(source, target):
        raise RdmaTensorError("RDT_EINTERNAL", "write", "other bytes arrived than were written")
    return (
        f"ready in {1e3 * ready_s:.1f} ms; a write of {SMALL_BYTES} B {1e6 * small_s:.1f} us, of "
        f"1 MiB {LARGE_BYTES / large_s / 1e9:.3g} GB/s ({lane})"
    )


def time_writes(endpoint: Endpoint, source: Array, region: RemoteRegion) -> tuple[float, float]:
    """Return the median seconds of a write of SMALL_BYTES and of one of LARGE_BYTES."""

    def median_s(len_bytes: int) -> float:
        took = []
        for _ in range(_ROUNDS):
            start_s = time.perf_counter()
            endpoint.write(source[:len_bytes], region).wait(DEADLINE_S)
            took.append(time.perf_counter() - start_s)
        return statistics.median(took)

    return median_s(SMALL_BYTES), median_s(LARGE_BYTES)
