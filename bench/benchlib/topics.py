"""Every topic of the suite: how its rows are made of records, in the order of the report."""

from __future__ import annotations

from collections.abc import Callable

from bench.benchlib import core_rows, python_rows
from bench.benchlib.record import Record
from bench.benchlib.verdict import Row

TOPICS: dict[str, Callable[[list[Record]], list[Row]]] = {
    "shm_write": core_rows.shm_write,
    "shm_latency": core_rows.shm_latency,
    "write_many_shm": core_rows.write_many,
    "write_many_tcp": core_rows.write_many,
    "tcp_throughput": core_rows.tcp_throughput,
    "tcp_latency_spin": core_rows.tcp_latency,
    "tcp_latency_sleep": core_rows.tcp_latency,
    "registration": core_rows.registration,
    "idle_memory": core_rows.idle_memory,
    "growth": core_rows.growth,
    "overhead": core_rows.overhead,
    "python_shm": python_rows.p2p,
    "python_tcp": python_rows.p2p,
    "import": python_rows.imports,
    "all_reduce": python_rows.c10d,
    "coalesced": python_rows.coalesced,
}
