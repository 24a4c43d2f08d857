"""Point to point and collectives over verbs, on one host of the rig.

perftest's tools and plain libibverbs (bench/floor/verbs_floor.c) take turns with rdtperf; gRPC has
TCP in the same guest. SoftRoCE is software, and under emulation every instruction is emulated too:
only ratios mean anything. perftest and verbs_floor spin for a message, rdmatensor spins and then
sleeps. "raw imm, 10 us" computes for so long before each post, as a program may: what it takes
beyond raw imm and the 10 us is the device's, which is idle again by then.
"""

from __future__ import annotations

import functools
import os
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from bench.benchlib import programs
from bench.benchlib.record import Record, number
from bench.benchlib.units import size_text
from bench.suite import rounds, samples, transfers
from bench.suite.peers import RDMATENSOR
from bench.suite.settings import KIB, MIB, Settings

PERFTEST = "perftest"
_PAUSE_NS = 10_000
_LATENCIES = {
    samples.HALF: (
        ("ib_write_lat", "ib_send_lat"),
        (("write", 0), ("imm", 0), ("imm", _PAUSE_NS)),
    ),
    transfers.ALONE: (("ib_read_lat",), (("read", 0), ("read", _PAUSE_NS))),
}
_WRITES = "ib_write_bw"
_AVERAGE = 3  # of perftest's columns: MiB/s
_LEAST_COUNT = 5  # perftest's
_RATE_FROM_BYTES = MIB
_QPS = (1, 2, 4)
_DEPTH = 16
# A device that promises no order is made to use flags all the same: what they would save.
_BY_FLAG = {"RDMATENSOR_VERBS_NOTIFY": "flag", "RDMATENSOR_VERBS_FLAG_UNSAFE": "1"}
_LISTEN_S, _PATIENCE_S = 20.0, 120.0
_LISTENS = "0A"  # the state in /proc/net/tcp


def count_of(size: int) -> int:
    """Return the messages of a turn: an emulated machine moves some 80 MiB a second."""
    return max(_LEAST_COUNT, min(400, 48 * MIB // size))


def turns(settings: Settings, size: int, present: set[str]) -> Iterator[tuple[str, rounds.Turn]]:
    """Return the turns of one size."""
    word = f"verbs {size_text(size)}"
    yield f"latency, {word}", functools.partial(_rdtperf, "latency", size, samples.HALF)
    yield f"reads, {word}", functools.partial(_rdtperf, "reads", size, transfers.ALONE)
    for timed, (tools, operations) in _LATENCIES.items():
        for tool in tools if PERFTEST in present else ():
            yield f"{tool}, {word}", functools.partial(_latency_of, tool, size, timed)
        for name, pause_ns in operations if "floor" in present else ():
            yield f"raw {name}, {word}", functools.partial(_raw, name, size, timed, pause_ns)
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


def _raw(operation: str, size: int, timed: str, pause_ns: int) -> list[Record]:
    """One turn of plain libibverbs."""
    words = [str(programs.build() / "verbs_floor"), "--op", operation]
    words += ["--device", os.environ["RIG_DEVICE"], "--gid", os.environ["RIG_GID_INDEX"]]
    words += ["--size", str(size), "--count", str(count_of(size))]
    words += ["--pause", str(pause_ns)] if pause_ns else []
    (found,) = programs.run_words(words, _PATIENCE_S)
    name = f"raw {operation}{', 10 us' if pause_ns else ''}"
    return [samples.turn(_fields(name, size, timed), samples.raw_of(found), found)]


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


def is_listening(port: int) -> bool:
    """Look without connecting: perftest's server takes the first that comes."""
    rows = [
        row.split()
        for table in ("/proc/net/tcp", "/proc/net/tcp6")
        for row in Path(table).read_text().splitlines()[1:]
    ]
    return any(row[1].endswith(f":{port:04X}") and row[3] == _LISTENS for row in rows)


def perftest_words(tool: str, size: int, count: int, port: int, *more: str) -> list[str]:
    """Return the command line of both ends."""
    device = ["-d", os.environ["RIG_DEVICE"], "-x", os.environ["RIG_GID_INDEX"], "-F"]
    return [tool, *device, "-s", str(size), "-n", str(count), "-p", str(port), *more]


def perftest(tool: str, size: int, count: int, *more: str) -> str:
    """Run both ends on this host; return what the client prints. Raises RuntimeError."""
    port = programs.free_port()
    words = perftest_words(tool, size, count, port, *more)
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as server:
        try:
            end_s = time.monotonic() + _LISTEN_S
            while not is_listening(port) and time.monotonic() < end_s and server.poll() is None:
                time.sleep(0.05)
            listing = ["-U"] if tool.endswith("_lat") else []
            client = subprocess.run(
                [*words, *listing, os.environ["RIG_ADDR"]],
                capture_output=True,
                text=True,
                check=False,
                timeout=_PATIENCE_S,
            )
        finally:
            server.kill()
    if client.returncode != 0:
        raise RuntimeError(f"{' '.join(words)}: {client.stdout}{client.stderr}")
    return client.stdout


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
