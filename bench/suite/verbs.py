"""Point to point and collectives over verbs, on one host of the rig.

perftest's tools, which are the floor, take turns with rdtperf; gRPC has TCP in the same guest.
SoftRoCE is software, and under emulation every instruction is emulated too: only ratios mean
anything. perftest spins for a message, rdmatensor spins and then sleeps.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Mapping, Sequence

from bench.benchlib import programs
from bench.benchlib.record import Record, number
from bench.benchlib.units import size_text
from bench.suite import rounds, samples, transfers
from bench.suite.peers import RDMATENSOR
from bench.suite.settings import KIB, MIB, Settings

PERFTEST = "perftest"
_LATENCIES = {samples.HALF: ("ib_write_lat", "ib_send_lat"), transfers.ALONE: ("ib_read_lat",)}
_WRITES = "ib_write_bw"
_AVERAGE = 3  # of perftest's columns: MiB/s
_LEAST_COUNT = 5  # perftest's
_RATE_FROM_BYTES = MIB
_QPS = (1, 2, 4)
_DEPTH = 16
# A device that promises no order is made to use flags all the same: what they would save.
_BY_FLAG = {"RDMATENSOR_VERBS_NOTIFY": "flag", "RDMATENSOR_VERBS_FLAG_UNSAFE": "1"}
_PATIENCE_S = 120.0


def count_of(size: int) -> int:
    """Return the messages of a turn: an emulated machine moves some 80 MiB a second."""
    return max(_LEAST_COUNT, min(400, 48 * MIB // size))


def turns(settings: Settings, size: int, present: set[str]) -> Iterator[tuple[str, rounds.Turn]]:
    """Return the turns of one size."""
    word = f"verbs {size_text(size)}"
    yield f"latency, {word}", functools.partial(_rdtperf, "latency", size, samples.HALF)
    yield f"reads, {word}", functools.partial(_rdtperf, "reads", size, transfers.ALONE)
    for timed, tools in _LATENCIES.items() if PERFTEST in present else ():
        for tool in tools:
            yield f"{tool}, {word}", functools.partial(_latency_of, tool, size, timed)
    if size >= _RATE_FROM_BYTES:
        for qps in _QPS:
            timed = transfers.timed_of(_DEPTH, f"one way, {qps} QPs")
            yield f"writes, {word}", functools.partial(_writes, size, timed, qps)
            if PERFTEST in present:
                rate = functools.partial(_rate_of, size, timed, qps)
                yield f"{_WRITES}, {word}", rate
    if size >= 4 * KIB:
        yield f"tensors, {word}", functools.partial(transfers.tensors, settings, "verbs", size)
        yield (
            f"tensors by flag, {word}",
            functools.partial(_by_flag, settings, size),
        )


def _fields(who: str, size: int, timed: str, peer: str = PERFTEST, **more: object) -> Record:
    how = {"language": "C", "wait": samples.WAITS["spin"], "timed": timed}
    return {**samples.p2p_fields(who, peer, "verbs", size, **how), **more}


def _rdtperf(command: str, size: int, timed: str) -> list[Record]:
    words = ("--transport", "verbs", "--size", str(size), "--rounds", "1")
    found = programs.run(command, *words, "--count", str(count_of(size)))
    return [
        samples.turn(_fields(RDMATENSOR, size, timed, RDMATENSOR), samples.raw_of(one))
        for one in found
    ]


def _writes(size: int, timed: str, qps: int) -> list[Record]:
    """Writes without notification, of which the target notices nothing, as perftest's."""
    words = ["--transport", "verbs", "--size", str(size), "--rounds", "1", "--silent"]
    words += ["--depth", str(_DEPTH), "--count", str(count_of(size))]
    found = programs.run("streams", *words, environment={"RDMATENSOR_VERBS_QPS": str(qps)})
    fields = _fields(RDMATENSOR, size, timed, RDMATENSOR, depth=_DEPTH, ways=transfers.WAYS[0])
    return [samples.turn(fields, samples.raw_of(one)) for one in found]


def _by_flag(settings: Settings, size: int) -> list[Record]:
    found = transfers.tensors(settings, "verbs", size, environment=_BY_FLAG)
    return [{**one, "name": f"{one['name']}, by flag"} for one in found[:1]]


def _latency_of(tool: str, size: int, timed: str) -> list[Record]:
    said = perftest(tool, size, count_of(size))
    trips = [line.split(",") for line in said.splitlines()]
    raw_ns = [
        float(pair[1]) * 1000 for pair in trips if len(pair) == 2 and pair[0].strip().isdigit()
    ]
    if not raw_ns:
        raise RuntimeError(f"{tool} lists no trips: {said[-500:]}")
    return [samples.turn(_fields(tool, size, timed), raw_ns)]


def _rate_of(size: int, timed: str, qps: int) -> list[Record]:
    fields = _fields(_WRITES, size, timed, depth=_DEPTH, ways=transfers.WAYS[0])
    return [samples.turn(fields, [_each_ns(size, qps=qps)])]


def _each_ns(size: int, *, qps: int = 1, is_both: bool = False) -> float:
    """Nanoseconds for each message, by the average rate, of both directions together."""
    count = max(_LEAST_COUNT, count_of(size) // qps)  # of each QP
    more = ["-t", str(min(count, _DEPTH)), "-q", str(qps), *(["-b"] if is_both else [])]
    said = perftest(_WRITES, size, count, *more)
    rows = [line.split() for line in said.splitlines()]
    rates = [float(row[_AVERAGE]) for row in rows if row and row[0] == str(size)]
    if len(rates) != 1:
        raise RuntimeError(f"{_WRITES} prints no rate: {said[-500:]}")
    return size / (rates[0] * MIB) * 1e9


def perftest_words(tool: str, size: int, count: int, port: int, *more: str) -> list[str]:
    """Return the command line of both ends."""
    device = ["-d", os.environ["RIG_DEVICE"], "-x", os.environ["RIG_GID_INDEX"], "-F"]
    return [tool, *device, "-s", str(size), "-n", str(count), "-p", str(port), *more]


def perftest(tool: str, size: int, count: int, *more: str) -> str:
    """Run both ends on this host; return what the client prints. Raises RuntimeError."""
    port = programs.free_port()
    words = perftest_words(tool, size, count, port, *more)
    listing = ["-U"] if tool.endswith("_lat") else []
    client = [*words, *listing, os.environ["RIG_ADDR"]]
    return programs.run_both(words, client, port, _PATIENCE_S).output


def write_turns(settings: Settings) -> Iterator[tuple[str, rounds.Turn]]:
    """Return turns of ib_write_bw for collectives: one way, and both ways at once (-b)."""
    for size in settings.sizes_of("collectives"):
        for is_both in (False, True) if size >= _RATE_FROM_BYTES else ():
            turn = functools.partial(_device, size, is_both=is_both)
            yield f"{_WRITES}{' -b' * is_both}, {size_text(size)}", turn


def _device(size: int, *, is_both: bool) -> list[Record]:
    fields: Record = {
        "topic": "collectives",
        "name": f"{_WRITES}{' -b' * is_both}",
        "peer": PERFTEST,
        "transport": "verbs",
        "op": "device",
        "size": size,
        "moved_bytes": size,
        "ranks": 2,
        "language": "C",
        "timed": "mean of writes in a row",
        "row": "plain",
        "waits": "spins",
    }
    return [samples.turn(fields, [_each_ns(size, is_both=is_both)])]


_SENT = {"all_reduce": 2.0, "all_gather": 1.0}  # sizes that all of two ranks send at the least


def shares(records: Sequence[Record]) -> list[str]:
    """Return a line for each collective over verbs: its share of the device's rates.

    A ring moves the least. Two ranks send as ib_write_bw -b does; the share of one direction's rate
    is what a NIC with two full directions permits, and software on shared cores does not.
    """
    device: Mapping[tuple[object, object], float] = {
        (one["name"], one["size"]): number(one, "median_ns")
        for one in records
        if one["op"] == "device"
    }
    lines = []
    for one in records:
        of_size = [device.get((f"{_WRITES}{more}", one["size"])) for more in (" -b", "")]
        if one["peer"] != RDMATENSOR or one["op"] not in _SENT or None in of_size:
            continue
        both_ns, one_way_ns = (float(ns or 0.0) for ns in of_size)
        sent, took_ns = _SENT[str(one["op"])], number(one, "median_ns")
        lines.append(
            f"{one['op']} {size_text(number(one, 'size'))}: {sent * both_ns / took_ns:.2f} of "
            f"{_WRITES} -b, {sent / 2 * one_way_ns / took_ns:.2f} of one direction"
        )
    return lines
